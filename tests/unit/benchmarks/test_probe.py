"""Probes of real trainings on the CPU: planted bottlenecks, and what their documents must hold."""

import os
import signal
from types import SimpleNamespace

import ceilings_fixtures as made
import numpy as np
import pytest
import torch
from image_fixtures import request, write_dataset

from gpufeed.advice.rate_model import COMPUTE, HOST, predicted
from gpufeed.benchmarks import probe as probes
from gpufeed.benchmarks.probe import InputPass, first_batches, in_rounds, probe
from gpufeed.core.record import PROBE
from gpufeed.core.registry import load
from gpufeed.loaders.base import Batch, OrderedLoader
from gpufeed.training.runtime_context import Stores

IMAGES = 5  # of a batch


@pytest.fixture
def probed(tmp_path, monkeypatch):
    """The probe of a cell on the tiny dataset, checked against the schema. Sleeps alone move the clock."""
    made.register(monkeypatch)
    manifest = write_dataset(tmp_path / "tiny").root / "manifest.parquet"
    threads = torch.get_num_threads()

    def probed(**axes):
        made.TickingClock(monkeypatch)
        found = probe(made.planted(**axes), manifest, Stores(), "login1", threads=1)
        PROBE.check(found, tmp_path)
        return found

    yield probed
    torch.set_num_threads(threads)


def test_a_loader_that_does_not_work_ahead_adds_its_seconds_to_the_steps(probed):
    found = probed(loader="ThrottledLoader")
    rate = predicted({**found, "compute": {**found["compute"], "cpu_s": 0}, "cores": 1})
    assert rate["bound"] == HOST
    # 23 images in five batches; steps and copies take their time whatever is in a batch
    assert rate["median"] == pytest.approx(23 / (5 * (made.STEP_S + made.SLOW_S)), rel=0.05)
    assert not found["works_ahead"]
    assert found["images"] == 23


def test_a_late_first_batch_is_a_start_and_no_part_of_a_round(probed, monkeypatch):
    monkeypatch.setattr(probes, "ROUND_S", 0.0)
    found = probed(loader="LateLoader")
    assert {round(start["first_batch_s"], 2) for start in found["input"]["starts"]} == {20 * made.SLOW_S}
    assert max(one["seconds"] for one in found["input"]["rounds"]) < made.STEP_S
    assert found["compute"]["host_s"] == pytest.approx(made.STEP_S / IMAGES, rel=0.01)
    both = found["together"]
    assert {round(start["first_batch_s"], 2) for start in both["starts"]} == {20 * made.SLOW_S}
    assert len(both["starts"]) > 1  # of epochs
    assert max(one["seconds"] / one["images"] for one in both["rounds"]) < 2 * made.STEP_S / IMAGES
    assert predicted(found)["median"] == pytest.approx(23 / (20 * made.SLOW_S + 5 * made.STEP_S), rel=0.02)


def test_a_slow_model_binds(probed, monkeypatch):
    monkeypatch.setattr(probes, "ROUND_S", 0.0)
    found = probed(loader="EasyLoader", model="SlowModel")
    free = {**found, "works_ahead": True, "input": {**found["input"], "main_s": 0, "cpu_s": 0}}
    free["compute"] = {**free["compute"], "cpu_s": 0}
    assert predicted(free)["bound"] == COMPUTE
    assert predicted(free)["median"] == pytest.approx(23 / (5 * made.SLOW_S), rel=0.02)


def test_a_loader_that_keeps_on_trains_on_whole_epochs(probed, monkeypatch):
    monkeypatch.setattr(probes, "ROUND_S", 0.0)
    found = probed(loader="KeepsOnLoader")
    assert found["status"] == "done", found["sentence"]
    assert [start["lead_images"] for start in found["together"]["starts"]] == [0]
    assert predicted(found)["median"] == pytest.approx(23 / (5 * made.STEP_S), rel=0.1)


def test_what_stops_a_probe_is_a_sentence(probed):
    found = probed(loader="torchvision_cuda")
    assert (found["status"], found["compute"]) == ("skipped", None)
    assert "CUDA" in found["sentence"]


