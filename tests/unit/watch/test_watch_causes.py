"""Causes from what was seen."""

import random
import time

import pytest
import torch
import watch_fixtures as fixtures
from torch.utils.data import DataLoader, Dataset

from gpufeed.watch import causes, stages
from gpufeed.watch.signs import CPU_EVERY, MOST, Look, Signs, slope

MIB = 2**20


def found(au: float = 0.5, step_s: float = 0.01, **more) -> dict:
    """A result of 20 pairs of stretches of batches of 8."""
    end = {"samples_per_second": 8 * au / step_s}
    growth = dict.fromkeys(
        ("host_bytes_per_step", "fetch_seconds_per_step"), dict.fromkeys(("value", "low", "high"))
    )
    return {
        "au": {"value": au, "low": au - 0.01, "high": au + 0.01, "n": 20},
        "end_to_end": end,
        "batch_samples": 8,
        "data_stall_share": 1 - au,
        "epoch_start_seconds": [0.3],
        "copy_seconds": None,
        "copy_seconds_pinned": None,
        "growth": growth,
        "stages": None,
    } | more


def signs(**loader) -> Signs:
    settings = {"workers": 0, "ahead": 0, "persistent": True, "pinned": False, "host_bytes": MIB}
    return Signs(
        loader=settings | loader,
        fetches=[(step, step, 0.01, False) for step in range(200)],
        bodies=[0.01] * 200,
    )


def named(result: dict, seen: Signs, device: str = "cpu") -> dict[str, dict]:
    return {one["name"]: one for one in causes.diagnosis(result, seen, device)["causes"]}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(causes, "cores_allowed", lambda: 4)


@pytest.mark.parametrize("batches", [1, 5, 7, 8, 14, 140])
def test_cpu_time_is_read_as_often_at_each_batch_of_an_epoch_and_as_far_back_as_bodies_are_kept(batches):
    seen, read, epochs = Signs(look_at=float("inf")), dict.fromkeys(range(batches), 0), 9 * MOST // batches
    for number in range(epochs * batches):
        seen.enter(0, ())
        seen.fetch(0, number % batches, False, 0.0)
        seen.leave()
        read[number % batches] += seen.left[1] is not None
    assert min(read.values()) == pytest.approx(epochs / CPU_EVERY, rel=0.2)
    assert max(read.values()) == pytest.approx(epochs / CPU_EVERY, rel=0.2)
    assert MOST <= len(seen.bodies) <= 2 * MOST
    assert MOST // CPU_EVERY <= len(seen.worked) <= 2 * (MOST // CPU_EVERY)


def looks(seen: Signs, workers: int, cpu_s: float, delay_s: float = 0.0) -> Signs:
    """With workers that took so much CPU time, and waited so long for a core, for each of ten batches."""
    pids = tuple(range(workers))
    seen.looks = [
        Look(10 * n, 10 * n, 0.2 * n, pids, 10 * n * cpu_s, 10 * n * delay_s, 100 * MIB) for n in (0, 1, 2)
    ]
    return seen


def staged(**seconds) -> dict:
    return {"seconds": dict.fromkeys(causes.CHANGES, 0.0) | seconds, "batches": 8, "named": []}


@pytest.mark.parametrize(
    ("workers", "cpu_s", "stage", "expected"),
    [
        (0, None, None, ["workers"]),
        (0, None, "read", ["read", "workers"]),
        (2, 0.02, None, ["workers"]),  # four cores suffice
        (2, 0.02, "decode", ["workers", "decode"]),
        (2, 0.07, "decode", ["decode", "workers"]),  # they do not
        (4, 0.07, "decode", ["decode"]),
        (4, 0.07, None, ["cores"]),
        (16, 0.07, "decode", ["cores", "decode"]),
        (16, 0.01, "read", ["read", "workers"]),  # they wait
        (None, None, None, ["loader"]),
    ],
)
def test_a_slow_loader_has_the_cause_that_its_workers_show(workers, cpu_s, stage, expected):
    seen = signs(workers=workers)
    if cpu_s is not None:
        looks(seen, workers, cpu_s)
    result = found(stages=stage and staged(**{stage: 0.03}))
    assert list(named(result, seen)) == expected
    assert all(1 < one["at_most"] <= 2.0001 for one in named(result, seen).values())


def test_first_workers_go_ahead_of_a_stage_that_is_one_of_two():
    two = staged(transform=0.0152, decode=0.0148)
    assert list(named(found(1 / 3, stages=two), signs())) == ["workers", "transform"]
    one = staged(transform=0.028, decode=0.002)
    assert list(named(found(1 / 3, stages=one), signs())) == ["transform", "workers"]


