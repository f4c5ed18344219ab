"""Summarises what a watch saw for the field `telemetry` of a record, and detects suspected leaks."""

import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpufeed.system.statistics import slope
from gpufeed.system.telemetry.gpu_readings import SAMPLED
from gpufeed.system.telemetry.process_load import Used, others_share
from gpufeed.system.telemetry.watch import PERIOD_S, Reading, Sample, Seen

USED = ("cpu_s", "storage_mib", "read_mib")
LEVELS = {
    "host": "host memory of the process tree",
    "gpu_allocated": "GPU memory of torch's tensors",
    "gpu_process": "GPU memory of the process tree",
}
log = logging.getLogger("gpufeed")
FEWEST_EPOCHS = 6
EACH_MIB = 1.0
WHOLE_MIB = 64.0
STEADY = 0.5


def summarise(seen: Seen, warmup_steps: int) -> dict[str, Any] | None:
    """Return the `telemetry` of a record for the time after warm-up; None if no epoch has ended.

    If warm-up does not end with an epoch, the whole time counts.

    warmup_steps: the `steps` of a record's `warmup`.
    """
    ends = [reading for reading in seen.readings if reading.epoch]
    if not ends:
        return None
    whole = [reading for reading in ends if reading.steps == warmup_steps]
    start, end = (whole[0] if whole and whole[0] is not ends[-1] else seen.readings[0]), ends[-1]
    inside = monotone(seen.readings)
    inside = inside[seen.readings.index(start) : seen.readings.index(end) + 1]
    spans = [(a, b) for a, b in pairwise(inside) if not b.aside]
    samples = [s for s in seen.samples if any(a.at_s <= s.at_s <= b.at_s for a, b in spans)]
    seconds, images = sum(b.at_s - a.at_s for a, b in spans), end.images - start.images
    return {
        "period_s": PERIOD_S,
        "samples": len(samples),
        "seconds": seconds,
        "images": images,
        "host": host(spans, samples, images) | {"page_cache_share": seen.page_cache_share},
        "gpu": gpu(spans, samples, seconds, images),
        "growth": {name: growth(ends, name) for name in LEVELS},
    }


