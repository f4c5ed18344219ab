"""What pip installs trains by itself: from the archive of sources to a model, far from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile

import pytest
from compose_fixtures import TINY, train_in
from data_fixtures import REPOSITORY
from wheel_fixtures import WHEEL, copy_sources

IGNORED = shutil.ignore_patterns("__pycache__", "*.so")
SDIST = "from setuptools import build_meta; build_meta.build_sdist('out')"


def build(folder, code, *arguments):
    """Runs a build in a folder with sources; returns the one file that it leaves in `out`."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "out").iterdir()
    return made


def scratch_environment(folder):
    """A Python environment in a folder, with the packages of this one but without its gpufeed."""
    command = [sys.executable, "-m", "venv", "--without-pip", folder]
    subprocess.run(command, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # whose own .pth files do not count
    return folder / "bin/python", site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where pip installed the package alone."""
    site = tmp_path_factory.mktemp("pip") / "site"
    shutil.copytree(REPOSITORY / "gpufeed", site / "gpufeed", ignore=IGNORED)
    shutil.copytree(REPOSITORY / "config", site / "gpufeed/conf")
    return site


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("preflight", ["--site", "pace-ice"]),
        ("cluster.bundle", ["folder", "--cuda", "13"]),
        ("cluster.bundle.contents", ["folder", "13"]),
        ("__main__", ["run", "folder"]),
    ],
)
def test_what_needs_the_repository_says_so_where_pip_installed_the_package_alone(
    tmp_path, site, module, arguments
):
    done = subprocess.run(
        [sys.executable, "-P", "-m", f"gpufeed.{module}", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (1, 2)
    found, expected, remedy = done.stderr.splitlines()
    assert f"no {site}" in found
    assert "clone of the repository" in expected
    assert "git clone" in remedy
    assert not (tmp_path / "folder").exists()


@pytest.mark.slow
def test_what_pip_installs_from_the_source_archive_trains_in_an_empty_folder(tmp_path):
    sources, empty = (tmp_path / name for name in ("sources", "empty"))
    sources.mkdir()
    empty.mkdir()
    copy_sources(sources)
    with tarfile.open(build(sources, SDIST)) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    wheel = build(unpacked, WHEEL, "isolated")  # without torch, and so without the library
    assert wheel.name.endswith("-none-any.whl")
    python, site = scratch_environment(tmp_path / "scratch")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    assert (site / "gpufeed/native/csrc/cuda/bias_gelu.cu").is_file()
    assert not list(site.glob("gpufeed/native/*.so"))
    ours = {path.relative_to(REPOSITORY / "config") for path in (REPOSITORY / "config").rglob("*.yaml")}
    assert {path.relative_to(site / "gpufeed/conf") for path in site.rglob("conf/**/*.yaml")} == ours
    done = train_in(empty, *TINY, "trainer=plain", "hydra.run.dir=run", python=python)
    assert done.returncode == 0, done.stderr
    assert (empty / "run/model.pt").exists()
    wrong = train_in(empty, "trainer.learning_rate=-1", python=python)
    assert wrong.returncode == 2
    assert "gpufeed/conf" not in wrong.stderr  # the command line is to blame, and no file
