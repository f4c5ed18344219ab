"""What make says before it installs anything, where Python or the CUDA stack cannot be meant."""

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
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

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
