"""What make says before it installs anything, where Python or the CUDA stack cannot be meant."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_fixtures import REPOSITORY

OLD = """#!/bin/sh
[ "$1" = -c ] && exec {python} -c "import sys; sys.version_info = (3, 9, 18)
$2"
echo "$0 $*" >> ran
"""


@pytest.fixture
def make(tmp_path):
    """`make ARGUMENTS` with the shipped Makefile in an empty folder that has what `setup` reads."""
    (tmp_path / "envs").mkdir()
    for name in ("pyproject.toml", "envs/constraints-cuda12.txt", "envs/constraints-cuda13.txt"):
        (tmp_path / name).touch()

    def make(*arguments: str) -> subprocess.CompletedProcess:
        command = ["make", "-f", str(REPOSITORY / "Makefile"), *arguments]
        environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return make


def old_python(path: Path) -> Path:
    """A Python that says it is 3.9, and writes into the file `ran` whatever else it is asked to do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OLD.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("target", ["setup", "bundle", "lock"])
def test_an_old_python_is_told_before_it_makes_the_environment(make, tmp_path, target):
    done = make(target, f"PYTHON={old_python(tmp_path / 'python3')}")
    assert done.returncode
    assert "found Python 3.9; expected 3.11 or newer; name one with make PYTHON=python3.12" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("target", ["setup", "bundle"])
def test_an_environment_of_an_old_python_is_told(make, tmp_path, target):
    old_python(tmp_path / ".venv/bin/python")
    done = make(target, f"PYTHON={sys.executable}")
    assert done.returncode
    assert "found Python 3.9; expected 3.11 or newer; it is that of .venv: move it away" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("target", ["setup", "bundle"])
def test_a_stack_that_does_not_exist_is_told(make, target):
    done = make("-n", target, "CUDA=14")
    assert done.returncode
    assert "found CUDA=14; expected 12 or 13" in done.stderr


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_both_stacks_are_installed_by_their_constraints(make, cuda):
    done = make("-n", "setup", f"CUDA={cuda}")
    assert done.returncode == 0
    assert f"--constraint envs/constraints-cuda{cuda}.txt" in done.stdout


@pytest.mark.parametrize(
    ("gpu", "before", "words", "installs"),
    [
        (False, [], [], "gpufeed.cluster.base_install envs/constraints-cuda12.txt"),
        (False, [], ["CUDA=13"], "gpufeed.cluster.base_install envs/constraints-cuda13.txt"),
        (False, [], ["OFFLINE=bundle"], "--no-index --find-links bundle/wheels"),
        (True, [], [], ".[cuda12,all,dev]"),
        (False, [".installed-base"], [], None),
        (False, [".installed-cuda12"], [], None),
        (True, [".installed-base", ".installed-cuda12"], [], None),
        (True, [".installed-base"], [], ".[cuda12,all,dev]"),
    ],
)
def test_the_demo_installs_what_its_machine_needs_once(make, tmp_path, gpu, before, words, installs):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{'echo GPU 0' if gpu else 'exit 9'}\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    (tmp_path / ".venv").mkdir()
    for name in before:
        (tmp_path / ".venv" / name).touch()
    done = make("-n", "demo", *words)
    assert done.returncode == 0
    installing = [line for line in done.stdout.splitlines() if "base_install" in line or "--editable" in line]
    assert len(installing) == (installs is not None)
    assert all(installs in line for line in installing)


def test_torch_without_cuda_gives_way_to_that_of_a_stack(make, tmp_path):
    (tmp_path / ".venv/lib/python3.12/site-packages/torch-2.10.0+cpu.dist-info").mkdir(parents=True)
    done = make("-n", "setup")
    assert done.returncode == 0
    assert "pip uninstall" in done.stdout
    assert "pip uninstall" not in make("-n", "setup", "VENV=other").stdout
