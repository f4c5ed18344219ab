"""The benches of gpufeed.watch run on the CPU, on data that are made in a second."""

import json
import runpy
import sys

import pytest
import torch
from data_fixtures import REPOSITORY

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs a script of tests/bench in this process; returns its exit status and what it wrote."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations in two threads wait for each other on a busy machine

    def run(name, *options):
        path = tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", [name, str(path), *options])
        script = runpy.run_path(str(REPOSITORY / "tests/bench" / name), run_name="bench")
        return script["main"](), json.loads(path.read_text())

    yield run
    torch.set_num_threads(threads)


def test_overhead_is_measured_outside_bursts_and_their_cost_stated_apart(bench, capsys):
    few = ["--model", "tiny", "--side", "16", "--batch-size", "4", "--batches", "60", "--burst", "8"]
    status, found = bench("watch_overhead.py", "--device", "cpu", *few, "--blocks", "4", "--pairs", "6")
    overhead = found["overhead"]
    assert overhead["n"] == len(found["pairs"]) == 6
    assert overhead["low"] <= overhead["median"] <= overhead["high"]
    assert status == int(overhead["high"] >= 0.01)
    assert all(0 < seconds < 1 for pair in found["pairs"] for seconds in pair)
    assert found["bursts"]["n"] > 0
    assert found["held"]["batches"] == 8
    assert found["bursts"]["blocks"] > 0
    assert 0 <= found["epoch_ends"]["blocks"] <= found["steps"] // 60  # some may fall into a burst
    assert "n = 6 pairs" in capsys.readouterr().out


def test_watch_and_workflow_measure_the_same_cell_by_turns(bench, tmp_path, capsys):
    made = ["--data", str(tmp_path / "data"), "--dataset", "synthetic", "--count", "100", "--device", "cpu"]
    small = ["--model", "simple_cnn", "--batch-size", "2", "--runs", "2", "--pairs", "1", "--stretches", "1"]
    loaders = ["dataloader_sync", "resident", "torchvision_cuda"]
    status, found = bench("watch_against_workflow.py", *made, *small, "--loaders", *loaders)
    *measured, refused = found["cells"]
    assert "torchvision_cuda decodes on a CUDA GPU" in refused["sentence"]
    assert status == 1  # one was not measured
    for cell in measured:
        assert {side: len(runs) for side, runs in cell["runs"].items()} == {"workflow": 2, "watch": 2}
        assert cell["difference_points"] == pytest.approx(
            100 * (cell["mean"]["watch"] - cell["mean"]["workflow"])
        )
        for side in ("workflow", "watch"):
            assert all(0.05 < run["au"] < 3 for run in cell["runs"][side])
        watch = cell["runs"]["watch"][0]["watch"]
        assert watch["method"] == "stock_and_burst"
        assert watch["held"]["batches"] >= 4
        assert watch["held"]["cloned"]  # a loader of ours may use its memory again
    assert "points, n = 2 runs each" in capsys.readouterr().out
