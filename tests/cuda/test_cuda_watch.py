"""What only a GPU can show of gpufeed.watch: equal losses, planted utilization, no waiting, forks."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
import watch_fixtures as fixtures
from data_fixtures import REPOSITORY
from torch.utils.data import DataLoader

import gpufeed

STEPS = 300


def watch(loader, **options):
    return gpufeed.watch(loader, **{"out": None, "quiet": True, **options})


def seeded(run):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    return run()


def bursts(watched) -> int:
    """How many bursts there were, those with a pause too: the machine may be busy."""
    watched.result()
    return sum(one["kind"] == "compute_only" for one in watched.record.done)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
def test_losses_of_a_plain_loop_are_equal_bit_by_bit(workers, pinned):
    def trained(loader):
        return fixtures.train(loader, 3, accumulate=4, device="cuda", scaled=True)

    def made():
        return fixtures.loader_of(100, workers=workers, pin_memory=pinned)

    unwatched, again = trained(made()), trained(made())
    assert unwatched == again
    watched = watch(made(), accumulate=4)
    assert trained(watched) == unwatched
    assert len(unwatched) == STEPS
    assert bursts(watched) >= 2
    assert watched.result()["held"]["cloned"] == (not pinned)


def test_losses_of_lightning_are_equal_bit_by_bit(tmp_path):
    pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
    import test_watch_losses

    def made():
        return fixtures.loader_of(test_watch_losses.STEPS, workers=2, pin_memory=True)

    unwatched = test_watch_losses.lightning_losses(made(), tmp_path, "gpu")
    watched = watch(made(), accumulate=2)
    assert test_watch_losses.lightning_losses(watched, tmp_path, "gpu") == unwatched
    assert len(unwatched) == STEPS
    assert bursts(watched) >= 2


def test_where_a_fetch_draws_on_the_gpu_nothing_is_held():
    def loader():
        for _ in range(150):
            yield torch.rand(4, 8, device="cuda")

    def run(batches):
        return [(batch.sum() + torch.rand((), device="cuda")).item() for batch in batches]

    torch.rand((), device="cuda")
    watched = watch(loader(), device="cuda")
    assert seeded(lambda: run(watched)) == seeded(lambda: run(loader()))
    found = watched.result()
    assert found["method"] == "between_batches"
    assert found["held"]["batches"] == 0
    assert "moves the GPU's random state" in found["verdict"]


@pytest.fixture(scope="module")
def cycles_a_second() -> float:
    """How fast torch.cuda._sleep counts, on a GPU that is warm."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for cycles in (10**9, 10**9):
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
    return 1e3 * 10**9 / start.elapsed_time(end)


def workers(seconds: float) -> DataLoader:
    data = fixtures.Sleeping(STEPS, 2 * seconds)
    return DataLoader(data, 1, num_workers=2, pin_memory=True)


def alone(seconds: float) -> DataLoader:
    return DataLoader(fixtures.Sleeping(STEPS, seconds), 1)


# loader, seconds that it needs a batch, seconds that the GPU needs a step, batches held at most
PLANTED = {
    "half": (workers, 0.020, 0.010, 32),
    "nearly fed": (workers, 0.020, 0.017, 32),
    "fed": (workers, 0.005, 0.030, 32),
    "in this process, while the GPU works": (alone, 0.005, 0.020, 32),
    "in this process, slower": (alone, 0.020, 0.010, 32),
    "nothing held": (alone, 0.020, 0.010, 0),
    "nothing held, fed": (alone, 0.005, 0.020, 0),
}
# after how many steps the loop waits for the device: after each, as for a loss, at times, or never
WAITS = {"half": (1, 40, 1000), "nearly fed": (1, 40, 1000), "fed": (1, 40, 1000)}


