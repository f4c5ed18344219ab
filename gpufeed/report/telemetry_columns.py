"""What a thousand images took of the machine, and who else was on it, from the telemetry of repeats."""

import pandas as pd

from gpufeed.core.repeats import is_disturbed

TAKEN = {"j_per_1000_images": "gpu", "cpu_s_per_1000_images": "host"}  # measure -> its part of the telemetry


def taken(records: pd.DataFrame) -> dict[str, list[float]]:
    """The columns of TAKEN, a value a repeat: joules of the GPU and CPU seconds of the process tree.

    NaN where a record has no telemetry, as those of older versions, or no such number.
    """
    return {
        name: [_number(told, part, name) for told in records["telemetry"]] for name, part in TAKEN.items()
    }


def accompanied(records: pd.DataFrame) -> list[bool]:
    """Whether another process had a context on the GPU during each repeat; False where it is unknown."""
    return [_others(told) > 0 for told in records["telemetry"]]


def disturbed(records: pd.DataFrame) -> list[bool]:
    """Whether other processes used the cores while a repeat was measured; False where it is unknown."""
    return [is_disturbed(told) for told in records["telemetry"]]


def _others(telemetry: object) -> float:
    gpu = telemetry.get("gpu") if isinstance(telemetry, dict) else None
    seen = (gpu or {}).get("other_processes")
    return seen["max"] if seen else 0


def _number(telemetry: object, part: str, name: str) -> float:
    told = telemetry.get(part) if isinstance(telemetry, dict) else None
    value = told.get(name) if told else None
    return float("nan") if value is None else float(value)
