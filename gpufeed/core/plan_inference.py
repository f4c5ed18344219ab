"""What an experiment measures of its kept models. Used while planning."""

from collections.abc import Mapping
from typing import Any

from gpufeed.core.config_sources import with_defaults
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.registry import BACKENDS, TORCH_PRECISIONS

REFERENCE = ("eager", "fp32")  # its predictions are the reference


def own(config: Mapping, experiment: str) -> Mapping | None:
    """Return the experiment's `inference` as written; None without it."""
    return config["experiments"][experiment].get("inference")


def calibration(config: Mapping, experiment: str) -> dict[str, Any]:
    """Return how the INT8 file of an experiment is calibrated, with all defaults."""
    return with_defaults("calibration", (own(config, experiment) or {}).get("calibration", {}))


def settings(config: Mapping, experiment: str) -> dict[str, Any] | None:
    """Return the measurement's settings with all defaults, without calibration; None without `inference`."""
    if (block := own(config, experiment)) is None:
        return None
    found = {"backends": list(BACKENDS), **with_defaults("inference", block)}
    return {key: value for key, value in found.items() if key not in ("blocks", "calibration")}


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
