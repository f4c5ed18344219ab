"""What each stage of a DataLoader takes: read, decode, transform, collate, and the copy to a GPU."""

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from inspect import getattr_static, isfunction
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpufeed.watch.batches import DEEPEST
from gpufeed.watch.signs import delay

BUDGET_S, BATCHES = 2.0, 8  # of the samples that are made, at most
TIMEOUT_S = 60  # of a worker that does not answer
COPIES = 5
SAMPLE, READ, DECODE, TRANSFORM, COLLATE = "sample", "read", "decode", "transform", "collate"
# names that say what a function of a dataset does: torchvision's `loader` and `transform`, and others' own
NAMES = {
    TRANSFORM: re.compile(r"(^|_)(transform|augment|preprocess|crop|resize|normali[sz]e)"),
    DECODE: re.compile(r"(^|_)(decode|imread|parse)"),
    READ: re.compile(r"(^|_)(read|load|fetch|open|download)"),
}


class Unmeasured(Exception):
    """The stages of this loader cannot be told apart; the message says why."""


class Timers:
    """Seconds and CPU seconds by kind of function; what one calls in turn counts for that one alone."""

    def __init__(self):
        self.spent: dict[str, list[float]] = {}
        self.inner: list[list[float]] = []

    def timed(self, kind: str, call: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.inner.append([0.0, 0.0])
            began = time.perf_counter(), time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                whole = time.perf_counter() - began[0], time.process_time() - began[1]
                inner, spent = self.inner.pop(), self.spent.setdefault(kind, [0.0, 0.0])
                for place in (0, 1):
                    spent[place] += whole[place] - inner[place]
                    if self.inner:
                        self.inner[-1][place] += whole[place]

        return update_wrapper(run, call, WRAPPER_ASSIGNMENTS, ())

    def put_in(self, dataset: Any) -> None:
        """Time the functions of a dataset, and of those inside it, whose names say what they do."""
        for _ in range(DEEPEST):
            if not hasattr(dataset, "__dict__"):
                break
            own = {name: one for name, one in vars(dataset).items() if callable(one)}
            methods = {
                name: getattr(dataset, name)
                for name in dir(type(dataset))
                if not name.startswith("__") and isfunction(getattr_static(type(dataset), name))
            }
            for name, call in (methods | own).items():
                kind = next((kind for kind, known in NAMES.items() if known.search(name)), None)
                if kind:
                    setattr(dataset, name, self.timed(kind, call))
            dataset = getattr(dataset, "dataset", None)


class Stages(Dataset):
    """One item: the times of all stages, measured where it is asked for. It holds the user's dataset."""

    def __init__(self, dataset: Any, collate: Callable, indices: Sequence[Sequence[int]]):
        self.dataset, self.collate, self.indices = dataset, collate, indices

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)  # a worker_init_fn may ask for more of it

    def __getitem__(self, _: int) -> dict[str, Any]:
        timers, rows, end = Timers(), [], time.perf_counter() + BUDGET_S
        timers.put_in(self.dataset)
        fetch = getattr(self.dataset, "__getitems__", None)
        one, many = (timers.timed(SAMPLE, call) for call in (self.dataset.__getitem__, fetch))
        collate = timers.timed(COLLATE, self.collate)
        for of_batch in self.indices:
            timers.spent, lost_s = {}, delay(os.getpid())
            if callable(fetch):
                samples = many(list(of_batch))
            else:
                samples = []
                for index in of_batch:
                    samples.append(one(index))
                    if time.perf_counter() > end:
                        break
            collate(samples)
            lost_s = 0.0 if lost_s is None else delay(os.getpid()) - lost_s
            times = len(of_batch) / len(samples)  # above one of a batch that was too slow to be whole
            found = {name: times * value for name, value in split(timers.spent, lost_s).items()}
            rows.append((lost_s, found))
            if time.perf_counter() > end:
                break
        rows.sort(key=lambda row: row[0])
        # those that other processes held up least
        quiet = [found for _, found in rows[: (len(rows) + 1) // 2]]
        seconds = {name: median(row[name] for row in quiet) for name in quiet[0]}
        return {"seconds": seconds, "batches": len(rows), "named": sorted(timers.spent.keys() & NAMES.keys())}


def split(spent: Mapping[str, Sequence[float]], lost_s: float) -> dict[str, float]:
    """Return the seconds of a batch's stages, as they are on a core of their own.

    spent: of each kind of function, seconds and CPU seconds. lost_s: in which there was no core for them, in
    proportion to their work. Where a function reads and may decode too, it reads while it waits.
    """
    whole = sum(cpu_s for _, cpu_s in spent.values()) or 1.0
    alone = {kind: max(cpu, wall - lost_s * cpu / whole) for kind, (wall, cpu) in spent.items()}
    found = dict.fromkeys((READ, DECODE, TRANSFORM, COLLATE), 0.0)
    for kind, seconds in alone.items():
        cpu_s = min(seconds, spent[kind][1])
        if kind in (SAMPLE, READ) and (kind == SAMPLE or DECODE not in spent):
            rest = TRANSFORM if kind == SAMPLE and TRANSFORM not in spent and len(spent) > 2 else DECODE
            found[READ] += seconds - cpu_s
            found[rest] += cpu_s
        else:
            found[kind] += seconds
    return found


def measure(loader: Any) -> dict[str, Any]:
    """Return the seconds that each stage takes for a batch; raise Unmeasured with a sentence.

    A worker process of its own makes some batches of the dataset, anew: this process's dataset, its order and
    its random states stay as they are.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        raise Unmeasured(f"a {type(loader).__name__} is no DataLoader over a map-style dataset")
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        raise Unmeasured("its batches have no fixed size")
    try:
        count = len(loader.dataset)
        drawn = random.Random(0).sample(range(count), min(count, size * BATCHES))
        indices = [drawn[start : start + size] for start in range(0, len(drawn), size)]
        stages = Stages(loader.dataset, loader.collate_fn, indices)
        with still():
            (found,) = DataLoader(
                stages,
                batch_size=None,
                num_workers=1,
                timeout=TIMEOUT_S,
                worker_init_fn=loader.worker_init_fn if loader.num_workers else None,
                multiprocessing_context=loader.multiprocessing_context if loader.num_workers else None,
                generator=torch.Generator(),
            )
    except Exception as error:  # the user's dataset, or a system that starts no process at its end
        said = str(error).strip().splitlines() or [""]
        raise Unmeasured(f"{type(error).__name__}: {said[-1]}") from error
    return found


@contextmanager
def still() -> Iterator[None]:
    """Within it nothing that is drawn in this process moves the random states that training uses."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def copies(size: int, pinned: bool, device: torch.device) -> tuple[float, float]:
    """Return the seconds to copy so many bytes to a GPU, from the loader's kind of memory and from pinned."""
    there = torch.empty(size, dtype=torch.uint8, device=device)
    found = []
    for pin in (pinned, True):
        here, seconds = torch.ones(size, dtype=torch.uint8, pin_memory=pin), []
        for _ in range(COPIES):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            there.copy_(here)
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
        found.append(median(seconds))
    return found[0], found[1]
