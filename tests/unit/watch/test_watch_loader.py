"""A watched loader is its loader: batches of any type, once and in order, attributes, errors and state."""

import dataclasses
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
import watch_fixtures as fixtures
from data_fixtures import REPOSITORY
from torch.utils.data import DataLoader, DistributedSampler
from watch_fixtures import watch

from gpufeed.watch import batches
from gpufeed.watch.loop import queue, settings


def numbers(loader, seen: list | None = None) -> list[float]:
    """The numbers of all batches. seen: where they are put, one by one."""
    seen = [] if seen is None else seen
    for batch in loader:
        seen.append(float(batch[0, 0]))
    return seen


Pair = namedtuple("Pair", "images labels")


@dataclasses.dataclass(frozen=True)
class Sample:
    images: torch.Tensor
    names: list


@dataclasses.dataclass(slots=True)
class SlotSample:
    images: torch.Tensor


class Slots:
    __slots__ = ("images",)

    def __init__(self, images):
        self.images = images


KINDS = {
    "tensor": lambda t: t,
    "array": lambda t: t.numpy(),
    "list": lambda t: [t, "a"],
    "tuple": lambda t: (t, t),
    "named tuple": lambda t: Pair(t, 1),
    "dict": lambda t: {"images": t, "inner": {"labels": t + 1}},
    "dataclass": lambda t: Sample(t, ["a", "b"]),
    "slots": Slots,
    "dataclass with slots": SlotSample,
    "number": lambda t: float(t[0]),
    "none": lambda t: None,
}


def flat(batch) -> list:
    return [leaf.tolist() if hasattr(leaf, "tolist") else leaf for leaf in batches.leaves(batch)]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_type_come_once_and_in_order_though_their_memory_is_used_again(kind):
    """The loader fills one buffer again and again, as DALI and ring buffers do."""

    def loader():
        buffer = torch.zeros(2)
        for number in range(150):
            buffer.fill_(number)
            yield KINDS[kind](buffer)

    watched = watch(loader())
    found = [(type(batch), flat(batch)) for batch in watched]
    assert found == [(type(batch), flat(batch)) for batch in loader()]
    assert watched.record.held["batches"] == 32
    assert watched.record.held["cloned"]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"number", "none"}))
def test_samples_and_bytes_of_a_batch_of_any_type_are_counted(kind):
    batch = KINDS[kind](torch.zeros(1000))
    assert batches.samples(batch) == 1000
    assert batches.held_bytes(batch)[0] >= 4000


def test_a_part_that_is_there_twice_stays_one():
    tensor = torch.ones(2)
    first, second = batches.clone((tensor, {"same": tensor}))
    assert first is second["same"]
    assert first is not tensor


def test_attributes_are_those_of_the_loader():
    loader = fixtures.loader_of(10)
    watched = watch(loader)
    assert len(watched) == 10
    for name in ("sampler", "batch_sampler", "dataset", "batch_size", "generator"):
        assert getattr(watched, name) is getattr(loader, name)
    watched.note = "set through"
    assert loader.note == "set through"
    assert not hasattr(watched, "state_dict")
    assert not hasattr(watched, "set_epoch")
    assert watch(watched) is watched


def test_workers_of_fastais_own_loader_are_known_unless_this_process_changes_their_batches():
    from fastai.data.core import TfmdDL

    def known(**more):
        loader = TfmdDL(list(range(64)), bs=4, num_workers=2, **more)
        of_queue = queue(loader)
        return of_queue, settings(loader, of_queue, 16)["persistent"]

    assert known() == ((2, 4), None)
    changes = {"after_batch": [lambda batch: batch]}
    assert known(**changes) == (None, False)
    assert known(**changes, device=torch.device("cuda")) == ((2, 4), None)
    assert queue(DataLoader(range(8), num_workers=1)) == (1, 2)


def test_lightning_asks_for_no_epoch_and_is_refused_a_loader_without_shares(monkeypatch):
    """On two ranks Lightning would leave its sampler alone: each would train on all samples."""
    from pytorch_lightning.trainer.connectors.data_connector import _check_dataloader_iterable

    watched = watch(fixtures.loader_of(10))
    _check_dataloader_iterable(watched, None, None)
    assert watched.record.epochs == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a RandomSampler on 2 ranks"):
        _check_dataloader_iterable(watched, None, None)
    data = fixtures.samples(16)
    _check_dataloader_iterable(watch(DataLoader(data, sampler=DistributedSampler(data, 2, 0))), None, None)


class Epochs:
    """A loader with an order for each epoch and a state, over a generator."""

    def __init__(self, count: int):
        self.count, self.epoch, self.done = count, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(self.count)
        while self.done < self.count:
            self.done += 1
            yield torch.full((2, 2), float(order[self.done - 1]))
        self.done = 0

    def state_dict(self) -> dict:
        return {"done": self.done}

    def load_state_dict(self, state: dict) -> None:
        self.done = state["done"]


