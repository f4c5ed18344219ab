"""What the terminal calls rules, jobs, cells and times, and what stopped a job."""

import json
import logging
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.core.quantities import plural
from gpufeed.core.registry import LOADERS
from gpufeed.core.repeats import machine, number_of, stands_in

REFUSED = re.compile(r"found: .*\n(?:.*\n)*?\s*expected: .*\n(?:.*\n)*?\s*what to do: .*")
RAISED = re.compile(r"^[A-Za-z_.]*(?:Error|Exception|Interrupt)(?:: .+)?$", re.MULTILINE)
# what the first job of several rules prints, with the number of all; an empty noun: without
STORE = ("Building", "converted dataset")
STAGES = {
    ("download",): ("Downloading", "file"),
    ("prepare_dataset",): ("Preparing", "dataset"),
    ("build_extension",): ("Compiling kernels", ""),
    tuple(f"build_{name}" for name in ("cache", "scaled_cache", "strips", "shards", "beton")): STORE,
    ("gate", "gate_tuned"): ("Checking the samples of", "loader"),
    ("tune_cell",): ("Finding the settings of", "cell"),
    ("probe_cell",): ("Probing", "cell"),
    ("measure_cell",): ("Measuring", "repeat"),
    ("measure_ceilings",): ("Measuring the limits of", "cell"),
    ("measure_decoder",): ("Measuring", "decoder"),
    ("measure_build",): ("Timing", "build"),
    ("measure_kernel",): ("Measuring kernels", ""),
    ("train_model", "evaluate_model", "predict"): ("Training models to keep", ""),
    ("export_model", "quantise_model", "measure_inference"): ("Measuring models in use", ""),
    ("advise", "find_disturbed", "count_repeats"): ("", ""),
    (
        *("tabulate", "tabulate_sweep", "compare", "assemble_report", "report", "plot", "plot_side_by_side"),
        *("plot_ceilings", "plot_sweep", "plot_inference", "plot_confusion"),
    ): ("Writing tables, figures and report", ""),
}
AGAIN = ("again",)  # of measure_cell
STAGES[AGAIN] = ("Measuring once more", "repeat")
STAGE_OF = {rule: rules for rules in STAGES for rule in rules}
# what tells cells of one loader apart, in the words of the leaderboard, and what tells any cells apart
OF_A_LOADER = {
    "augment": "augment {}",
    "decoder": "decoded by {}",
    "epochs": "{} epochs",
    "cores": "{} cores",
}
OF_ALL = ("model", "dataset", "batch_size", "precision", "synchronise")


def labels(
    cells: Mapping[str, Cell], workers_of: Callable[[Cell], int | str] = lambda cell: cell.workers
) -> dict[str, str]:
    """Return a name for each cell of an experiment: its loader, its workers, and what else varies.

    workers_of: as in Known.
    """
    fields = {name: cell.identity() for name, cell in cells.items()}
    values: dict[tuple[str, str], set[str]] = {}
    for own in fields.values():
        for axis in (*OF_ALL, *OF_A_LOADER):
            values.setdefault((own["loader"] * (axis in OF_A_LOADER), axis), set()).add(str(own.get(axis)))
    found = {}
    for name, own in fields.items():
        loader, workers = own["loader"], workers_of(cells[name])
        noun = "thread" if loader in LOADERS and LOADERS[loader].threads else "worker"
        parts = [loader, *([plural(workers, noun)] if workers else [])]
        for axis in (*OF_ALL, *OF_A_LOADER):
            if len(values[loader * (axis in OF_A_LOADER), axis]) > 1 and own.get(axis) is not None:
                parts.append(OF_A_LOADER.get(axis, "{}").format(own[axis]))
        found[name] = ", ".join(parts)
    return found


def measured_again(job: logging.LogRecord, found: Sequence[Mapping[str, Any]]) -> str:
    """Return which rate a second measurement of a repeat replaces, or that it does not. found: its record."""
    number = number_of(job.wildcards["repeat"])
    first = read(str(Path(job.output[0]).with_name(f"{number}.json")))
    if (rate := (first.get("throughput") or {}).get("images_per_s")) is None:
        return ""
    before, after = ((machine(one), one.get("telemetry")) for one in (first, found[0]))
    if stands_in(after, before):
        return f"  repeat {number + 1} again: it was {rate:,.0f} while other processes ran"
    why = "not shown to be quieter" if before[0] == after[0] else "on another machine"
    return f"  repeat {number + 1} again, {why}: the first counts, {rate:,.0f}"


def read(path: str) -> dict[str, Any]:
    """Return a document; an empty one where there is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def ended(text: str) -> str:
    """Return which signal ended a job, from Snakemake's error; empty where none did."""
    found = re.search(r"exit status (\d+)", text)
    number = int(found[1]) - 128 if found else 0
    return f"{signal.strsignal(number) or number} (signal {number})" if number > 0 else ""


def unsubmitted(text: str) -> str:
    """Return why an executor did not submit a job, without the kilobytes of the command that it wraps."""
    said = re.sub(r"\s*(--wrap=|For further error details see).*", "", text, flags=re.DOTALL)
    if not re.match(r"SLURM sbatch failed|Job submission failed", said):
        return said
    return f"{said}\nwhat to do: gpufeed preflight --site SITE lists each line that Slurm refuses, and why"


def reason(log: str) -> str:
    """Return why a job ended, from its log: the lines of a GpufeedError, or the last of a traceback."""
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    found = [*REFUSED.findall(text), *RAISED.findall(text)]
    return found[0] if REFUSED.search(text) else (found or [""])[-1]


def counted(repeat: str) -> str:
    """Return how a repeat is called: its number, from 1 on, or that it is measured once more."""
    return f"repeat {int(repeat) + 1}" if repeat.isdecimal() else "a disturbed repeat once more"


def at_work(stage: tuple[str, ...], count: int) -> str:
    """Return what so many jobs of a stage do; 0: an unknown number."""
    verb, noun = STAGES[stage]
    return f"{verb} {plural(count, noun) if count else noun + 's'}" if noun else verb


def lasting(seconds: float) -> str:
    """Return a duration in the unit that suits it: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
