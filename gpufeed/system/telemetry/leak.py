"""Whether memory that was taken in each epoch was never given back."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpufeed.core.errors import GpufeedError
from gpufeed.system.statistics import slope

FEWEST_EPOCHS = 6
EACH_MIB = 1.0
WHOLE_MIB = 64.0
STEADY = 0.5

WORDS = {
    "host": "host memory of the process tree",
    "gpu_allocated": "GPU memory of torch's tensors",
    "gpu_process": "GPU memory of the process tree",
}


def leak(levels: Sequence[float]) -> float | None:
    """By how many MiB memory grew, if it looks like a leak; None if not.

    levels: MiB at the end of each epoch, the first one included. All of these must hold:

    - There are FEWEST_EPOCHS epochs or more. Memory that goes up and down, as batches wait in queues, is in
      rising order at six ends of epochs in one run of 720. More epochs are divided into as many parts, of
      which the lowest level counts: a long run is judged by what it gives back and not by its every peak.
    - It grows from each part to the next by EACH_MIB or more: what fills up once (page-locked buffers, an
      allocator's arenas, a cache) stays level afterwards. The first epoch, in which most of that happens,
      only gives the level to start from.
    - It grows in all by WHOLE_MIB or more, by the slope of Theil and Sen, which one large step does not move.
      Eight pipelines of one to five processes grew by 0 to 6 MiB over the eleven epochs after the first (200
      images each, CPU, glibc). Ten times as much leaves room for those of more processes.
    - It does not die down: an epoch late in the run adds STEADY of what an early one does, or more. The
      largest batch so far, and with it the memory of workers, grows like a logarithm: less than 0.4.
    """
    if len(levels) < FEWEST_EPOCHS:
        return None
    parts = np.array_split(np.asarray(levels, float), FEWEST_EPOCHS)
    grown, half = np.diff([part.min() for part in parts]), (FEWEST_EPOCHS - 1) // 2
    whole = slope(range(len(levels)), levels) * (len(levels) - 1)
    each = grown / [len(part) for part in parts[:-1]]  # an epoch: the first parts may be longer by one
    steady = np.median(each[-half:]) >= STEADY * np.median(each[:half])
    return whole if grown.min() >= EACH_MIB and whole >= WHOLE_MIB and steady else None


def check(levels: Mapping[str, Sequence[float]]) -> None:
    """Raises GpufeedError where a memory leaks. levels: by the names of WORDS, each as `leak` takes them."""
    for name, mib in levels.items():
        if (grown := leak(mib)) is not None:
            epochs = len(mib) - 1
            raise GpufeedError(
                f"{WORDS[name]} that grew by {grown:.0f} MiB over {epochs} epochs after the first, "
                f"{grown / epochs:.1f} MiB in each, and did not settle",
                f"a level that settles: less than {WHOLE_MIB:.0f} MiB in all, or growth that dies down",
                "look for what the loader, augment or model keeps of each batch, or measure without this "
                "check (telemetry: false in the config)",
            )