def test_set_epoch_passes_through():
    watched, loader = watch(Epochs(40)), Epochs(40)
    for epoch in range(3):
        watched.set_epoch(epoch)
        loader.set_epoch(epoch)
        assert numbers(watched) == numbers(loader)


def test_a_state_is_that_of_the_last_batch_used_however_many_are_held():
    whole, held = numbers(Epochs(100)), []
    for stop in (1, 48, 49, 50, 65, 79, 80, 81, 99):  # around bursts, each of which holds batches
        watched = watch(Epochs(100))
        seen = iter(watched)
        used = [float(next(seen)[0, 0]) for _ in range(stop)]
        held.append(len(seen.held))
        resumed = watch(Epochs(100))
        resumed.load_state_dict(watched.state_dict())
        assert used + numbers(resumed) == whole
    assert max(held) == 31  # one of 32 is in use


def test_a_state_that_cannot_be_copied_ends_the_bursts():
    class Locked(Epochs):
        def state_dict(self) -> dict:
            return {"done": self.done, "lock": threading.Lock()}

    watched = watch(Locked(100))
    assert numbers(watched) == numbers(Epochs(100))
    assert "state could not be copied" in watched.result()["verdict"]


def test_an_early_break_begins_a_new_epoch():
    watched = watch(DataLoader(fixtures.Sleeping(100), 1))
    for stop in (1, 30, 60, 100):
        for number, batch in enumerate(watched, 1):
            assert batch[0, 0] == number - 1
            if number == stop:
                break
    assert numbers(watched) == list(range(100))
    assert watched.result()["epochs"] == 5


def test_an_epoch_may_begin_in_another_thread_while_a_batch_is_fetched():
    others = []

    class Loader:
        def __iter__(self):
            if not others:
                others.append(iter(watched))  # as another thread may
            yield from ten

    ten = [torch.full((2, 1), float(number)) for number in range(10)]
    watched = watch(Loader())
    assert numbers(watched) == numbers(others[0]) == [*range(10)]
    assert watched.result()["steps"] == 10  # those of the later epoch


def test_an_iterator_goes_on_after_a_break_where_the_loop_left_it():
    watched, seen = watch(iter(DataLoader(fixtures.Sleeping(100), 1))), []
    while len(seen) < 100:
        for batch in watched:
            seen.append(float(batch[0, 0]))
            if len(seen) % 7 == 0:
                break
    assert seen == list(range(100))


@pytest.mark.parametrize("position", [0, 5, 50, 70, 119])
def test_the_loaders_error_comes_unchanged_and_after_all_batches_before_it(position):
    class Broken(Exception):
        pass

    error = Broken("this one")

    def loader():
        for number in range(120):
            if number == position:
                raise error
            yield torch.full((1, 1), float(number))

    seen = []
    with pytest.raises(Broken) as caught:
        numbers(watch(loader()), seen)
    assert caught.value is error
    assert seen == list(range(position))


def test_an_interrupt_comes_at_once_and_no_batch_is_lost():
    class Interrupted:
        def __init__(self):
            self.numbers = iter(range(120))

        def __iter__(self):
            return self

        def __next__(self):
            number = next(self.numbers)
            if number == 60 and not interrupts:
                interrupts.append(number)
                self.numbers = iter([number, *self.numbers])
                raise KeyboardInterrupt
            return torch.full((1, 1), float(number))

    interrupts, seen = [], []
    epoch = iter(watch(Interrupted()))
    with pytest.raises(KeyboardInterrupt):
        numbers(epoch, seen)
    assert len(seen) < 60
    assert seen + numbers(epoch) == list(range(120))


def test_the_loops_error_passes_and_the_next_epoch_is_whole():
    def loop():
        for batch in watched:
            _ = 1 / (55 - int(batch[0, 0]))

    watched = watch(DataLoader(fixtures.Sleeping(100), 1))
    with pytest.raises(ZeroDivisionError):
        loop()
    assert numbers(watched) == list(range(100))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20, 70])
def test_an_iterable_may_be_short_and_say_a_wrong_length(count):
    class Wrong(list):
        def __len__(self):
            return 100

    watched = watch(Wrong(torch.full((1, 1), float(number)) for number in range(count)))
    for _ in range(2):
        assert numbers(watched) == list(range(count))
    found = watched.result()
    assert found["steps"] == 2 * count
    assert found["verdict"]


def test_an_iterable_without_length_has_none():
    watched = watch(torch.full((1, 1), float(number)) for number in range(100))
    with pytest.raises(TypeError):
        len(watched)
    assert bool(watched)
    assert numbers(watched) == list(range(100))