@pytest.mark.parametrize(("step_cpu_s", "first", "gains"), [(0.0, "workers", 2.0), (0.01, "decode", 4 / 3)])
def test_a_step_that_keeps_a_core_busy_leaves_more_workers_less(monkeypatch, step_cpu_s, first, gains):
    """A step of 10 ms and decoding of 20 ms in one worker: two cores have 20 or 30 ms of work for a batch."""
    monkeypatch.setattr(causes, "cores_allowed", lambda: 2)
    seen = looks(signs(workers=1), 1, 0.02)
    seen.worked = [(0.01, step_cpu_s)] * 20
    told = named(found(0.5, stages=staged(decode=0.02)), seen)
    assert next(iter(told)) == first
    assert told.get("workers", {"at_most": gains})["at_most"] == pytest.approx(gains)


def test_workers_that_wait_are_not_short_of_cores_whatever_their_work_would_need():
    seen = looks(signs(workers=16), 16, 0.07)  # 17 ms on four cores, of the 100 ms between two batches
    assert list(named(found(0.1, stages=staged(read=0.03)), seen)) == ["read", "workers"]


@pytest.mark.parametrize(("workers", "there"), [(2, True), (32, False)])
def test_a_batch_in_thirty_is_late_by_a_slow_sample_unless_each_worker_is_late_in_its_turn(workers, there):
    seen = signs(workers=workers)
    seen.fetches = [(step, step, 2.0 * (step % 30 == 0), False) for step in range(300)]
    assert ("slow sample" in named(found(0.9), seen)) is there


def test_more_workers_are_as_many_as_the_steps_need_and_cores_are():
    none = named(found(2 / 3), signs(persistent=False))["workers"]
    assert "num_workers=1, persistent_workers=True)" in none["change"]  # a batch takes half a step
    few = named(found(0.5), looks(signs(workers=1), 1, 0.01))["workers"]
    assert "num_workers=2)" in few["change"]
    assert few["at_most"] == pytest.approx(2)
    many = named(found(0.1), looks(signs(workers=1), 1, 0.01))["workers"]
    assert "num_workers=4)" in many["change"]
    assert many["at_most"] == pytest.approx(4)


@pytest.mark.parametrize(
    "more", [{"au": 0.95}, {"data_stall_share": 0.01}, {"au": 0.9, "data_stall_share": 0.0}]
)
def test_a_loss_that_is_small_or_not_waited_for_is_no_cause_of_the_loader(more):
    assert "workers" not in named(found(**more), signs())


def test_a_loader_whose_queue_is_full_is_not_blamed():
    seen = signs(workers=2)
    seen.full = [0.9] * 5
    assert named(found(0.85), seen) == {}


@pytest.mark.parametrize(
    ("more", "late", "there"),
    [
        ({}, 0.0, True),
        ({"au": {"value": 0.97, "low": 0.5, "high": 1.1, "n": 11}}, 0.0, False),  # nobody knows
        ({}, 0.5, False),  # a median does not show what a few fetches cost
    ],
)
def test_nothing_is_to_gain_only_where_that_is_sure(more, late, there):
    seen = signs(workers=2)
    seen.fetches = [(step, step, late * (step % 100 == 0), False) for step in range(200)]
    seen.bodies = [0.01] * 200
    seen.bodies[20] = seen.bodies[90] = late  # the machine was busy: no sample is to blame
    end = {"end_to_end": {"samples_per_second": 8 * 0.97 / 0.01}}
    told = causes.diagnosis(found(0.97) | end | more, seen, "cpu")["causes"]
    assert [one["name"] for one in told] == (["nothing"] if there else [])


def test_a_small_loss_of_too_few_pairs_is_no_cause():
    few = {"au": {"value": 0.88, "low": None, "high": None, "n": 3}}
    assert "workers" not in named(found(0.88) | few, signs())
    assert "workers" in named(found(0.5) | {"au": few["au"] | {"value": 0.5}}, signs())


def test_a_few_late_batches_are_slow_samples_unless_steps_are_late_too():
    seen = signs(workers=2)
    seen.fetches = [(step, step, 0.5 if step in (70, 150) else 0.0005, False) for step in range(200)]
    slow = named(found(0.99), seen)["slow sample"]
    assert slow["seen"]["late_batches"] == 2
    assert slow["at_most"] == pytest.approx(1 / (1 - 0.999 / 3.1), rel=0.02)
    seen.bodies[20] = seen.bodies[90] = 0.5
    assert "slow sample" not in named(found(0.99), seen)


@pytest.mark.parametrize(
    ("persistent", "start_s", "there"),
    [(False, 0.2, True), (None, 0.2, True), (True, 0.2, False), (False, 0.03, False)],
)
def test_workers_that_start_anew_cost_each_epoch_but_the_first(persistent, start_s, there):
    seen = signs(workers=2, persistent=persistent)
    seen.fetches, seen.epoch_s = [(1, 1, 0.001, False)], [2.0] * 4
    causes_now = named(found(0.99, epoch_start_seconds=[1.9] + [start_s] * 3), seen)
    assert ("epoch start" in causes_now) == there
    if there:
        assert causes_now["epoch start"]["seen"]["share_of_epoch"] == pytest.approx(0.0995)
        assert ("persistent_workers" in causes_now["epoch start"]["change"]) == (persistent is False)


