"""The result of a training's stretches: watch.json, a verdict in a sentence, a table for the terminal."""

import json
import logging
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_whole
from gpufeed.core.quantities import plural
from gpufeed.system import statistics
from gpufeed.system.environment import cpu_model, versions
from gpufeed.watch import causes, stages
from gpufeed.watch.signs import with_interval
from gpufeed.watch.stretches import ALONE, END, Stretches

log = logging.getLogger("gpufeed")
SCHEMA = 1
BURSTS, BETWEEN = "stock_and_burst", "between_batches"
SHOWN = ("kind", "first_step", "steps", "seconds")  # of a stretch, in watch.json
_WRITERS: dict[Path, set[int]] = {}  # file -> id of each measurement that wrote it
COPY = (
    "The copy to the device: the loop makes it, and it belongs to the compute side.",
    "The copy to the device: the loader makes it, and it belongs to the end-to-end time alone.",
)


def counted(done: Sequence[Mapping[str, Any]], between: bool) -> list[dict[str, Any]]:
    """Return the stretches that count. between: each end-to-end one also yields a compute-only one."""
    found = []
    for number, one in enumerate(done):
        if one["paused"] or (between and one["kind"] == ALONE):
            continue
        row = {**one, "seconds": one["steady_s"], "pair": number if between else one["pair"]}
        found.append(row)
        if between:
            found.append(row | {"kind": ALONE, "seconds": max(1e-9, one["seconds"] - one["wait_s"])})
    return found