@pytest.mark.parametrize("bad", [3, None, torch.nn.Linear])
def test_what_is_no_iterable_is_refused(bad):
    with pytest.raises(TypeError, match="expected an iterable of batches"):
        watch(bad)


@pytest.mark.parametrize(
    "options", [{"accumulate": 0}, {"accumulate": 1.5}, {"burst": -1}, {"held_host_bytes": None}]
)
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="expected a whole number of at least"):
        watch([], **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_the_training():
    with pytest.raises(ValueError, match="torch finds no CUDA GPU here"):
        watch([], device="cuda")


def test_batches_that_take_gradients_to_the_loader_are_not_copied():
    weight = torch.nn.Parameter(torch.ones(2))
    watched = watch([(weight, weight * 2)] * 100)
    assert all(first is weight and second.grad_fn for first, second in watched)
    assert "gradients would not pass through a copy to the loader" in watched.result()["verdict"]


def test_nested_tensors_are_batches():
    watched = watch([torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])] * 100)
    assert sum(len(batch.unbind()) for batch in watched) == 200
    assert watched.result()["batch_samples"] == 2


def test_another_process_measures_anew():
    watched = watch(fixtures.loader_of(70), accumulate=2, burst=8)
    seen = numbers(labels[None, :] for _, labels in watched)
    again = pickle.loads(pickle.dumps(watched))
    assert (again.record.accumulate, again.record.burst, again.record.steps) == (2, 8, 0)
    again.generator.manual_seed(3)
    assert numbers(labels[None, :] for _, labels in again) == seen
    assert again.result()["steps"] == 70


def test_two_passes_at_once_are_both_whole():
    watched = watch(DataLoader(fixtures.Sleeping(100), 1))
    pairs = [(float(a[0, 0]), float(b[0, 0])) for a, b in zip(watched, watched, strict=True)]
    assert pairs == [(number, number) for number in range(100)]


DRAWS = {
    "Python's": random.random,
    "NumPy's": np.random.rand,
    "torch's": lambda: torch.rand(()).item(),
}


@pytest.mark.parametrize("whose", DRAWS)
def test_where_a_fetch_moves_a_random_state_nothing_is_held(whose):
    """Training draws from the same generator: with batches fetched ahead both would get other numbers."""

    class Augmented(fixtures.Sleeping):
        def __getitem__(self, index):
            return super().__getitem__(index) + DRAWS[whose]()

    def run(loader):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        return [(float(batch[0, 0]), DRAWS[whose]()) for batch in loader]

    loader = DataLoader(Augmented(200), 1)
    watched = watch(loader)
    assert run(watched) == run(loader)
    found = watched.result()
    assert found["held"]["batches"] == 0
    assert found["method"] == "between_batches"
    assert f"fetching a batch moves {whose} random state" in found["verdict"]
    assert found["au"]["n"] >= 4


def test_a_state_that_moves_late_ends_the_bursts():
    class Late(fixtures.Sleeping):
        def __getitem__(self, index):
            if index > 90:
                torch.rand(())
            return super().__getitem__(index)

    watched = watch(DataLoader(Late(300), 1))
    assert numbers(watched) == list(range(300))
    assert watched.result()["method"] == "between_batches"


def test_bytes_bound_what_is_held():
    def held(**limits):
        # 128 bytes a batch
        return fixtures.stepped(DataLoader(fixtures.Sleeping(1200), 8), **limits).result()

    assert held()["held"] == {"batches": 32, "host_bytes": 32 * 128, "device_bytes": 0, "cloned": True}
    assert held(held_host_bytes=1200)["held"]["batches"] == 8
    few = held(held_host_bytes=300)
    assert few["held"]["batches"] == 0
    assert "only 2 batches fit" in few["verdict"]
    assert held(burst=0)["method"] == "between_batches"


FORKED = """
import gc, os, sys, torch, gpufeed
sys.path[:0] = ["tests/fixtures"]
import watch_fixtures as fixtures
from torch.utils.data import DataLoader, DistributedSampler

class Forking(fixtures.Sleeping):
    def __getitem__(self, index):
        if index % 40 == 0:
            gc.collect()
        return super().__getitem__(index)

watched = gpufeed.watch(DataLoader(Forking(100), 1), out=sys.argv[1])
epoch = iter(watched)
seen = [float(next(epoch)[0, 0]) for _ in range(60)]
if os.fork() == 0:  # goes on by itself, measures and writes nothing
    seen += [float(batch[0, 0]) for batch in epoch]
    seen += [float(batch[0, 0]) for batch in watched]
    sys.exit(seen != [*range(100), *range(100)])
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.slow
def test_a_forked_process_goes_on_and_writes_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "watch.json")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gpufeed.watch") == 1  # the table of the parent
    assert json.loads((tmp_path / "watch.json").read_text())["steps"] == 60
    assert [path.name for path in tmp_path.iterdir()] == ["watch.json"]
