"""What pip installs trains by itself: from the archive of sources to a model, far from the checkout."""

import subprocess
import sys
import tarfile
import zipfile

import pytest
from compose_fixtures import TINY, train_in
from data_fixtures import REPOSITORY
from wheel_fixtures import WHEEL, copy_sources

SDIST = "from setuptools import build_meta; build_meta.build_sdist('out')"


def build(folder, code, *arguments):
    """Runs a build in a folder with sources; returns the one file that it leaves in `out`."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "out").iterdir()
    return made


@pytest.mark.long
def test_the_wheel_of_the_source_archive_trains_in_an_empty_folder(tmp_path):
    sources, site, empty = (tmp_path / name for name in ("sources", "site", "empty"))
    sources.mkdir()
    empty.mkdir()
    copy_sources(sources)
    with tarfile.open(build(sources, SDIST)) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    with zipfile.ZipFile(build(unpacked, WHEEL, "isolated")) as archive:
        archive.extractall(site)
    ours = {path.relative_to(REPOSITORY / "config") for path in (REPOSITORY / "config").rglob("*.yaml")}
    assert {path.relative_to(site / "gpufeed/conf") for path in site.rglob("conf/**/*.yaml")} == ours
    done = train_in(empty, *TINY, "trainer=plain", "hydra.run.dir=run", package=site)
    assert done.returncode == 0, done.stderr
    assert (empty / "run/model.pt").exists()
    wrong = train_in(empty, "trainer.learning_rate=-1", package=site)
    assert wrong.returncode == 2
    assert "gpufeed/conf" not in wrong.stderr  # the command line is to blame, and no file