class SleeplessLoader(OrderedLoader):
    """Counts the batches that it makes."""

    made = 0

    def batches(self, order: np.ndarray):
        for start in range(0, len(order), self.request.batch_size):
            ids = torch.from_numpy(order[start : start + self.request.batch_size])
            self.made += 1
            yield Batch(ids, ids, ids, 0.0)


def rows(*epochs):
    """Steps of ten images, of so many seconds."""
    of = [(number, seconds) for number, epoch in enumerate(epochs) for seconds in epoch]
    return [{"epoch": n, "images": 10, "wait_ms": 500 * s, "total_ms": 1000 * s} for n, s in of]


def test_first_steps_of_an_epoch_are_its_start_and_the_others_rounds():
    of = rows((9, 1, 2, 2, 2, 2), (5, 3, 2, 2, 2, 2))
    found = in_rounds(of, lead=2, keeps_on=False)
    assert found["starts"] == [
        {"first_batch_s": 4.5, "lead_s": 10.0, "lead_images": 20},
        {"first_batch_s": 2.5, "lead_s": 8.0, "lead_images": 20},
    ]
    assert [one["images"] for one in found["rounds"]] == [20, 20, 10, 10, 10, 10]
    assert {one["seconds"] / one["images"] for one in found["rounds"]} == {0.2}


def test_a_loader_that_keeps_on_has_one_start_which_is_left_out():
    found = in_rounds(rows((9, 9, 2), (2, 2, 2), (2, 2, 2)), lead=2, keeps_on=True)
    assert found["starts"] == [{"first_batch_s": 0.0, "lead_s": 0.0, "lead_images": 0}]
    assert sum(one["images"] for one in found["rounds"]) == 70
    assert {one["seconds"] / one["images"] for one in found["rounds"]} == {0.2}


def test_an_epoch_longer_than_its_rounds_is_left_and_the_next_one_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "ROUND_S", 0.0)
    manifest = write_dataset(tmp_path / "tiny")
    loader = SleeplessLoader(request(manifest, None, batch_size=1))
    assert len(first_batches(loader, 2).images) == 1
    assert (loader.made, loader.epoch, loader.next_batch) == (2, 1, 0)
    found = InputPass(loader, ahead=3).run()
    # three epochs, in each what is made ahead and two rounds of one batch
    assert (len(found["starts"]), loader.made, loader.epoch) == (3, 2 + 3 * 5, 4)
    assert [start["lead_images"] for start in found["starts"]] == [3] * 3
    assert [one["images"] for one in found["rounds"]] == [1] * 6


def test_short_epochs_are_taken_whole(tmp_path, monkeypatch):
    clock = made.TickingClock(monkeypatch)
    manifest = write_dataset(tmp_path / "tiny")
    with load("loader", "dataloader_sync")(request(manifest, None, batch_size=12)) as loader:
        monkeypatch.setattr(type(loader), "batches", slow(type(loader).batches, clock))
        found = InputPass(loader, ahead=1).run()
    # two batches an epoch of 0.2 s each, of which the first was made ahead: three epochs a round of 0.5 s
    assert len(found["starts"]) == 18
    assert [one["images"] for one in found["rounds"]] == [33] * 6
    assert found["rounds"][0]["seconds"] == pytest.approx(0.6, rel=0.01)


def slow(batches, clock):
    def taken(self, order):
        for batch in batches(self, order):
            clock.sleep(0.2)
            yield batch

    return taken


def test_a_process_that_dies_leaves_a_document(tmp_path, monkeypatch):
    monkeypatch.setattr(probes, "probe", lambda *given, **asked: os.kill(os.getpid(), signal.SIGKILL))
    kept = []
    job = SimpleNamespace(
        cell=made.planted(),
        input=SimpleNamespace(manifest=None),
        output=SimpleNamespace(probe=None),
        params=SimpleNamespace(attempt=2),
        wildcards=SimpleNamespace(cell="c"),
        stores=None,
        common_arguments={},
        planned_on="login1",
        take_gpus=lambda *given: None,
        watch=lambda: None,
        write_document=lambda *given: kept.append(given),
    )
    probes.for_job(job)
    ((found, *_),) = kept
    assert (found["status"], found["attempt"], found["compute"]) == ("failed", 2, None)
    assert found["sentence"] == "The probe's process died (signal SIGKILL)."
    PROBE.check(found, tmp_path)
