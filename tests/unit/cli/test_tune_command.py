"""python -m gpufeed.tune: lines to paste from one command, and one sentence where there can be none."""

import logging.config
import subprocess
import sys

import pytest
from compose_fixtures import TINY
from data_fixtures import REPOSITORY

from gpufeed.core.record import TUNED
from gpufeed.tune import USAGE, main


@pytest.mark.slow
def test_one_command_ends_in_a_table_and_lines_to_paste(tmp_path):
    command = [sys.executable, "-P", "-m", "gpufeed.tune", *TINY, "hydra.run.dir=first"]
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = TUNED.read(tmp_path / "first/tuned.json")
    assert found["status"] == "done"
    assert found["cell"]["loader"] == "dataloader_workers"
    assert found["cell"]["trainer"] == "plain"
    assert found["cell"]["device"] == "cpu"
    workers = found["tried"][0]["workers"]
    assert f"DataLoader(dataset, batch_size=8, num_workers={workers}, " in done.stdout
    assert f"  loader=dataloader_workers workers={workers} decoder=" in done.stdout


WRONG = {
    "loader=resident": "resident has no workers and no choice of decoder",
    "trainer=lightning": "a tuning needs trainer plain on one device",
    "loader=dataloder_workers": "dataloader_workers",
    "workers=many": "workers",
    "data=synthetik": "synthetic",
    "settings=tuned": "settings",
}


@pytest.mark.parametrize("argument", WRONG)
def test_bad_input_is_one_sentence(argument, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)  # later tests log too
    monkeypatch.setattr(sys, "argv", ["tune"])
    assert main([*TINY, argument]) == 2
    said = capsys.readouterr().err
    assert WRONG[argument] in said
    assert "Traceback" not in said
    assert not (tmp_path / "data").exists()


def test_without_arguments_it_says_how(monkeypatch, capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.strip() == USAGE
