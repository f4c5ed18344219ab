"""Preflight outside of its environment: one sentence and exit code 2."""

import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY

from gpufeed.preflight import lacking

PREFLIGHT = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
sys.argv.append("--help")
{}
runpy.run_module("gpufeed.preflight", run_name="__main__")
"""


def preflight(*options: str, before: str = "") -> subprocess.CompletedProcess:
    command = [sys.executable, "-I", *options, "-c", PREFLIGHT.format(before), str(REPOSITORY)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "before", "found"),
    [
        (["-S"], "", "found a Python without requests, snakemake, snakemake_executor_plugin_slurm, yaml"),
        ([], "sys.version_info = (3, 9, 18)", "found Python 3.9; expected"),
    ],
    ids=["packages", "version"],
)
def test_another_python_is_told_how_to_get_the_environment(options, before, found):
    done = preflight(*options, before=before)
    assert done.returncode == 2
    assert found in done.stderr
    assert "make setup" in done.stderr
    assert ". .venv/bin/activate" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_environment_itself_passes():
    assert lacking() == ""
    assert preflight().returncode == 0
