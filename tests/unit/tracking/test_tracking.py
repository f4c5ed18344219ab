"""Metrics of each epoch: a table always, a run for Weights & Biases on request, and no error from either."""

import csv
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from process_fixtures import wait_until
from record_fixtures import cell, record

from gpufeed.core.cells import Cell
from gpufeed.core.errors import install
from gpufeed.tracking import wandb_run as run_module
from gpufeed.tracking.epoch_tracking import (
    COLUMNS,
    epoch_metrics,
    track_repeat,
    track_training,
    write_metrics,
)
from gpufeed.tracking.wandb_run import Run

OFF = {"wandb": False, "project": "gpufeed", "mode": "offline"}
OFFLINE, ONLINE = {**OFF, "wandb": True}, {**OFF, "wandb": True, "mode": "online"}
NOWHERE = "http://127.0.0.1:9"  # the port `discard`, where nobody answers


def entry(epoch=0, accuracy=None):
    counts = {"epoch": epoch, "steps": 4, "images": 30, "epoch_s": 0.5, "images_per_s": 60.0}
    return {**counts, "train_loss": 1.25, "accuracy": accuracy}


ACCURACY = {"top1": 0.75, "loss": 0.9, "split": "test", "images": 12, "correct": 9}
EPOCHS = [entry(0), entry(1, ACCURACY)]


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No key, no server and no settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("WANDB"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_BASE_URL", NOWHERE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home/netrc"))
    before = set(started())
    yield tmp_path / "results"
    wait_until(lambda: not set(started()) - before)  # no process is left behind


def started():
    return [process.pid for process in psutil.Process().children(recursive=True)]


def runs(results):
    """Texts of the runs' files: names, keys and values stand in them in plain bytes."""
    return [path.read_bytes() for path in sorted(results.glob("wandb/offline-run-*/*.wandb"))]


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_row_an_epoch_with_the_accuracy_where_there_is_one(tmp_path):
    path = tmp_path / "deep/metrics.csv"
    write_metrics(path, EPOCHS)
    first, second = rows(path)
    assert tuple(first) == COLUMNS
    counted = {key: str(value) for key, value in entry().items() if key != "accuracy"}
    assert first == counted | {"top1": "", "evaluation_loss": ""}
    assert (second["epoch"], second["top1"], second["evaluation_loss"]) == ("1", "0.75", "0.9")
    assert [file.name for file in path.parent.iterdir()] == ["metrics.csv"]


def test_a_measured_repeat_leaves_its_table_by_repeat_and_attempt(tmp_path):
    done = replace(record(cell("resident")), epochs=EPOCHS, repeat=2, attempt=3)
    track_repeat(done, OFF, tmp_path)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path == tmp_path / "tracking" / done.experiment / done.cell_id / "2-3.csv"
    assert len(rows(path)) == 2
    track_repeat(done, OFF, tmp_path, "2-again")
    assert path.with_name("2-again-3.csv").read_text() == path.read_text()


def test_a_repeat_without_epochs_leaves_none_and_a_folder_that_cannot_be_is_a_warning(tmp_path, caplog):
    track_repeat(replace(record(cell("resident")), epochs=[]), OFF, tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "tracking").write_text("a file")
    track_repeat(replace(record(cell("resident")), epochs=EPOCHS), OFF, tmp_path)
    assert len(warnings(caplog)) == 1


def test_offline_a_measured_repeat_is_one_run_with_cell_group_and_metrics(alone, caplog):
    pytest.importorskip("wandb")
    done = replace(record(cell("resident")), epochs=EPOCHS, repeat=1, attempt=2, accuracy=ACCURACY)
    track_repeat(done, OFFLINE, alone)
    (text,) = runs(alone)
    said = (f"{done.cell_id}-1-2", done.cell_id, done.experiment, "train_loss", "images_per_s", "batch_size")
    assert [word for word in said if word.encode() not in text] == []
    assert b"1.25" in text
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "key",
    [pytest.param(None, id="no key"), pytest.param("0" * 40, id="no network", marks=pytest.mark.slow)],
)
def test_online_without_a_key_or_a_network_is_kept_offline_with_one_warning(alone, caplog, monkeypatch, key):
    pytest.importorskip("wandb")
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    made = Run(alone, "gpufeed", "online", "name", "group", "job", {"a": 1}, patience_s=10)
    made.log(epoch_metrics(EPOCHS[0]))
    made.finish({"top1": 0.5})
    assert len(runs(alone)) == 1
    (warning,) = warnings(caplog)
    assert "kept offline, for wandb sync" in warning


def test_without_the_package_there_is_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(run_module, "find_spec", lambda name: None)
    track_repeat(replace(record(cell("resident")), epochs=EPOCHS), ONLINE, tmp_path)
    (warning,) = warnings(caplog)
    assert install("wandb") in warning
    assert not (tmp_path / "wandb").exists()


PROGRAMS = {
    "ends": ("import sys; sys.exit(3)", "ended with status 3"),
    "babbles": ("print('no JSON')", "ended with status 0"),
    "hangs": (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "time.sleep(600)",
        "not sent within",
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_sender_that_ends_babbles_or_hangs_is_one_warning_and_leaves_nothing(
    alone, tmp_path, caplog, monkeypatch, what
):
    code, said = PROGRAMS[what]
    monkeypatch.setattr(run_module, "find_spec", lambda name: name)
    monkeypatch.setattr(run_module, "PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(run_module, "LOCAL_S", 1)
    (tmp_path / "program.py").write_text(code)
    made = Run(alone, "gpufeed", "offline", "name", "group", "job", {}, patience_s=0.5)
    for epoch in range(3000):  # more than a pipe holds
        made.log(epoch_metrics(entry(epoch)))
    made.finish({})
    (warning,) = warnings(caplog)
    assert said in warning


def test_a_watched_training_writes_each_epoch_and_ends_its_run_whatever_happens(tmp_path, monkeypatch):
    told = []

    class Told:
        def __init__(self, *place, **about):
            told.append(about)

        def log(self, row):
            told.append(row)

        def finish(self, summary, ok):
            told.append((summary, ok))

    monkeypatch.setattr("gpufeed.tracking.epoch_tracking.Run", Told)
    ours = Cell("train", "d", "resident")
    with track_training(ours, OFFLINE, tmp_path) as watch:
        watch.on_epoch(EPOCHS[0])
        assert len(rows(tmp_path / "metrics.csv")) == 1
        watch.end(EPOCHS)
    assert len(rows(tmp_path / "metrics.csv")) == 2
    assert told[0]["group"] == ours.id
    assert told[1]["train_loss"] == 1.25
    assert told[2] == (epoch_metrics(EPOCHS[1]), True)
    with pytest.raises(KeyError), track_training(ours, OFFLINE, tmp_path):
        raise KeyError
    assert told[-1] == ({}, False)
    with track_training(ours, OFF, tmp_path) as watch:
        assert watch.run is None


def test_a_training_that_goes_on_has_the_rows_before_it_from_the_start(tmp_path):
    with track_training(Cell("train", "d", "resident"), OFF, tmp_path, EPOCHS) as watch:
        assert [row["epoch"] for row in rows(tmp_path / "metrics.csv")] == ["0", "1"]
        watch.on_epoch(entry(2))
        assert [row["epoch"] for row in rows(tmp_path / "metrics.csv")] == ["0", "1", "2"]


def test_the_sender_is_a_program_of_its_own():
    """A process that trains imports nothing of wandb."""
    code = "import sys; from gpufeed.tracking import epoch_tracking; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
