"""Predict a cell's rate from seconds of it, and what bounds it from its parts measured alone.

docs/reference/advice.md describes both, and how accurate they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpufeed.system.statistics import summarise

COMPUTE, INPUT, HOST, CPU, DEVICE = "compute", "input", "host", "cpu", "device"  # possible bounds
EXPLAINED = 1.1  # an epoch of so many times its training alone is not bound by that


@dataclass(frozen=True)
class Demands:
    """Seconds an image of the parts alone, and the fixed costs of an epoch.

    compute_s, input_s: each alone. host_s: for which a step occupies the host. main_s: for which the loader
    occupies the training thread. cpu_*: CPU seconds. busy_*: of the device; 0 without a GPU. works_ahead:
    whether batches are made while the host is in a step. first_batch_s: to an epoch's first batch. start_s:
    an epoch's time for the input alone beyond that of its images. images: in an epoch.
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
        """Return the demands of a finished probe (core/schemas/probe.schema.yaml), as medians over rounds."""
        compute, given = probe["compute"], probe["input"]
        compute_s, input_s = (median(seconds_an_image(part["rounds"])) for part in (compute, given))
        on_gpu, starts = probe["resolved"]["device"] == "cuda", given["starts"]
        # otherwise the host waits for each step
        launches = on_gpu and probe["cell"]["synchronise"] == "epoch"
        return cls(
            compute_s,
            input_s,
            # waiting for room in a GPU's queue is no work of the host
            host_s=min(compute["host_s"], compute_s) if launches else compute_s,
            main_s=given["main_s"],
            cpu_compute_s=min(compute["cpu_s"], compute["host_s"]) if on_gpu else compute["cpu_s"],
            cpu_input_s=given["cpu_s"],
            busy_compute_s=(compute["busy"] or 0.0) * compute_s,
            busy_input_s=(given["busy"] or 0.0) * input_s,
            cores=probe["cores"],
            works_ahead=probe["works_ahead"],
            first_batch_s=median(start["first_batch_s"] for start in starts),
            start_s=max(0.0, start_s(given, input_s)),
            images=probe["images"],
        )


def seconds_an_image(rounds: Sequence[Mapping[str, float]]) -> list[float]:
    return [one["seconds"] / one["images"] for one in rounds]


def start_s(part: Mapping[str, Any], image_s: float) -> float:
    """Return the time of an epoch's first batches beyond that of their images. part: of a probe."""
    return median(one["lead_s"] - one["lead_images"] * image_s for one in part["starts"])


def bounds(d: Demands) -> dict[str, float]:
    """Return the least seconds of an epoch for each possible bound: COMPUTE, INPUT, HOST, CPU or DEVICE.

    Training begins with the first batch. A loader that works ahead occupies the host only to pass batches on;
    another for all of its work.
    """
    keeps_s = d.main_s if d.works_ahead else d.input_s
    return {
        COMPUTE: d.first_batch_s + d.images * d.compute_s,
        INPUT: d.start_s + d.images * d.input_s,
        HOST: (d.first_batch_s if d.works_ahead else d.start_s) + d.images * (d.host_s + keeps_s),
        CPU: d.start_s + d.images * (d.cpu_compute_s + d.cpu_input_s) / d.cores,
        DEVICE: d.first_batch_s + d.images * (d.busy_compute_s + d.busy_input_s),
    }


def predicted(probe: Mapping[str, Any]) -> dict[str, Any]:
    """Return low, median and high of images/s, the bound, and input's share of the epoch.

    An epoch is its start and its images at the rate of `together`. low, high: the 95 % interval of the median
    over its rounds. The bound is the largest of `bounds`. If that is COMPUTE, but the epoch takes EXPLAINED
    times as long or more, it is the largest of HOST, CPU and DEVICE.
    """
    rounds, images, found = probe["together"]["rounds"], probe["images"], bounds(Demands.of(probe))
    image_s = sum(one["seconds"] for one in rounds) / sum(one["images"] for one in rounds)

    def epoch_s(one: float) -> float:
        return start_s(probe["together"], one) + images * one

    seconds = epoch_s(image_s)
    interval = summarise([images / epoch_s(one) for one in seconds_an_image(rounds)])
    compute_s = median(seconds_an_image(probe["compute"]["rounds"]))
    name = max(found, key=found.get)
    if name == COMPUTE and seconds > EXPLAINED * found[COMPUTE]:
        name = max((HOST, CPU, DEVICE), key=found.get)
    return {
        "low": min(images / seconds, interval["ci95_low"]),
        "median": images / seconds,
        "high": max(images / seconds, interval["ci95_high"]),
        "bound": name,
        "input_share": max(0.0, 1 - images * compute_s / seconds),
    }
