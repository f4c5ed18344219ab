"""What shellcheck says of the shell scripts that root runs in an image, and of CI's."""

import shutil
import subprocess

import pytest
from data_fixtures import REPOSITORY

SCRIPTS = (*sorted((REPOSITORY / "containers").glob("*.sh")), REPOSITORY / ".ci/run")


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck here (Debian: shellcheck)")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    found = subprocess.run(["shellcheck", "--severity=warning", script], capture_output=True, text=True)
    assert not found.returncode, found.stdout
