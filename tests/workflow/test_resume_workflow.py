"""Kept models and repeats whose trainings were stopped go on."""

import os
import re
import signal
from contextlib import suppress

import psutil
import pytest
from process_fixtures import wait_until, words
from workflow_fixtures import with_blocks

from gpufeed.benchmarks.saved_models.model_file import load
from gpufeed.core.record import Record

pytestmark = pytest.mark.slow


def test_a_training_that_is_asked_to_end_goes_on_at_the_step(prepared):
    block = {"loader": "resident", "epochs": 60}  # of six steps
    flow = prepared(with_blocks({"one": block}, models={"blocks": ["one"]}))
    (record,) = flow.planned_records()
    cell = record.split("/")[-2]
    log, kept = (flow.folder / f"results/{part}/tiny/{cell}" for part in ("logs/train_model", "models"))
    log, target = log.with_name(f"{cell}.log"), f"results/models/tiny/{cell}/model.pt"

    def said(pattern: str) -> list[str]:
        with suppress(FileNotFoundError):  # a job that starts again has its log taken away first
            return re.findall(pattern, log.read_text())
        return []

    process = flow.start(target, "--retries", "1")
    wait_until(lambda: len(said("INFO epoch")) >= 2, 200)
    family = psutil.Process(process.pid).children(recursive=True)
    (job,) = (one for one in family if any("train_model" in word for word in words(one)[1:2]))
    job.terminate()  # it alone: Snakemake starts it again
    assert process.wait(200) == 0
    (step,) = map(int, said(r"resuming after step (\d+)"))
    assert 12 <= step < 360
    assert not list(kept.glob("checkpoint*"))
    assert [epoch["epoch"] for epoch in load(kept / "model.pt").about["epochs"]] == list(range(60))


def test_a_repeat_that_is_asked_to_end_and_then_killed_goes_on_and_is_no_timing(prepared):
    block = {"loader": "resident", "epochs": 120}  # of six steps
    flow = prepared(with_blocks({"one": block}, resume=True))
    (path,) = flow.planned_records()
    kept = flow.folder / path.replace("records", "checkpoints").removesuffix(".json") / "checkpoint.pt"
    log = flow.folder / path.replace("records", "logs/measure_cell").replace(".json", ".log")
    process = flow.start(path)
    wait_until(lambda: log.exists() and log.read_text().count("INFO epoch") >= 2, 200)
    os.killpg(process.pid, signal.SIGTERM)  # as Slurm does, to all processes of a job
    assert process.wait(120)
    (asked,) = map(int, re.findall(r"the state after step (\d+) is kept", log.read_text()))
    assert 12 <= asked < 720
    assert not (flow.folder / path).exists()

    before = kept.stat().st_mtime_ns
    flow.kill(flow.start(path), lambda: kept.stat().st_mtime_ns > before)
    assert not (flow.folder / path).exists()
    flow.run("--unlock")
    flow.run("--rerun-incomplete")
    record = Record.read(flow.folder / path)
    assert record.resumed[0] == asked
    assert asked < record.resumed[1] < 720
    assert record.resumed[1] % 200 == 0
    assert (record.throughput, len(record.epochs)) == (None, 120)
    assert not kept.parent.exists()
    assert "1 of 1 finished repeat went on" in (flow.folder / "results/report.html").read_text()