def seconds_a_batch(batches: Iterable) -> float:
    """Seconds a batch where nothing else is done; a loader's queue is empty by then."""
    epoch = iter(batches)
    for _ in range(10):
        next(epoch)
    began = time.perf_counter()
    for _ in range(100):
        next(epoch)
    return (time.perf_counter() - began) / 100


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "every"), [(name, one) for name in PLANTED for one in WAITS.get(name, (1000,))]
)
def test_utilization_of_a_planted_sleep_is_within_three_points(cycles_a_second, name, every):
    make, batch_s, step_s, burst = PLANTED[name]

    def trained(batches: Iterable) -> Iterator[None]:
        for step, batch in enumerate(batches, 1):
            batch.to("cuda", non_blocking=True)
            torch.cuda._sleep(int(step_s * cycles_a_second))
            if step % every == 0:
                torch.cuda.synchronize()
            yield

    # a loop that waits after each step takes longer for one than the GPU does
    alone_s = max(step_s, seconds_a_batch(trained([torch.zeros(1).pin_memory()] * 110)))
    truth = min(1.0, alone_s / seconds_a_batch(make(batch_s)))
    watched = watch(make(batch_s), burst=burst)
    for _ in trained(watched):
        pass
    found = watched.result()
    print(name, every, alone_s, truth, json.dumps({key: found[key] for key in ("au", "stretches")}))
    assert found["au"]["n"] >= 3
    assert found["au"]["value"] == pytest.approx(truth, abs=0.03)
    assert found["data_stall_share"] == pytest.approx(1 - truth, abs=0.05)
    assert found["compute_only"]["samples_per_second"] == pytest.approx(1 / alone_s, rel=0.05)
    assert found["device"] == torch.cuda.get_device_name()


@pytest.mark.alone
def test_nothing_waits_for_the_device(cycles_a_second):
    """All steps are asked for before the GPU has done half of them, where batches are on the host."""
    step_s, batches = 0.01, [torch.full((4, 8), float(number)) for number in range(330)]
    watched = watch(batches, device="cuda")
    seen = []
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in watched:
            torch.cuda._sleep(int(step_s * cycles_a_second))
            seen.append(batch.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert time.perf_counter() - began < len(batches) / 2 * step_s
    assert torch.stack(seen).tolist() == [32.0 * number for number in range(330)]
    found = watched.result()
    assert found["held"]["host_bytes"] == 32 * 4 * 8 * 4
    assert found["au"]["n"] >= 2
    assert found["au"]["value"] == pytest.approx(1.0, abs=0.03)


class MadeOnTheGpu(torch.utils.data.Dataset):
    """Batches that a second stream makes: 10 products of matrices each."""

    def __init__(self):
        self.side, self.factors = torch.cuda.Stream(), torch.rand(4096, 4096, device="cuda").bfloat16()

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.cuda.stream(self.side):
            self.multiply(10)
            batch = torch.ones(4, device="cuda")
        torch.cuda.current_stream().wait_stream(self.side)
        return batch

    def multiply(self, times: int) -> None:
        for _ in range(times):
            self.factors @ self.factors


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["generator", "DataLoader"])
def test_batches_that_the_gpu_makes_slow_down_the_end_to_end_steps_alone(kind):
    """The host runs ahead: without waits the GPU makes batches during steps that are said to have none."""
    data = MadeOnTheGpu()

    def loader():
        return DataLoader(data, None) if kind == "DataLoader" else (data[index] for index in range(STEPS))

    def seconds(batches):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in batches:
            data.multiply(50)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / STEPS

    seconds(range(STEPS))  # clocks
    alone, whole = seconds(range(STEPS)), seconds(loader())
    watched = watch(loader(), device="cuda")
    seconds(watched)
    found = watched.result()
    print(kind, alone, whole, json.dumps(found["stretches"]))
    assert (found["method"], found["au"]["n"] >= 2) == ("stock_and_burst", True)
    assert 4 / found["compute_only"]["samples_per_second"] == pytest.approx(alone, rel=0.02)
    assert found["au"]["value"] == pytest.approx(alone / whole, abs=0.02)


def test_device_batches_are_bounded_by_bytes():
    watched = watch([torch.zeros(256, device="cuda") for _ in range(200)], held_device_bytes=9 * 1024)
    for batch in watched:
        batch.add_(1)
    assert watched.result()["held"]["batches"] == 8


