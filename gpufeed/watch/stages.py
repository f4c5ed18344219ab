"""Measure how long each stage of a DataLoader takes: read, decode, transform, collate, and the copy
to a GPU.
"""

import logging
import os
import random
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import WRAPPER_ASSIGNMENTS, reduce, update_wrapper
from inspect import getattr_static, isfunction, isroutine
from itertools import islice
from multiprocessing import get_all_start_methods
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpufeed.watch.batches import DEEPEST, PLAIN
from gpufeed.watch.signs import delay

BUDGET_S, BATCHES = 2.0, 8  # most time and batches
TIMEOUT_S = 60  # for a worker that does not answer
COPIES = 5
LOOKED_INTO = 64  # parts of each container to search for open files
SAMPLE, READ, DECODE, TRANSFORM, COLLATE = "sample", "read", "decode", "transform", "collate"
HARMLESS = (*PLAIN, type, torch.Tensor, torch.Generator, np.ndarray, ModuleType, logging.Logger)
HARMLESS = (*HARMLESS, weakref.ref, type(threading.Lock()), type(threading.RLock()))
IMAGE = "image"  # a library's function that reads and decodes
# names of a dataset's functions that say what they do: torchvision's `loader` and `transform`, and others
NAMES = {
    TRANSFORM: re.compile(r"(^|_)(transform|aug|tfm|preprocess|crop|resize|normali[sz]e)"),
    DECODE: re.compile(r"(^|_)(decode|imread|parse)"),
    READ: re.compile(r"(^|_)(read|load|fetch|open|download)"),
}
# functions of libraries, wherever a dataset calls them: module, name, kind
LIBRARIES = (
    ("PIL.ImageFile", "ImageFile.load", IMAGE),
    ("cv2", "imread", IMAGE),
    ("cv2", "imdecode", IMAGE),
    ("torchvision.io", "decode_image", IMAGE),
    ("torchvision.io", "decode_jpeg", IMAGE),
    ("torchvision.io", "read_image", IMAGE),
    ("torchvision.transforms", "Compose.__call__", TRANSFORM),
    ("torchvision.transforms.v2", "Compose.forward", TRANSFORM),
    ("albumentations", "Compose.__call__", TRANSFORM),
)


class Unmeasured(Exception):
    """The stages of this loader cannot be separated; the message says why."""


