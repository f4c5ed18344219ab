"""`for batch in gpufeed.watch(loader): ...` measures how far a training loop is from compute-only speed.

The module can be called: `gpufeed.watch` is this package and the function `watch` in it.
"""

import atexit
import os
import sys
import types
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpufeed.watch import result
from gpufeed.watch.loop import BURST, HELD_DEVICE_BYTES, HELD_HOST_BYTES, ResumableWatch, Watch
from gpufeed.watch.stretches import Stretches

__all__ = ["Watch", "watch"]
# by the id of a loader, since a loop may wrap it again for every epoch
_KNOWN: dict[int, tuple[weakref.ref, Stretches]] = {}


def watch(
    loader: Any,
    *,
    accumulate: int = 1,
    device: str | torch.device | None = None,
    out: str | os.PathLike | None = "watch.json",
    held_host_bytes: int = HELD_HOST_BYTES,
    held_device_bytes: int = HELD_DEVICE_BYTES,
    burst: int = BURST,
    quiet: bool = False,
    deep: bool = False,
) -> Watch:
    """Return an iterable over the batches of `loader` that measures the loop around it.

    accumulate: batches whose gradients make one step of the optimiser. device: where the model trains; by
    default the current GPU once CUDA is in use, else the CPU. out: the file that the result is written to, or
    None. held_host_bytes, held_device_bytes: memory for batches that are held. burst: most batches held at
    once; 0: none. quiet: print no table when the process ends. deep: after the first epoch, or before a
    result, measure once how long each stage of a DataLoader takes, by making some samples again.
    """
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"watch() got {type(loader).__name__}; expected an iterable of batches")
    if isinstance(loader, Watch):
        return loader
    bounds = {"held_host_bytes": held_host_bytes, "held_device_bytes": held_device_bytes}
    counts = {"accumulate": accumulate, "burst": burst, **bounds}
    for name, value in counts.items():
        least = 1 if name == "accumulate" else 0
        if not isinstance(value, int) or value < least:
            raise ValueError(f"watch() got {name}={value!r}; expected a whole number of at least {least}")
    asked = None if device is None else torch.device(device)
    if asked is not None and asked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"watch() got device={device!r}; expected the CPU: torch finds no CUDA GPU here")
    path = None if out is None else Path(out).absolute()
    known = _KNOWN.get(id(loader))
    record = known[1] if known and known[0]() is loader else None
    if record is None or record.pid != os.getpid():
        record = Stretches(accumulate, burst, asked)
        record.deep = loader if deep else None
        atexit.register(_at_exit, record, path, quiet)
        with suppress(TypeError):  # a list has no weak references: wrapping it again starts a new measurement
            _KNOWN[id(loader)] = weakref.ref(loader), record
    kind = ResumableWatch if callable(getattr(loader, "state_dict", None)) else Watch
    again = partial(watch, **counts, device=asked, out=path, quiet=quiet, deep=deep)
    return kind(loader, record, again)


def _at_exit(record: Stretches, path: Path | None, quiet: bool) -> None:
    """Write and print the result when the process ends, unless it is a forked one."""
    if record.pid == os.getpid() and record.steps:
        # after an error or Ctrl-C, end at once
        if getattr(sys, "last_type", None) and record.deep is not None:
            record.deep, record.unstaged = None, "the training ended with an error before they were measured"
        result.finish(record, path, quiet)


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Watch:
        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
