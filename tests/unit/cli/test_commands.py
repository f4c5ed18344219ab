"""The command gpufeed: its names, and what it says to others."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from data_fixtures import REPOSITORY

from gpufeed import __version__
from gpufeed.__main__ import COMMANDS, main


def test_help_lists_every_command_with_a_line_and_imports_no_torch():
    code = "import sys; from gpufeed.__main__ import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.findall(r"^  (\w+) +\w.*\w$", done.stdout, re.MULTILINE) == list(COMMANDS)
    assert done.stdout.endswith("False\n")
    assert all(find_spec(module) for module, _ in COMMANDS.values())
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"gpufeed": "gpufeed.__main__:main"}


def test_a_wrong_name_is_a_sentence_and_a_right_one_gets_the_rest(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpufeed"])
    assert main(["comapre"]) == 2
    assert "write 'compare' instead" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpufeed {__version__}\n"
    assert main(["report", str(tmp_path / "none.json"), "-o", str(tmp_path / "page.html")]) == 2
    assert "none.json" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["run", "images", "--cores", "0"])
    assert ended.value.code == 2
    assert "a whole number of 1 or more" in capsys.readouterr().err
