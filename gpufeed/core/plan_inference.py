"""What an experiment measures of its kept models. Standard library only: used while planning."""

from collections.abc import Mapping
from typing import Any

from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.registry import BACKENDS, TORCH_PRECISIONS

CALIBRATION = {"images": 512, "method": "minmax", "seed": 0}
DEFAULTS = {
    "backends": list(BACKENDS),
    "precisions": list(TORCH_PRECISIONS),
    "batch_sizes": [256, 1024],
    "calls": 500,
    "rounds": 5,
    "seconds": 0.3,
}
REFERENCE = ("eager", "fp32")  # its predictions are the reference


def own(config: Mapping, experiment: str) -> Mapping | None:
    """Return the experiment's `inference` as written; None without it."""
    return config["experiments"][experiment].get("inference")


def calibration(config: Mapping, experiment: str) -> dict[str, Any]:
    """Return how the INT8 file of an experiment is calibrated, with all defaults."""
    return {**CALIBRATION, **(own(config, experiment) or {}).get("calibration", {})}


def settings(config: Mapping, experiment: str) -> dict[str, Any] | None:
    """Return the measurement's settings with all defaults, without calibration; None without `inference`."""
    if (block := own(config, experiment)) is None:
        return None
    return {**DEFAULTS, **{key: block[key] for key in DEFAULTS if key in block}}


def pairs(settings: Mapping) -> list[tuple[str, str]]:
    """Return (backend, precision) of each row, the reference first."""
    chosen = [
        (backend, precision)
        for backend in settings["backends"]
        for precision in BACKENDS[backend].precisions
        if precision in settings["precisions"] or precision not in TORCH_PRECISIONS
    ]
    return [REFERENCE, *(pair for pair in chosen if pair != REFERENCE)]


def check(config: Mapping, experiment: str) -> None:
    """Raise GpufeedError for an unknown backend, and for one whose precisions are all left out."""
    if (found := settings(config, experiment)) is None:
        return
    where = f"experiments.{experiment}.inference"
    for name in found["backends"]:
        require_known("backend", name, BACKENDS, f"{where}.backends")
        if not any(backend == name for backend, _ in pairs(found)):
            raise GpufeedError(
                f"backend {name} in {where}, which has none of the `precisions`",
                f"one of: {', '.join(BACKENDS[name].precisions)}",
                f"add one to {where}.precisions, or remove the backend",
            )
