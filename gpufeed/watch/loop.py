"""The loader that the training sees: every batch once and in order, some held before they are used."""

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from gpufeed.watch import batches, result
from gpufeed.watch.stretches import Queue, Ready, Stretches, group, sizes

GIB = 2**30
HELD_HOST_BYTES, HELD_DEVICE_BYTES = 2 * GIB, GIB
BURST = 32
# Lightning's function that checks whether an object can be iterated over, without starting an epoch
LIGHTNING_CHECK = "_check_dataloader_iterable"
FREE_SHARE = 0.5  # of the GPU's free memory that held batches may use
QUEUE = 4  # batches that an unknown loader is assumed to prefetch
LOOK_S = 0.001  # between two looks at a queue that fills


class Watch:
    """A loader that measures the loop that iterates over it; attributes are those of the wrapped loader."""

    def __init__(self, loader: Any, record: Stretches, again: partial):
        options = again.keywords
        limits = options["held_host_bytes"], options["held_device_bytes"]
        self.__dict__.update(loader=loader, record=record, again=again, limits=limits, out=options["out"])
        self.__dict__.update(current=lambda: None, kept=deque())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the loader and the settings alone; another process measures for itself."""
        return self.again, (self.loader,)

    def __iter__(self) -> Iterator[Any]:
        if sys._getframe(1).f_code.co_name == LIGHTNING_CHECK:
            self.check_sampler()
            return iter(())
        return WatchedEpoch(self)

    def check_sampler(self) -> None:
        """Raise ValueError if Lightning would have given each rank its share of an unwrapped loader."""
        default = isinstance(getattr(self.loader, "sampler", None), (RandomSampler, SequentialSampler))
        if group()[1] > 1 and default:
            raise ValueError(
                f"a watched loader has a {type(self.loader.sampler).__name__} on {group()[1]} ranks, each of "
                "which would train on all samples: Lightning replaces the samplers of unwrapped loaders. "
                "Give the loader a DistributedSampler before you wrap it"
            )

    def __len__(self) -> int:
        return len(self.loader)

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.loader, name, value)

    def result(self) -> dict[str, Any]:
        """Return the result so far, as in watch.json, after waiting for the device and measuring stages."""
        return result.result(self.record, wait=True)

    def table(self) -> str:
        """Return the measurement so far in about ten lines."""
        return result.table(self.result())


class ResumableWatch(Watch):
    """A loader with a state: frameworks look for these methods on the class."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loader's state at the loop's last batch, however many more are held."""
        epoch = self.current()
        if epoch is not None and epoch.held and epoch.state is not None:
            return epoch.state
        return self.loader.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Pass a state to the loader and drop the held batches."""
        if (epoch := self.current()) is not None:
            epoch.held.clear()
            epoch.ended = None
            self.record.drop()
        return self.loader.load_state_dict(*args, **kwargs)


class WatchedEpoch:
    """One pass over a watched loader."""

    def __init__(self, watch: Watch):
        self.watch, self.record = watch, watch.record
        self.held: deque[tuple[Any, Any]] = deque()  # batches, and the loader's state after each
        self.state: Any = None  # the loader's, after the loop's last batch
        # the loader's error while batches were fetched to be held
        self.ended: Exception | None = None
        self.steps: int | None = None  # of this epoch, if known
        self.number, self.began, self.first_at, self.first_bytes = -1, 0.0, 0.0, (0, 0)
        if self.here:
            self.end_epoch()
            self.number, self.began = self.record.begin_epoch(), time.perf_counter()
            self.record.signs.began = self.began
        self.inner = iter(watch.loader)
        if self.inner is watch.loader:  # an iterator, which continues where the last pass stopped
            self.held = watch.kept
        watch.current = weakref.ref(self)

    def __iter__(self) -> "WatchedEpoch":
        return self

    @property
    def here(self) -> bool:
        """Whether this is the measuring process and not one forked from it."""
        return os.getpid() == self.record.pid

    def __next__(self) -> Any:
        if not self.here or self.number != self.record.epochs:
            return self.take()
        record = self.record
        record.entered_at = time.perf_counter()
        if record.at == 1:
            self.first_at = record.entered_at
            self.steps = self.length()
            self.plan(self.steps)
        stocks = record.enter(self.steps, self.ready, getattr(self.inner, "_num_workers", 0))
        record.signs.enter(record.steps, getattr(self.inner, "_workers", ()))
        if record.waits:
            record.wait_for_device()
        if stocks:
            self.stock()
        record.started(self.ready)
        began = time.perf_counter()
        try:
            batch = self.take(check=record.checks)
        except StopIteration:
            record.seen_length = record.at
            self.end_epoch()
            raise
        except BaseException:
            record.drop()
            raise
        ended = time.perf_counter()
        if self.number != record.epochs:  # another thread began an epoch meanwhile
            return batch
        if not record.at:
            record.epoch_start_seconds.append(ended - self.began)
            self.first_bytes = batches.held_bytes(batch)
        record.arrived(batches.samples(batch), ended - began)
        record.signs.leave()
        record.leave(ended - began)
        return batch

    def take(self, check: bool = False) -> Any:
        """Return the next batch: a held one, else the loader's."""
        if self.held:
            batch, self.state = self.held.popleft()
            return batch
        if self.ended is not None:
            error, self.ended = self.ended, None
            raise error
        return self.checked() if check else self.fetch()

    def fetch(self) -> Any:
        """Return the loader's next batch."""
        record, began = self.record, time.perf_counter()
        batch = next(self.inner)
        if self.here:
            stocked = record.phase == "stock"
            record.signs.fetch(record.steps, record.at, stocked, time.perf_counter() - began)
        return batch

    def checked(self) -> Any:
        """Fetch a batch; if that changes a random state, hold no batch from now on."""
        before = batches.random_states(self.record.device)
        batch = self.fetch()
        after = batches.random_states(self.record.device)
        if whose := " and ".join(name for name in before if before[name] != after[name]):
            self.record.stop_bursts(
                f"fetching a batch moves {whose} random state, which training may use too"
            )
        return batch

    def length(self) -> int | None:
        """Return the steps of this epoch, by the loader or the last epochs: a loop may stop early."""
        with suppress(Exception):
            length = len(self.watch.loader)
            return min(length, self.record.stops_at or length) if self.record.ranks == 1 else length
        return self.record.seen_length if self.record.ranks == 1 else None

    def plan(self, length: int | None) -> None:
        """Set the sizes of the epoch's stretches, by its first batch."""
        record, (host, device) = self.record, self.first_bytes
        host_limit, device_limit = self.watch.limits
        if device and record.device.type == "cuda":
            device_limit = min(device_limit, int(FREE_SHARE * torch.cuda.mem_get_info(record.device)[0]))
        fit = min(host_limit // max(1, host), device_limit // max(1, device))
        of_loader, seen = queue(self.watch.loader), self.ready() is not None
        record.signs.loader = settings(self.watch.loader, of_loader, host)
        record.on_device = bool(device)
        shape = record.accumulate, length, fit, of_loader, seen, record.ranks
        record.sizes = sizes(record.burst, *shape, record.on_device)
        if record.sizes.why:
            record.stop_bursts(record.sizes.why)
        if length is None and type(self.watch.loader).__module__.startswith("accelerate"):
            # it announces the last batch as it is fetched, and the loop then applies gradients
            record.stop_bursts("accelerate's loader has no length, and a held batch could be its last")

    def stock(self) -> None:
        """Fetch and hold the batches of a burst, as many as fit; keep an error of the loader for later."""
        record, loader = self.record, self.watch.loader
        cloned, limits, sums = False, self.watch.limits, (0, 0)
        step_s = (time.perf_counter() - self.first_at) / (record.at - 1) if record.at > 1 else record.step_s
        self.state = self.saved()
        while len(self.held) < record.sizes.burst and record.between is None and self.ended is None:
            try:
                batch = self.checked()
            except Exception as error:
                self.ended = error
                break
            try:
                if not batches.own_memory(loader, batch):
                    batch, cloned = batches.clone(batch), True
            except Exception as error:
                record.stop_bursts(f"a {type(batch).__name__} could not be copied ({error})")
            self.held.append((batch, self.saved()))
            sums = tuple(map(sum, zip(sums, batches.held_bytes(batch), strict=True)))
            held = len(self.held)
            if any(one * (held + 1) > limit * held for one, limit in zip(sums, limits, strict=True)):
                break
        record.stocked = len(self.held)
        if record.stocked > record.held["batches"]:
            names = ("batches", "host_bytes", "device_bytes", "cloned")
            record.held = dict(zip(names, (record.stocked, *sums, cloned), strict=True))
        if self.held and self.ended is None:
            self.let_fill(step_s)
        record.wait_for_device()

    def let_fill(self, step_s: float) -> None:
        """Wait until the loader has filled its queue: what it makes during a burst would slow the steps down.

        It takes at most step_s for each held batch, or for QUEUE of them if the queue's state is unknown.
        """
        of_loader = queue(self.watch.loader)
        if of_loader is not None and not of_loader[0]:
            return  # it makes nothing ahead
        until = time.perf_counter() + step_s * (QUEUE if self.ready() is None else len(self.held))
        while time.perf_counter() < until:
            if (ready := self.ready()) is not None and not ready[1]:
                return
            time.sleep(LOOK_S)

    def saved(self) -> Any:
        """Return a copy of the loader's state; None without one or if its method raises, as
        accelerate's may.
        """
        if not isinstance(self.watch, ResumableWatch):
            return None
        try:
            state = self.watch.loader.state_dict()
        except Exception:
            return None
        try:
            return deepcopy(state)
        except Exception as error:
            self.record.stop_bursts(f"the loader's state could not be copied ({error})")
            return state

    def ready(self) -> Ready:
        """Return how many batches are in the queue of torch's DataLoader, and how many are being made."""
        inner = self.inner
        try:
            queues = {inner._data_queue, inner._worker_result_queue}  # the same one without pinning
            here = sum(len(info) == 2 for info in inner._task_info.values())  # arrived before their turn
            lie = here + sum(one.qsize() for one in queues)
            return lie, inner._send_idx - inner._rcvd_idx - lie
        except (AttributeError, NotImplementedError):  # another iterator; macOS has no qsize
            return None

    def end_epoch(self) -> None:
        """Write the result of the epochs so far, without waiting for the device."""
        record = self.record
        record.drop()
        record.signs.end_epoch()
        if record.steps and record.clock:
            result.measure_stages(record)
            result.write(record, self.watch.out)


def settings(loader: Any, of_queue: Queue, host_bytes: int) -> dict[str, Any]:
    """Return the loader's settings that causes depend on. host_bytes: of a batch.

    workers: None if unknown. persistent: None if workers start anew each epoch whatever the setting.
    """
    workers, ahead = of_queue or (None, 0)
    torchs = inside(loader)
    persistent = None if torchs is not loader else bool(getattr(torchs, "persistent_workers", False))
    return {
        "workers": workers,
        "ahead": ahead,
        "persistent": persistent,
        "pinned": bool(getattr(torchs, "pin_memory", False)),
        "host_bytes": host_bytes,
    }


def inside(loader: Any) -> Any:
    """Return what has the settings of torch's DataLoader: for fastai's own, an object that it hides.

    If it transforms batches in this process, its workers may not be what is slow: then they do not count.
    """
    hidden = getattr(loader, "__dict__", {}).get("fake_l", loader)
    if hidden is loader:
        return loader
    here = torch.device(getattr(loader, "device", None) or "cpu").type == "cpu"
    return loader if here and getattr(loader.after_batch, "fs", ()) else hidden


def queue(loader: Any) -> Queue:
    """Return a loader's number of worker processes and of prefetched batches; None if unknown."""
    torchs = inside(loader)
    workers = getattr(torchs, "num_workers", None)
    if not (isinstance(torchs, DataLoader) or torchs is not loader) or not isinstance(workers, int):
        return None
    return workers, workers * (torchs.prefetch_factor or 0)