def grows(seconds, epoch: int = 300, delay_s: float = 0.0) -> dict[str, dict]:
    seen = looks(signs(workers=1), 1, 0.01, delay_s)
    seen.fetches = [(step, step % epoch, seconds(step % epoch), False) for step in range(300)]
    return named(found(0.5, growth=seen.growth()), seen)


def test_a_loader_that_gets_slower_is_named_and_one_that_is_slow_or_hiccups_is_not():
    growth = grows(lambda step: 1e-4 * max(0, step - 50))
    assert next(iter(growth)) == "growth"
    assert growth["growth"]["seen"]["last_third_seconds"] == pytest.approx(0.02, rel=0.02)
    assert next(iter(grows(lambda step: 1e-4 * max(0, step - 10), epoch=75))) == "growth"
    assert "growth" not in grows(lambda step: 1e-4 * step, delay_s=0.5)  # others take the cores
    assert "growth" not in grows(lambda step: 0.01)
    assert "growth" not in grows(lambda step: 0.01 if step < 150 else 0.02)  # a busy machine
    assert "growth" not in grows(lambda step: 0.3 if step > 290 else 0.01)


@pytest.mark.parametrize(
    ("mib", "there"),
    [(lambda n: 1000 + 10 * n, True), (lambda n: 1000 + 500 * (n > 20), False), (lambda n: 1000.0, False)],
)
def test_memory_that_grows_all_the_time_is_named(mib, there):
    seen = signs()
    seen.looks = [Look(20 * n, 20 * n, n, (), 0.0, None, int(mib(n) * MIB)) for n in range(40)]
    causes_now = named(found(0.99, growth=seen.growth()), seen)
    assert ("memory" in causes_now) == there
    if there:
        assert causes_now["memory"]["seen"]["bytes_per_step"] == pytest.approx(MIB / 2)


def test_a_small_shm_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(causes, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(causes.shutil, "disk_usage", lambda _: type("Usage", (), {"total": 64 * MIB}))
    assert "shared memory" in named(found(0.99), signs(workers=4, ahead=40))
    assert "shared memory" not in named(found(0.99), signs(workers=4, ahead=8))


def test_pinning_is_named_on_a_gpu_where_it_would_save_time():
    copied = {"copy_seconds": 0.004, "copy_seconds_pinned": 0.001}
    assert named(found(0.99, **copied), signs(), "cuda")["pinning"]["at_most"] == pytest.approx(
        1.43, abs=0.02
    )
    assert "pinning" not in named(found(0.99, **copied), signs(pinned=True), "cuda")
    assert "pinning" not in named(found(0.99, **copied), signs(), "cpu")
    assert "copy" in named(
        found(0.99, copy_seconds=0.004, copy_seconds_pinned=0.004), signs(pinned=True), "cuda"
    )


class Wrapped(DataLoader):
    """As accelerate's: its iterator is a generator, which shows no workers."""

    def __iter__(self):
        yield from super().__iter__()


class Busy(Dataset):
    """Samples that keep a core busy."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return index


@pytest.mark.parametrize("kind", [DataLoader, Wrapped])
def test_the_workers_cpu_time_is_seen(kind):
    watched = fixtures.stepped(kind(Busy(), 4, num_workers=1), burst=4)
    cpu_s, delayed = watched.record.signs.per_batch()
    assert cpu_s == pytest.approx(0.02, rel=0.5)
    assert delayed is None or delayed < 1
    assert all(one.memory > 10 * MIB for one in watched.record.signs.looks)


def test_a_long_training_is_judged_in_no_time():
    seen = signs(workers=2)
    for step in range(20_000):
        seen.fetch(step, step + 1, step % 3 == 0, random.Random(step).random())
    began = stages.time.process_time()
    named(found(0.5, growth=seen.growth()), seen)
    assert len(seen.fetches) < 10_000
    assert stages.time.process_time() - began < 1


def test_the_end_of_an_epoch_takes_no_time_after_many_stretches():
    watched = fixtures.stepped([torch.ones(1)] * 60_000, burst=0)
    began = stages.time.process_time()
    result = watched.result()
    assert stages.time.process_time() - began < 0.5
    assert result["au"]["n"] > 900


def test_a_slope_has_an_interval():
    line = slope([(step, 3.0 * step + random.Random(step).random()) for step in range(100)])
    assert line["value"] == pytest.approx(3, abs=0.02)
    assert 2.9 < line["low"] < line["value"] < line["high"] < 3.1
    assert slope([(0, 1.0)])["value"] is None