FORKS = """
import gc, os, sys
sys.path[:0] = ["tests/fixtures"]
import torch, watch_fixtures as fixtures, gpufeed
from torch.utils.data import DataLoader

class Collecting(fixtures.Sleeping):
    def __getitem__(self, index):
        if index % 10 == 0:
            gc.collect()
        return super().__getitem__(index)

def train(out):
    watched = gpufeed.watch(DataLoader(Collecting(300), 1, num_workers=2), out=out, device="cuda")
    for _ in range(2):
        for batch in watched:
            batch.to("cuda").sum()
    watched.cycle = [watched]  # garbage that only the collector finds, perhaps in a worker
    watched.loader.watched = watched

train(sys.argv[1])
for _ in range(3):
    assert sum(1 for _ in DataLoader(Collecting(100), 1, num_workers=2)) == 100
train(sys.argv[1])
if os.fork() == 0:
    gc.collect()
    gpufeed.watch([1, 2, 3], out=None, quiet=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_workers_forked_after_a_finished_watch_leave_its_events_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path / "watch.json")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr
    assert json.loads((tmp_path / "watch.json").read_text())["au"]["n"] >= 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_ranks_train_as_unwatched_and_measure_the_same_steps(tmp_path, monkeypatch):
    from gpufeed.training.distributed.launch_ranks import spread
    from gpufeed.training.distributed.rank_files import Call

    monkeypatch.chdir(tmp_path)
    ranks = spread(Call("test_watch_measures:losses_of_a_rank", {"device": "cuda"}, 2, "cuda", 1))
    for watched, unwatched, _ in ranks:
        assert watched == unwatched
    assert ranks[0][2] == ranks[1][2]
    assert {kind for kind, _, _ in ranks[0][2]} == {"end_to_end", "compute_only"}


@pytest.mark.parametrize("pinned", [False, True])
def test_stages_are_measured_beside_a_gpu_and_losses_stay(pinned):
    def made():
        return fixtures.loader_of(60, workers=2, pin_memory=pinned)

    watched = watch(made(), deep=True)
    assert fixtures.train(watched, 2, device="cuda") == fixtures.train(made(), 2, device="cuda")
    found = watched.result()
    assert found["stages"]["seconds"]["sample"] > 0
    assert found["copy_seconds"] > 0
    assert found["copy_seconds_pinned"] > 0


def test_a_loader_without_pinning_is_named():
    watched = watch([torch.zeros(2**25, dtype=torch.uint8)] * 60, burst=4)
    for batch in watched:
        batch.to("cuda").float().sum()
    found = watched.result()
    assert found["copy_seconds"] > 1.2 * found["copy_seconds_pinned"] > 0
    assert "pinning" in [one["name"] for one in found["causes"]]


class Repeated(torch.utils.data.Dataset):
    """Batches that take no time to make, in pinned memory; `size` bytes each."""

    def __init__(self, size: int):
        self.batch = torch.zeros(size, dtype=torch.uint8).pin_memory()

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


def named(size: int, step, **options) -> list[str]:
    """The names of the causes of a loop whose batches are copied to the GPU, and then `step` runs."""
    watched = watch(DataLoader(Repeated(size), None, pin_memory=True), burst=8, **options)
    for batch in watched:
        step(batch.to("cuda", non_blocking=True))
        torch.cuda.synchronize()
    return [one["name"] for one in watched.result()["causes"]]


@pytest.mark.alone
def test_a_copy_that_takes_most_of_a_step_is_named(cycles_a_second):
    assert "copy" in named(2**27, lambda batch: torch.cuda._sleep(int(1e-3 * cycles_a_second)))


@pytest.mark.alone
def test_no_loader_is_blamed_for_steps_of_many_small_kernels_or_of_a_busy_gpu(cycles_a_second):
    weights = torch.rand(8, 8, device="cuda")

    def small(batch):
        for _ in range(1000):
            weights.mul_(0.5)

    assert set(named(2**10, small)) <= {"nothing", "python"}
    assert named(2**10, lambda batch: torch.cuda._sleep(int(0.02 * cycles_a_second))) == ["nothing"]
