"""What pip installs is whole: from the source archive to a run in a bare Python, far from the checkout."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import version

import numpy as np
import pytest
from compose_fixtures import TINY, train_in
from data_fixtures import REPOSITORY
from PIL import Image
from uv_fixtures import pinned_uv, run_uv
from wheel_fixtures import PARTS, WHEEL, copy_sources

from gpufeed import __version__
from gpufeed.__main__ import COMMANDS
from gpufeed.core.packed_results import extract

IGNORED = shutil.ignore_patterns("__pycache__", "*.so")
SDIST = "from setuptools import build_meta; build_meta.build_sdist('out')"
FETCH = """
from gpufeed.core.errors import Skip
from gpufeed.core.packed_results import extract
from gpufeed.core.registry import KINDS, fetch
for kind, entries in KINDS.items():
    for name in entries:
        try:
            fetch(kind, name) if entries[name].target else None
        except Skip as skip:
            print(f"{kind} {name}: {skip}")
"""
SMALL = "--model simple_cnn --size 32 --batch-size 8 --steps 4 --gpus 0 --cores 2 --quick --loaders"


def build(folder, code, *arguments):
    """Runs a build in a folder with sources; returns the one file that it leaves in `out`."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "out").iterdir()
    return made


def bare_environment(folder, wheel):
    """A Python environment with a wheel and its base install, in the versions that are tested here."""
    found = f"torch=={version('torch').partition('+')[0]}"
    (constraints,) = (
        path for path in REPOSITORY.glob("envs/constraints-*") if found in path.read_text().splitlines()
    )
    subprocess.run([pinned_uv(), "venv", "--quiet", "--python", sys.executable, folder], check=True)
    python = folder / "bin/python"
    run_uv("install", "--python", python, "--constraint", constraints, wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    return python, site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Where pip installed the package alone."""
    site = tmp_path_factory.mktemp("pip") / "site"
    shutil.copytree(REPOSITORY / "gpufeed", site / "gpufeed", ignore=IGNORED)
    shutil.copytree(REPOSITORY / "config", site / "gpufeed/conf")
    return site


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("cluster.bundle", ["folder", "--cuda", "13"]), ("cluster.bundle.contents", ["folder", "13"])],
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
@pytest.mark.timeout(600)
def test_what_pip_installs_from_the_source_archive_measures_and_trains_in_an_empty_folder(tmp_path):
    sources, empty, images = (tmp_path / name for name in ("sources", "empty", "images"))
    sources.mkdir()
    empty.mkdir()
    copy_sources(sources)
    extract(build(sources, SDIST), tmp_path / "sdist")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    wheel = build(unpacked, WHEEL, "isolated")  # without torch, and so without the library
    assert wheel.name.endswith("-none-any.whl")
    python, site = bare_environment(tmp_path / "bare", wheel)
    assert (site / "gpufeed/native/csrc/cuda/bias_gelu.cu").is_file()
    assert (site / "gpufeed/py.typed").is_file()
    assert not list(site.glob("gpufeed/native/*.so"))
    shipped = site / "gpufeed/repository"
    for part in (*PARTS, "Snakefile"):
        files = [REPOSITORY / part, *(REPOSITORY / part).rglob("*")]
        ours = {path.relative_to(REPOSITORY) for path in files if path.is_file() and path.suffix != ".pyc"}
        assert {path for path in ours if (shipped / path).is_file()} == ours

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = partial(subprocess.run, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def gpufeed(*words, folder=empty):
        return run([python.with_name("gpufeed"), *words], cwd=folder)

    assert gpufeed("--version").stdout == f"gpufeed {__version__}\n"
    for name in COMMANDS:
        helped = gpufeed(name, "--help")
        assert (helped.returncode, helped.stderr) == (0, ""), name
        assert helped.stdout.strip(), name
    assert gpufeed("init", "own").returncode == 0
    plan = [python, "-m", "snakemake", "--dry-run", "--quiet", "--configfile", "config/demo.yaml"]
    planned = run(plan, cwd=empty / "own")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    told = run([python, "-c", FETCH], cwd=empty).stdout.splitlines()
    assert {line.split(": ")[0] for line in told} >= {
        "loader fastai",
        "trainer lightning",
        "model timm_vit_tiny",
    }
    assert all(": pip install " in line.partition(", which this node lacks")[2] for line in told)

    generator = np.random.default_rng(0)
    for number in range(50):
        path = images / f"class{number % 2}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (48, 40, 3), np.uint8)).save(path)
    loaders = ("dataloader_sync", "fastai")  # one that is not in the base install
    ran = gpufeed("run", str(images), *SMALL.split(), *loaders, folder=empty / "own")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    records = (json.loads(path.read_text()) for path in empty.glob("own/results/run/records/**/*.json"))
    status = {record["cell"]["loader"]: (record["status"], record["sentence"]) for record in records}
    assert status.pop("fastai") == (
        "skipped",
        "Loader fastai needs the package fastai, which this node lacks: pip install 'gpufeed[all]'.",
    )
    assert status == dict.fromkeys(["dataloader_sync", "replay"], ("done", None))
    assert (empty / "own/results/run/report.html").is_file()

    done = train_in(empty, *TINY, "trainer=plain", "hydra.run.dir=run", python=python)
    assert done.returncode == 0, done.stderr
    assert (empty / "run/model.pt").exists()
    wrong = train_in(empty, "trainer.learning_rate=-1", python=python)
    assert wrong.returncode == 2
    assert "site-packages" not in wrong.stderr  # the command line is to blame, and no file
