"""Byte code of jobs, kept where Python keeps none."""

import os
import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY

# what the Snakefile does, then a job that imports torch
RUN = """
import subprocess, sys
from pathlib import Path
from gpufeed.core.folders import keep_byte_code
keep_byte_code(Path("kept"))
subprocess.run([sys.executable, "-c", "import torch"], check=True)
"""


def run(folder, **variables):
    (folder / "site/torch").mkdir(parents=True, exist_ok=True)
    (folder / "site/torch/__init__.py").write_text("")
    given = {"PYTHONPATH": f"{folder / 'site'}{os.pathsep}{REPOSITORY}", **variables}
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([sys.executable, "-c", RUN], cwd=folder, env=others | given, check=True)
    return {str(path.relative_to(folder)).split(os.sep)[0] for path in folder.rglob("torch/**/*.pyc")}


def test_byte_code_lies_beside_torch_where_python_writes_it(tmp_path):
    assert run(tmp_path) == {"site"}


def test_byte_code_is_kept_elsewhere_where_python_writes_none(tmp_path):
    assert run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == {"kept"}


@pytest.mark.parametrize("second", [{}, {"PYTHONDONTWRITEBYTECODE": "1"}])
def test_what_is_there_is_used(tmp_path, second):
    run(tmp_path)
    assert run(tmp_path, **second) == {"site"}


def test_a_place_of_the_users_own_stays(tmp_path):
    own = str(tmp_path / "own")
    assert run(tmp_path, PYTHONPYCACHEPREFIX=own) == {"own"}
    assert run(tmp_path, PYTHONPYCACHEPREFIX=own, PYTHONDONTWRITEBYTECODE="1") == {"own"}
