"""How long a run will take, told before it starts.

A measurement is expected to take as long as it did before, where a document tells, else what its kind takes
on one H200 with 16 cores. Standard library only: the workflow imports this while it plans.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parents[1] / "results" / "reference"
STARTING_S = 5.5  # before `started_at`: Snakemake's choice of the job, a new Python, the import of torch


@dataclass(frozen=True)
class Kind:
    """One kind of measurement, by the folder of its documents. seconds: of a job that nothing tells of."""

    one: str
    several: str
    seconds: float


KINDS = {
    "records": Kind("repeat", "repeats", 14),
    "gate": Kind("verdict", "verdicts", 12),
    "ceilings": Kind("cell's ceilings", "cells' ceilings", 90),
    "sweeps": Kind("decoder", "decoders", 16),
    "builds": Kind("timed build", "timed builds", 20),
    "kernels": Kind("kernel benchmark", "kernel benchmarks", 120),
    "models": Kind("kept model", "kept models", 40),
    "inference": Kind("model in use", "models in use", 480),
}
DATASET_S = 15  # its files, its caches and its strips


def table(
    parts: Mapping[str, Iterable[str]], results: str, manifests: Iterable[str], least_s: float = 0.0
) -> str:
    """The expected minutes of each part, of all together and of what is left, as lines for a terminal.

    parts: experiment -> paths of its documents below `results`; one that several wait for counts once.
    manifests: of the datasets. least_s: as in the config, which earlier repeats may have been too short for.
    """
    seen: set[str] = set()
    rows, whole, left = [], 0.0, 0.0
    folders = (Path(results), *sorted(PUBLISHED.glob("*")))
    for name, paths in parts.items():
        own = [path for path in dict.fromkeys(paths) if path not in seen]
        seen.update(own)
        seconds = {path: seconds_of(Path(path).relative_to(results), folders, least_s) for path in own}
        whole += sum(seconds.values())
        left += sum(lasts for path, lasts in seconds.items() if not Path(path).exists())
        rows.append((name, minutes(sum(seconds.values())), counted(own, results)))
    manifests = list(manifests)
    missing = [path for path in manifests if not Path(path).exists()]
    whole, left = whole + DATASET_S * len(manifests), left + DATASET_S * len(missing)
    rows.append(
        (
            "data",
            minutes(DATASET_S * len(manifests)),
            f"{len(manifests)} dataset{'s' * (len(manifests) != 1)}, without downloads",
        )
    )
    rows.append(("together", minutes(whole), f"{minutes(left)} of them left"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {name:{widths[0]}}  {time:>{widths[1]}}  {what}" for name, time, what in rows]
    return "\n".join(["Expected minutes of what `run` lists, one job after another:", *lines])


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def counted(paths: Iterable[str], results: str) -> str:
    """`46 repeats, 1 verdict`."""
    folders = [Path(path).relative_to(results).parts[0] for path in paths]
    found = [(KINDS[folder], folders.count(folder)) for folder in KINDS if folder in folders]
    return ", ".join(f"{n} {kind.one if n == 1 else kind.several}" for kind, n in found)


def seconds_of(path: Path, folders: Iterable[Path], least_s: float = 0.0) -> float:
    """Of one measurement. path: of its document below any of the folders; the first that has it counts.

    Repeats of one cell take as long as each other.
    """
    for folder in folders:
        if path.parts[0] == "records":
            found = _of_cell((folder / path).parent, least_s)
        else:
            found = lasted(folder / path)
        if found is not None:
            return found
    return KINDS[path.parts[0]].seconds


@cache
def _of_cell(folder: Path, least_s: float) -> float | None:
    found = (lasted(path, least_s) for path in sorted(folder.glob("*.json")))
    return next((seconds for seconds in found if seconds is not None), None)


def lasted(path: Path, least_s: float = 0.0) -> float | None:
    """What a finished document took, start of its process included; None where it does not tell.

    A repeat that was taken up again tells of its last process alone.

    A repeat with a steady state under least_s would take what is missing longer.
    """
    try:
        told = json.loads(path.read_text())
        if told["status"] not in ("done", "passed") or told.get("resumed"):
            return None
        started, finished = (datetime.fromisoformat(told[key]) for key in ("started_at", "finished_at"))
        short_s = max(0.0, least_s - told["throughput"]["seconds"]) if "throughput" in told else 0.0
        return STARTING_S + (finished - started).total_seconds() + short_s
    except (OSError, ValueError, KeyError, TypeError):
        return None