def pairs(stretches: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the end-to-end and compute-only rates, in samples/s, of each pair of stretches."""
    end, alone = (
        {one["pair"]: one["samples"] / one["seconds"] for one in stretches if one["kind"] == kind}
        for kind in (END, ALONE)
    )
    return [(end[pair], rate) for pair, rate in alone.items() if pair in end]


def utilization(rates: Sequence[tuple[float, float]]) -> dict[str, float | int | None]:
    """Return the accelerator utilization, compute-only over end-to-end time, of pairs of rates."""
    ratio = statistics.paired_ratio(rates)
    low, high = ratio.interval or (None, None)
    return {"value": ratio.median if ratio.n else None, "low": low, "high": high, "n": ratio.n}


def stall_share(done: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the end-to-end stretches in which the device waited for a batch."""
    shares = [
        1 - (one["seconds"] - one["wait_s"]) / one["steady_s"]
        for one in done
        if one["kind"] == END and not one["paused"]
    ]
    return min(1.0, max(0.0, float(np.median(shares)))) if shares else None


@cache
def installed() -> dict[str, str]:
    """Return the versions of Python, gpufeed and the packages that matter; a checkout may have no version."""
    own = {"python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        own["gpufeed"] = metadata.version("gpufeed")
    return own | versions()


def result(record: Stretches, wait: bool) -> dict[str, Any]:
    """Return the measurement so far. wait: until the device has finished every stretch."""
    if record.clock:
        record.read(wait)
    if wait:
        measure_stages(record)
        measure_copy(record)
    device = record.clock.device if record.clock else record.device
    stretches = counted(record.done, record.between is not None)
    rates = pairs(stretches)
    found = {
        "schema": SCHEMA,
        "steps": record.steps,
        "epochs": record.epochs,
        "method": BETWEEN if record.between else BURSTS,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "ranks": record.ranks,
        "batch_samples": record.batch_samples,
        "au": utilization(rates),
        "end_to_end": with_interval("samples_per_second", [end for end, _ in rates]),
        "compute_only": with_interval("samples_per_second", [alone for _, alone in rates]),
        "data_stall_share": stall_share(record.done),
        "epoch_start_seconds": record.epoch_start_seconds,
        "copy_seconds": record.copied and record.copied[0],
        "copy_seconds_pinned": record.copied and record.copied[1],
        "growth": record.signs.growth(),
        "stages": record.stages,
        "stretches": [{name: one[name] for name in SHOWN} for one in stretches],
        "held": record.held,
        "verdict": "",
        "not_measured": not_measured(record, device),
        "versions": installed(),
    }
    found |= causes.diagnosis(found, record.signs, device.type)
    return found | {"verdict": verdict(found, record)}


def measure_stages(record: Stretches) -> None:
    """Measure the stages of the loader once, if requested, on rank 0; the other ranks wait for it."""
    loader, record.deep = record.deep, None
    if loader is None or record.rank or record.pid != os.getpid():
        return
    try:
        record.stages = stages.measure(loader)
    except stages.Unmeasured as reason:
        record.unstaged = str(reason)


def measure_copy(record: Stretches) -> None:
    """Measure the copy of a batch to the GPU once, if batches arrive on the host and the GPU has room
    for two.
    """
    size, clock = record.signs.loader.get("host_bytes"), record.clock
    if record.copied or not size or not clock or not clock.cuda or record.pid != os.getpid():
        return
    if torch.cuda.mem_get_info(clock.device)[0] > 2 * size:
        record.copied = stages.copies(size, record.signs.loader["pinned"], clock.device)


def verdict(found: Mapping[str, Any], record: Stretches) -> str:
    """Return the result in a sentence or two, and the first cause in another."""
    au, end, alone = found["au"], found["end_to_end"], found["compute_only"]
    unit = "samples/s" if found["batch_samples"] else "batches/s"
    if not au["n"]:
        said = (
            f"Nothing measured yet: no pair of stretches in {plural(record.steps, 'step', form=',')}. "
            f"Train for longer, in epochs of at least {2 * record.accumulate + 1} steps."
        )
    else:
        spread = "" if au["low"] is None else f", {100 * au['low']:.1f} to {100 * au['high']:.1f} %"
        few = "" if au["low"] is not None else ", too few for an interval"
        said = (
            f"Accelerator utilization (compute-only over end-to-end time) is {100 * au['value']:.1f} % "
            f"(n = {plural(au['n'], 'pair')} of stretches{spread}{few}). The training runs at "
            f"{end['samples_per_second']:,.0f} {unit}; without waiting for input the same steps run at "
            f"{alone['samples_per_second']:,.0f} {unit}, which is its limit."
        )
    if record.between:
        said += f" Compute-only time is taken between the fetches, since {record.between}."
    if found["causes"]:
        said += f" {found['causes'][0]['said']}"
    elif au["n"]:
        said += " No cause is certain enough to be named."
    return said


def not_measured(record: Stretches, device: torch.device) -> list[str]:
    """Return what the result leaves out, one sentence each."""
    said = [COPY[bool(record.held["device_bytes"])]] if device.type == "cuda" else []
    if device.type not in ("cuda", "cpu"):
        said.append(f"The device's own time: on {device.type} the host's clock is read.")
    if not record.batch_samples:
        said.append("Samples of a batch: no array with a length was found in it; rates count batches.")
    if paused := sum(one["paused"] for one in record.done):
        number = plural(paused, "stretch", "stretches", ",")
        said.append(f"{number} with a pause in a step, such as an evaluation or a checkpoint.")
    if record.unstaged:
        said.append(f"Stages of the loader: {record.unstaged}.")
    if record.ranks > 1:
        said.append("Other ranks: the numbers are those of rank 0, which waits for the others in its steps.")
    if record.between:
        said.append(
            "Steps from memory: no batch was held, so what the loader costs the steps themselves is not seen."
        )
    return said


def table(found: Mapping[str, Any]) -> str:
    """Return a result in at most ten lines: the numbers, the verdict, the first changes."""

    def number(one: Mapping[str, Any], key: str, factor: float, digits: int) -> str:
        low, value, high = (
            "-" if one[name] is None else f"{factor * one[name]:,.{digits}f}" for name in ("low", key, "high")
        )
        return f"{value}  [{low}, {high}]  n = {one['n']}"

    unit = "samples/s" if found["batch_samples"] else "batches/s"
    starts, stall = found["epoch_start_seconds"], found["data_stall_share"]
    rows = {
        "accelerator utilization, %": number(found["au"], "value", 100, 1),
        f"end to end, {unit}": number(found["end_to_end"], "samples_per_second", 1, 0),
        f"compute-only, {unit}": number(found["compute_only"], "samples_per_second", 1, 0),
        "data stall, % of end to end": "-" if stall is None else f"{100 * stall:.1f}",
        "start of an epoch, s": f"{np.median(starts):.2f}" if starts else "-",
    }
    width = max(map(len, rows))
    nouns = {"steps": "step", "epochs": "epoch", "ranks": "rank"}
    counts = ", ".join(plural(found[name], noun, form=",") for name, noun in nouns.items())
    lines = [f"  {name:<{width}}  {value}" for name, value in rows.items()]
    changes = [f"  - {one}" for one in causes.in_words(found["causes"])]
    return "\n".join([f"gpufeed.watch: {counts}, {found['device']}", *lines, found["verdict"], *changes])


def write(record: Stretches, path: Path | None, wait: bool = False) -> dict[str, Any]:
    """Write the result so far on rank 0.

    A file that another loader of this process has written is logged once, at once; one that cannot be written
    once, at the end.
    """
    found = result(record, wait)
    if path is not None and record.rank == 0:
        writers = _WRITERS.setdefault(path.absolute(), set())
        if len(writers) == 1 and id(record) not in writers:
            log.warning(
                "%s keeps the result of only one of the loaders that write it: give each its own with out=, "
                "and wrap a loader once, before the epochs",
                path,
            )
        writers.add(id(record))
        try:
            write_whole(path, json.dumps(found, indent=2) + "\n")
        except (GpufeedError, OSError, ValueError) as error:  # ValueError: an impossible path
            if wait:
                why = getattr(error, "found", error)
                log.warning("%s was not written (%s): name another file with out=, or None", path, why)
    return found


def finish(record: Stretches, path: Path | None, quiet: bool) -> None:
    """Write the result at the end of the process, and print it on rank 0."""
    try:
        found = write(record, path, wait=True)
    except Exception as error:  # a device that failed does not answer
        log.warning("gpufeed.watch could not read its last stretches: %s", error)
        return
    if record.rank == 0 and not quiet:
        print(table(found), file=sys.stderr)
