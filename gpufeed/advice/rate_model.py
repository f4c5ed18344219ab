"""How fast a cell will train, from its training alone and its input alone: bounds that no overlap passes.

docs/advice.md has the formula in words, and how right it was.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from gpufeed.system.statistics import summarise

# Bounds that lie close to each other are both felt: their seconds form a norm of this order; inf: a maximum.
SHARPNESS = math.inf
COMPUTE, INPUT, HOST, CPU, DEVICE = "compute", "input", "host", "cpu", "device"  # what may bind


@dataclass(frozen=True)
class Demands:
    """Seconds an image, and of an epoch what comes once.

    compute_s, input_s: each alone. host_s: for which a step keeps the host. main_s: for which the loader
    keeps the thread that trains. cpu_*: CPU seconds. busy_*: of the device; 0 without a GPU. works_ahead:
    whether batches are made while the host is in a step. first_batch_s: to an epoch's first batch. start_s:
    what an epoch of the input alone takes beyond its images. images: of an epoch.
    """

    compute_s: float
    input_s: float
    host_s: float
    main_s: float
    cpu_compute_s: float
    cpu_input_s: float
    busy_compute_s: float
    busy_input_s: float
    cores: int
    works_ahead: bool
    first_batch_s: float
    start_s: float
    images: int

    @classmethod
    def of(cls, probe: Mapping[str, Any]) -> "Demands":
        """From a probe that is done (core/schemas/probe.schema.yaml): medians over its rounds."""
        compute, given = probe["compute"], probe["input"]
        compute_s, input_s = (median(seconds_an_image(part["rounds"])) for part in (compute, given))
        on_gpu, starts = probe["resolved"]["device"] == "cuda", given["starts"]
        launches = on_gpu and probe["cell"]["synchronise"] == "epoch"  # else each step is waited for
        return cls(
            compute_s,
            input_s,
            # what waits for room in a GPU's queue is no work of the host
            host_s=min(compute["host_s"], compute_s) if launches else compute_s,
            main_s=given["main_s"],
            cpu_compute_s=min(compute["cpu_s"], compute["host_s"]) if on_gpu else compute["cpu_s"],
            cpu_input_s=given["cpu_s"],
            busy_compute_s=(compute["busy"] or 0.0) * compute_s,
            busy_input_s=(given["busy"] or 0.0) * input_s,
            cores=probe["cores"],
            works_ahead=probe["works_ahead"],
            first_batch_s=median(start["first_batch_s"] for start in starts),
            start_s=max(0.0, median(start["lead_s"] - start["lead_images"] * input_s for start in starts)),
            images=probe["images"],
        )


def seconds_an_image(rounds: Sequence[Mapping[str, float]]) -> list[float]:
    return [one["seconds"] / one["images"] for one in rounds]


def bounds(d: Demands) -> dict[str, float]:
    """Return the least seconds of an epoch by what would bind it: COMPUTE, INPUT, HOST, CPU or DEVICE.

    Training begins with the first batch. A loader that works ahead keeps the host for no more than what it
    hands over; another for all of its work.
    """
    keeps_s = d.main_s if d.works_ahead else d.input_s
    return {
        COMPUTE: d.first_batch_s + d.images * d.compute_s,
        INPUT: d.start_s + d.images * d.input_s,
        HOST: (d.first_batch_s if d.works_ahead else d.start_s) + d.images * (d.host_s + keeps_s),
        CPU: d.start_s + d.images * (d.cpu_compute_s + d.cpu_input_s) / d.cores,
        DEVICE: d.first_batch_s + d.images * (d.busy_compute_s + d.busy_input_s),
    }


def epoch_s(d: Demands, sharpness: float = SHARPNESS) -> tuple[float, str]:
    """Return the seconds of an epoch, and what binds it."""
    found = bounds(d)
    name = max(found, key=found.get)
    largest = found[name]
    if math.isinf(sharpness):
        return largest, name
    return largest * sum((one / largest) ** sharpness for one in found.values()) ** (1 / sharpness), name


def predicted(probe: Mapping[str, Any], sharpness: float = SHARPNESS) -> dict[str, Any]:
    """Return low, median and high of images/s, what binds, and the share of the epoch that input takes.

    low, high: the 95 % interval of the median over rounds, each with its own seconds of both passes.
    """
    middle = Demands.of(probe)
    seconds, bound = epoch_s(middle, sharpness)
    rounds = zip(*(seconds_an_image(probe[part]["rounds"]) for part in ("compute", "input")), strict=False)
    rates = []
    for compute_s, input_s in rounds:
        scale, input_scale = compute_s / middle.compute_s, input_s / middle.input_s
        one = replace(
            middle,
            compute_s=compute_s,
            input_s=input_s,
            host_s=middle.host_s * scale,
            cpu_compute_s=middle.cpu_compute_s * scale,
            cpu_input_s=middle.cpu_input_s * input_scale,
            busy_compute_s=middle.busy_compute_s * scale,
            busy_input_s=middle.busy_input_s * input_scale,
        )
        rates.append(middle.images / epoch_s(one, sharpness)[0])
    interval, rate = summarise(rates), middle.images / seconds
    return {
        "low": min(rate, interval["ci95_low"]),
        "median": rate,
        "high": max(rate, interval["ci95_high"]),
        "bound": bound,
        "input_share": max(0.0, 1 - middle.images * middle.compute_s / seconds),
    }