class Timers:
    """Seconds and CPU seconds by kind of function; nested calls count for the inner function alone."""

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
        """Wrap functions of libraries, and those of a dataset and of datasets inside it that NAMES knows."""
        for module, name, kind in LIBRARIES:
            *owners, name = name.split(".")
            try:
                owner = reduce(getattr, owners, sys.modules[module])
                call = getattr(owner, name)
            except (KeyError, AttributeError):
                continue  # not imported, or another version
            timed = self.timed(kind, call)
            setattr(owner, name, timed)
            for holder in list(sys.modules.values()) if not owners else ():
                if getattr(holder, "__dict__", {}).get(name) is call:  # imported by `from`
                    setattr(holder, name, timed)
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
    """A dataset whose one item is the times of all stages, measured in the worker. It holds the
    user's dataset.
    """

    def __init__(self, dataset: Any, collate: Callable, indices: Sequence[Sequence[int]]):
        self.dataset, self.collate, self.indices = dataset, collate, indices

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)  # a worker_init_fn may read other attributes

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("dataset", "collate", "indices"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.dataset, name, value)  # or set them, such as an open file

    def __getitem__(self, _: int) -> dict[str, Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        first = self.indices[0][0]
        _ = fetch([first]) if callable(fetch) else self.dataset[first]  # it may import what it decodes with
        timers, rows, end = Timers(), [], time.perf_counter() + BUDGET_S
        timers.put_in(self.dataset)
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
            times = len(of_batch) / len(samples)  # above one for a batch that was cut short
            found = {name: times * value for name, value in split(timers.spent, lost_s).items()}
            rows.append((lost_s, found))
            if time.perf_counter() > end:
                break
        rows.sort(key=lambda row: row[0])
        # the half that other processes delayed least
        quiet = [found for _, found in rows[: (len(rows) + 1) // 2]]
        seconds = {name: median(row[name] for row in quiet) for name in quiet[0]}
        return {"seconds": seconds, "batches": len(rows), "named": sorted(timers.spent.keys() & NAMES.keys())}


def split(spent: Mapping[str, Sequence[float]], lost_s: float) -> dict[str, float]:
    """Return the seconds of a batch's stages as if they had a core of their own.

    spent: for each kind of function, seconds and CPU seconds. lost_s: seconds without a core, which are
    shared out in proportion to CPU time. Functions that may both read and decode count as reading while they
    wait. Other work of the dataset counts as work on a sample.
    """
    whole = sum(cpu_s for _, cpu_s in spent.values()) or 1.0
    alone = {kind: max(cpu, wall - lost_s * cpu / whole) for kind, (wall, cpu) in spent.items()}
    found = dict.fromkeys((READ, DECODE, TRANSFORM, SAMPLE, COLLATE), 0.0)
    for kind, seconds in alone.items():
        cpu_s = min(seconds, spent[kind][1])
        if kind in (SAMPLE, IMAGE) or (kind == READ and DECODE not in spent):
            found[READ] += seconds - cpu_s
            found[SAMPLE if kind == SAMPLE else DECODE] += cpu_s
        else:
            found[kind] += seconds
    return found


def unshared(part: Any, depth: int = DEEPEST) -> str | None:
    """Return the type of an object in a dataset that two processes must not share, such as an open file.

    Files, sockets, databases and shared counters have a descriptor, or refuse to be pickled.
    """
    if not depth or isinstance(part, HARMLESS) or isroutine(part):
        return None
    if isinstance(part, Mapping):
        parts: Any = part.values()
    elif isinstance(part, (list, tuple, set, frozenset)):
        parts = part
    elif hasattr(part, "fileno"):
        return type(part).__name__
    else:
        own = (getattr_static(part, name, None) for name in ("__getstate__", "__reduce__", "__reduce_ex__"))
        try:
            if not any(map(isfunction, own)):  # the user's own may be slow, or close files
                part.__reduce_ex__(4)
        except Exception:
            return None if type(part).__name__ == "ImagingCore" else type(part).__name__  # pixels of Pillow
        parts = getattr(part, "__dict__", {}).values()
    return next(filter(None, (unshared(one, depth - 1) for one in islice(parts, LOOKED_INTO))), None)


def measure(loader: Any) -> dict[str, Any]:
    """Return the seconds that each stage takes for a batch; raise Unmeasured with a sentence.

    A separate worker process makes some batches again, so that this process's dataset, order and random
    states stay unchanged.
    """
    if not isinstance(loader, DataLoader):
        raise Unmeasured(f"the loader is a {type(loader).__name__}; only those of a DataLoader are measured")
    if isinstance(loader.dataset, IterableDataset):
        raise Unmeasured("an IterableDataset yields samples in its own order and has none by index")
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not isinstance(size, int):
        raise Unmeasured("its batches have no fixed size")
    context = loader.multiprocessing_context
    if not loader.num_workers:
        # the dataset may not be made for another process, nor the script for being imported again
        if not sys.platform.startswith("linux") or "fork" not in get_all_start_methods():
            raise Unmeasured("with num_workers=0 they are measured on Linux alone")
        if kind := unshared(loader.dataset):
            raise Unmeasured(f"the dataset holds a {kind}, which a second process must not use")
        context = "fork"
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
                multiprocessing_context=context,
                generator=torch.Generator(),
            )
    except Exception as error:  # of the user's dataset, or if no process can be started any more
        said = str(error).strip().splitlines() or [""]
        known = said[-1].startswith(f"{type(error).__name__}:")  # torch repeats it
        raise Unmeasured(said[-1] if known else f"{type(error).__name__}: {said[-1]}") from error
    return found


@contextmanager
def still() -> Iterator[None]:
    """Restore this process's random states, which training uses, after the block."""
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