def monotone(readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings with counters that never fall: a child may be missing from one reading."""
    found, most, tree_s = [], Used(0.0, None, None), 0.0
    for reading in readings:
        most, cores = Used(*map(larger, astuple(most), astuple(reading.used))), reading.cores
        if cores is not None:
            tree_s = max(tree_s, cores.tree_s)
            cores = replace(cores, tree_s=tree_s)
        found.append(replace(reading, used=most, cores=cores))
    return found


def larger(before: float | None, now: float | None) -> float | None:
    """Return the larger of two counts; None if the present one is unknown."""
    return now if before is None or now is None else max(before, now)


def host(spans: list[tuple[Reading, Reading]], samples: list[Sample], images: int) -> dict[str, Any]:
    """Return the `host` of the telemetry, without the page cache."""
    used = [(a.used, b.used) for a, b in spans]
    cores, seconds = [(a.cores, b.cores) for a, b in spans], sum(b.at_s - a.at_s for a, b in spans)
    cpu_s = sum(b.cpu_s - a.cpu_s for a, b in used)
    return {
        "rss_mib": sampled(sample.rss_mib for sample in samples),
        "processes": sampled(sample.processes for sample in samples),
        "cpu_s": cpu_s,
        "cpu_s_per_1000_images": cpu_s / images * 1e3,
        "storage_mib": mib((a.storage_bytes, b.storage_bytes) for a, b in used),
        "read_mib": mib((a.read_bytes, b.read_bytes) for a, b in used),
        "others_cpu_share": others_share(cores, seconds),
    }


def gpu(spans: list, samples: list[Sample], seconds: float, images: int) -> dict[str, Any] | None:
    """Return the `gpu` of the telemetry; None if NVML gave no answer."""
    measured = {name: sampled(sample.gpu[name] for sample in samples) for name in SAMPLED}
    energy_j, source = energy(spans, samples, seconds)
    events = [sample.gpu["events"] for sample in samples if sample.gpu["events"] is not None]
    if energy_j is None and not events and not any(measured.values()):
        return None
    seen = Counter(name for names in events for name in names)
    return measured | {
        "energy_j": energy_j,
        "energy_from": source,
        "j_per_1000_images": None if energy_j is None else energy_j / images * 1e3,
        "clock_events": {name: n / len(events) for name, n in sorted(seen.items())} if events else None,
    }


def energy(spans: list, samples: list[Sample], seconds: float) -> tuple[float | None, str | None]:
    """Return joules, and whether they come from the device's counter or from sampled power."""
    counted = [(a.energy_j, b.energy_j) for a, b in spans]
    if all(None not in pair for pair in counted):
        return sum(b - a for a, b in counted), "counter"
    watts = [sample.gpu["power_w"] for sample in samples if sample.gpu["power_w"] is not None]
    return (statistics.fmean(watts) * seconds, "power") if watts else (None, None)


def sampled(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return n, median, min and max of the known values; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"n": len(known), "median": statistics.median(known), "min": min(known), "max": max(known)}


def mib(pairs: Iterable[tuple[int | None, int | None]]) -> float | None:
    """Return the growth of a byte counter over the spans, in MiB; None if unknown."""
    known = list(pairs)
    if any(None in pair for pair in known):
        return None
    return sum(b - a for a, b in known) / 2**20


def growth(ends: Sequence[Reading], name: str) -> dict[str, float | None] | None:
    """Return the slope of a memory level over the ends of epochs, from the start; None without one.

    name: of LEVELS. A suspected leak is logged, too.
    """
    levels = [getattr(reading, f"{name}_mib") for reading in ends]
    if None in levels:
        return None
    each = slope([reading.epochs for reading in ends], levels)
    step = slope([reading.steps for reading in ends], levels)
    if each is None or step is None:
        return None
    if (leaked := leaked_mib(levels)) is not None:
        log.warning(
            "suspected leak: %s grew by %.0f MiB over %d epochs after the first and did not settle; look for "
            "what the loader, augment or model keeps of each batch",
            *(LEVELS[name], leaked, len(ends) - 1),
        )
    slopes = {"mib_per_epoch": each, "mib_per_1000_steps": step * 1e3}
    return {"epochs": len(ends), **slopes, "suspected_leak_mib": leaked}


def together(ranks: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Combine the telemetry of a training's processes: usage is summed, the rest is that of the first.

    Each already has the images of all ranks. others_cpu_share is that of the worst node, though ranks count
    each other as their own. None if one rank has no telemetry.
    """
    if None in ranks:
        return None
    first, images = ranks[0], ranks[0]["images"]
    used = {name: total(rank["host"][name] for rank in ranks) for name in USED}
    shares = [rank["host"]["others_cpu_share"] for rank in ranks]
    used["others_cpu_share"] = None if None in shares else max(shares)
    used["cpu_s_per_1000_images"] = used["cpu_s"] / images * 1e3
    found = first | {"host": first["host"] | used}
    if found["gpu"] is not None:
        joules = total((rank["gpu"] or {}).get("energy_j") for rank in ranks)
        per_image = None if joules is None else joules / images * 1e3
        found["gpu"] = found["gpu"] | {"energy_j": joules, "j_per_1000_images": per_image}
    return found


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a value is unknown."""
    known = list(values)
    return None if None in known else sum(known)


def leaked_mib(levels: Sequence[float]) -> float | None:
    """Return by how many MiB memory grew if that looks like a leak, else None.

    levels: MiB at the end of each epoch, the first one included. All of these must hold:

    - There are at least FEWEST_EPOCHS epochs. Memory that fluctuates, as with batches in queues, rises
      over six ends of epochs in one run of 720. More epochs are divided into that many parts, of which
      the lowest level counts.
    - It grows from each part to the next by at least EACH_MIB. What fills up once (page-locked buffers,
      an allocator's arenas, a cache) stays level afterwards. Most of that happens in the first epoch,
      which only gives the starting level.
    - It grows by at least WHOLE_MIB in all, by the slope of Theil and Sen, which one large step does not
      move. Eight pipelines of one to five processes grew by 0 to 6 MiB over eleven epochs (200 images
      each, CPU, glibc). WHOLE_MIB is ten times as much, for more processes.
    - It does not level off: a late epoch adds at least STEADY of what an early one does. The largest
      batch so far, and with it the memory of workers, grows like a logarithm: less than 0.4.
    """
    if len(levels) < FEWEST_EPOCHS:
        return None
    parts = np.array_split(np.asarray(levels, float), FEWEST_EPOCHS)
    grown, half = np.diff([part.min() for part in parts]), (FEWEST_EPOCHS - 1) // 2
    whole = slope(range(len(levels)), levels) * (len(levels) - 1)
    each = grown / [len(part) for part in parts[:-1]]  # per epoch: the first parts may be longer by one
    steady = np.median(each[-half:]) >= STEADY * np.median(each[:half])
    return whole if grown.min() >= EACH_MIB and whole >= WHOLE_MIB and steady else None
