"""What make demo installs without a GPU: builds of torch without CUDA where their index answers."""

import os
import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY

UV = """#!/bin/sh
echo "$*" >> {calls}
case "$*" in
*--torch-backend*) {cpu} ;;
esac
[ "$2" = compile ] && cat {lock}
exit 0
"""
LOCK = """
[[packages]]
name = "a"
wheels = [{size = 100000000}, {size = 300000000}]
[[packages]]
name = "b"
sdist = {size = 50000000}
[[packages]]
name = "c"
wheels = [{url = "c.whl"SIZE}]
"""


@pytest.fixture
def install(tmp_path):
    """Runs the module by a Python with a uv beside it that writes down its calls; (status, lines, calls)."""

    def install(cpu="", size=", size = 10000000"):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/python").symlink_to(sys.executable)
        (tmp_path / "lock").write_text(LOCK.replace("SIZE", size))
        uv, calls = tmp_path / "bin/uv", tmp_path / "calls"
        uv.write_text(UV.format(calls=calls, lock=tmp_path / "lock", cpu=cpu))
        uv.chmod(0o755)
        done = subprocess.run(
            [tmp_path / "bin/python", "-m", "gpufeed.cluster.base_install", "pins.txt"],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout.splitlines(), calls.read_text().splitlines()

    return install


def test_cpu_builds_are_installed_where_their_index_answers(install):
    status, lines, calls = install(cpu="true")
    assert status == 0
    assert "3 packages, 0.36 GB" in lines[0]
    assert "without CUDA" in lines[0]
    asked, locked, installed = calls
    assert all("--torch-backend cpu" in call and "--constraint pins.txt" in call for call in calls)
    assert "--no-deps" in asked
    assert "--no-deps" not in locked
    assert installed.endswith("--editable .")


def test_without_that_index_the_usual_builds_are_installed_and_that_is_said(install):
    status, lines, (_, *calls) = install(cpu="exit 2")
    assert status == 0
    assert "with CUDA" in lines[0]
    assert len(calls) == 2
    assert not any("--torch-backend" in call for call in calls)


def test_an_index_without_sizes_gives_none(install):
    status, lines, _ = install(size="")
    assert status == 0
    assert "3 packages (" in lines[0]
    assert lines[1].startswith("Installed in ")
