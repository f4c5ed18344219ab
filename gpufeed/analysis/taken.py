"""What a thousand images took of the machine, from the telemetry of repeats."""

import pandas as pd

TAKEN = {"j_per_1000_images": "gpu", "cpu_s_per_1000_images": "host"}  # measure -> its part of the telemetry


def taken(records: pd.DataFrame) -> dict[str, list[float]]:
    """The columns of TAKEN, a value a repeat: joules of the GPU and CPU seconds of the process tree.

    NaN where a record has no telemetry, as those of older versions, or no such number.
    """
    return {
        name: [_number(told, part, name) for told in records["telemetry"]] for name, part in TAKEN.items()
    }


def _number(telemetry: object, part: str, name: str) -> float:
    told = telemetry.get(part) if isinstance(telemetry, dict) else None
    value = told.get(name) if told else None
    return float("nan") if value is None else float(value)
