"""The command gpufeed: its names, and what it says to others."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest
from data_fixtures import REPOSITORY

from gpufeed import __version__, compare
from gpufeed.__main__ import COMMANDS, main
from gpufeed.core.config import HYPER


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
    for option, few, least in (("--cores", "0", 1), ("--steps", "3", 4)):
        with pytest.raises(SystemExit) as ended:
            main(["run", "images", option, few])
        assert ended.value.code == 2
        assert f"a whole number of {least} or more" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["train"]])
def test_a_reader_that_closed_the_output_is_no_traceback(words):
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from gpufeed.__main__ import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], stdout=write, stderr=subprocess.PIPE, env=environment
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_in_any_command_is_no_traceback(monkeypatch, capsys):
    def interrupted(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "records_below", interrupted)
    assert main(["compare", "a", "b"]) == 130
    assert capsys.readouterr() == ("", "")


def test_init_makes_a_folder_whose_own_hyper_parameters_are_read_and_overwrites_none(capsys, tmp_path):
    folder = tmp_path / "own"
    assert main(["init", str(folder)]) == 0
    capsys.readouterr()
    assert {path.name for path in folder.iterdir()} == {"Snakefile", "config", "profiles", "slurm"}
    assert not list(folder.rglob("*.py"))
    defaults = folder / "config/hydra/trainer/plain.yaml"
    assert defaults.read_bytes() == (HYPER / "trainer/plain.yaml").read_bytes()
    defaults.write_text(re.sub("learning_rate: .*", "learning_rate: 0.125", defaults.read_text()))
    code = "from gpufeed.core import config; print(config.read_hyper('trainer', 'plain')['learning_rate'])"

    def rate_in(place):
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        return subprocess.check_output([sys.executable, "-c", code], cwd=place, env=environment, text=True)

    assert rate_in(folder) == "0.125\n"
    assert rate_in(tmp_path) != "0.125\n"
    assert main(["init", str(folder)]) == 2
    assert "Snakefile, config, profiles, slurm in" in capsys.readouterr().err
    assert "learning_rate: 0.125" in defaults.read_text()
    assert main(["init", str(defaults)]) == 2
    assert "a folder that you may write to" in capsys.readouterr().err


def test_an_init_that_a_full_disk_ends_is_a_line_and_leaves_nothing(capsys, tmp_path, monkeypatch):
    def copy(source, target, **options):
        target.mkdir()
        raise shutil.Error([(str(source), str(target), f"[Errno 28] No space left: {n}") for n in "abc"])

    monkeypatch.setattr(shutil, "copytree", copy)
    assert main(["init", str(tmp_path / "own")]) == 2
    assert re.match(r"found: \S+/own: \[Errno 28\] No space left: a\nexpected:", capsys.readouterr().err)
    assert not list((tmp_path / "own").iterdir())
