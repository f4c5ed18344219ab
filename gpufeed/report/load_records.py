"""What measurements left on disk, read for the report: records, step tables, and documents of other kinds.

Nothing that is damaged or of another version ends the report: a record becomes a row that says so, a step
table a sentence, a document of another kind a trouble.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from gpufeed.core.cells import LATER
from gpufeed.core.errors import GpufeedError, first_line
from gpufeed.core.record import Record
from gpufeed.core.repeats import again, counting, is_disturbed, number_of, others_share
from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.report import wording
from gpufeed.report.find_results import STEPS_SUFFIX

PHASES = ("load_ms", "transfer_ms", "train_ms", "total_ms", "wait_ms")
STEP_COLUMNS = ["experiment", "cell_id", "repeat", "epoch", "step", "images", *PHASES, "loss"]
AXES = (
    "dataset", "loader", "decoder", "hw_decoder_load", "augment", "recipe", "model", "trainer",
    "batch_size", "workers", "prefetch_factor", "pin_memory", "persistent_workers", "channels_last",
    "cuda_graphs", "compile", "synchronise", "epochs", "devices", "nodes", "seed",
)  # fmt: skip
WHOLE_NUMBERS = (
    "repeat", "batch_size", "batch_size_asked", "workers", "prefetch_factor", "epochs", "devices", "nodes",
    "step_limit", "cores", "cores_asked", "warmup_steps",
)  # fmt: skip
COLUMNS = [
    "path", "experiment", "cell_id", "repeat", "status", "sentence", "started_at", "finished_at",
    *AXES, "settings", "batch_size_asked", "cores_asked", "step_limit", "precision", "overrides", "hyper",
    "source", "device",
    "hardware", "stack", "torch", "node", "machine", "cpu", "cores", "gpu", "driver", "os", "python",
    "memory_gib", "versions", "software", "commit", "dirty",
    "images_per_s", "wait_share", *PHASES, "steps_n", "warmup", "warmup_steps", "epoch_s",
    "first_batch_s", "setup_s", "top1", "peak_gpu_mib", "peak_host_mib", "epoch_rows", "facts",
    "engines_share",
    "fell_back_share", "fell_back_to", "images_from", "telemetry", "phases", "resumed", "others_cpu_share",
    "measured_again",
]  # fmt: skip
HELD_OUT = ("held_out_loss", "top1")
BEFORE = dict(one for one in LATER if len(one) == 2)  # what records of older versions lack


def read_records(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Read records into one row a repeat, cell axes and measures side by side (columns: COLUMNS).

    Of a repeat that was measured twice the record that counts (see `repeats.counting`), at the place of the
    first among the blocks: `started_at` is that of the first. measured_again: whether the first was disturbed
    and there is a second. One that failed or is unusable has a row whichever it is.
    Step times are means over the steps after warm-up, in ms: means add up, medians do not.
    A file that is no valid record gives a row with status `unusable` and the reason as its sentence. A repeat
    that was taken up again has accuracy, losses and memory, and no times; `resumed` says how often it was.
    """
    table = pd.DataFrame(_counting({path: _row(path) for path in map(Path, paths)}), columns=COLUMNS)
    for column in WHOLE_NUMBERS:
        table[column] = pd.to_numeric(table[column], errors="coerce").astype("Int64")
    return table.assign(batch_size=_batch_sizes(table))


def _counting(rows: dict[Path, dict]) -> list[dict]:
    machine = ("hardware", "stack", "torch", "batch_size")
    seen = {path: (tuple(map(row.get, machine)), row.get("telemetry")) for path, row in rows.items()}
    first = {again(path): path for path in rows if again(path) in rows}
    counts, found = counting(seen), []
    for path, row in rows.items():
        if path in counts or row["status"] != "done":
            before = rows[first.get(path, path)]
            twice = (path in first or again(path) in rows) and is_disturbed(before.get("telemetry"))
            found.append(row | {"started_at": before.get("started_at"), "measured_again": twice})
    return found


def _batch_sizes(table: pd.DataFrame) -> pd.Series:
    """Return batch_size; for an unfinished repeat the one size of its cell's finished repeats, if any."""
    done = table["batch_size"].where(table["status"] == "done")
    same = [table[name] for name in ("experiment", "cell_id", "hardware", "stack", "torch")]
    finished = done.groupby(same, dropna=False)
    fitted = finished.transform("first").where(finished.transform("nunique") == 1)
    return done.fillna(fitted).fillna(table["batch_size"])


def timed(records: pd.DataFrame) -> pd.DataFrame:
    """Return the finished repeats that count as timings: those that were not resumed."""
    return records[records["images_per_s"].notna()]


def read_steps(paths: Iterable[str | Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return all step rows (STEP_COLUMNS, and `path` of their record), and a sentence for each bad file."""
    tables, damaged = [], []
    for path in map(str, paths):
        try:
            table = pd.read_parquet(path)[STEP_COLUMNS]
        except (OSError, ValueError, KeyError) as error:
            damaged.append(f"the step table {path} cannot be read ({first_line(error)})")
            continue
        if len(table):
            tables.append(table.assign(path=path.removesuffix(STEPS_SUFFIX) + ".json"))
    if not tables:
        return pd.DataFrame(columns=[*STEP_COLUMNS, "path"]), damaged
    return pd.concat(tables, ignore_index=True), damaged


def read_epochs(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row an epoch of every finished repeat: its keys and the epoch's numbers.

    held_out_loss and top1 are of the evaluation after that epoch, NaN without one.
    """
    keys = ["path", "experiment", "cell_id", "repeat", "hardware", "stack", "torch", "batch_size"]
    rows = [
        {
            **{key: record[key] for key in keys},
            **epoch,
            "held_out_loss": nested(epoch, "accuracy", "loss"),
            "top1": nested(epoch, "accuracy", "top1"),
        }
        for record in records.to_dict("records")
        if record["status"] == "done"
        for epoch in record["epoch_rows"]
    ]
    columns = [*keys, "epoch", "steps", "images", "epoch_s", "images_per_s", "train_loss", *HELD_OUT]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(HELD_OUT, float))


def _row(path: Path) -> dict:
    """Return a record as a row; a damaged one by its path, <experiment>/<cell_id>/<repeat>.json."""
    try:
        return _flat(Record.read(path), path)
    except GpufeedError as error:
        return {
            "path": str(path),
            "experiment": path.parent.parent.name,
            "cell_id": path.parent.name,
            "repeat": number_of(path.stem),
            "status": "unusable",
            "sentence": f"{first_line(error.found)}; {error.remedy}",
        }


def _flat(record: Record, path: Path) -> dict:
    resolved = record.resolved or {}
    cell = {**BEFORE, **record.cell, **resolved.get("tuned", {})}
    row = {
        name: getattr(record, name)
        for name in ("experiment", "cell_id", "repeat", "status", "sentence", "started_at", "finished_at")
    }
    row |= {axis: cell.get(axis) for axis in AXES}
    row |= {
        "path": str(path),
        "cuda_graphs": graphs_of(cell, resolved),
        "batch_size": resolved.get("batch_size", cell.get("batch_size")),
        "settings": cell["settings"],
        "batch_size_asked": cell.get("batch_size"),
        "workers": workers_of(cell, resolved, record.environment),
        "cores_asked": cell["cores"] or 0,
        "step_limit": cell.get("steps"),
        "precision": resolved.get("precision", cell.get("precision")),
        "overrides": "; ".join(cell.get("overrides") or ()),
        "hyper": json.dumps(cell.get("hyper") or {}, sort_keys=True),
        "source": json.dumps(cell["source"] or {}, sort_keys=True),
    }
    return row | machine_of(cell, resolved, record.environment) | _measures(record)


def workers_of(cell: Mapping, resolved: Mapping | None, environment: Mapping) -> int | None:
    """Return how many workers a cell has; for `auto`, what that was resolved to or would be."""
    asked = cell.get("workers")
    if asked != "auto":
        return asked
    return (resolved or {}).get("workers") or cell.get("cores") or environment["cores_allowed"]


def graphs_of(cell: Mapping, resolved: Mapping) -> bool | None:
    """Return whether a cell's steps were CUDA graphs; None for `auto` that did not run."""
    asked = cell.get("cuda_graphs")
    return resolved.get("cuda_graphs") if asked == "auto" else asked


def machine_of(cell: Mapping, resolved: Mapping | None, environment: Mapping) -> dict:
    """Return the columns of a machine; `hardware` is the GPU's model, or the CPU's without a GPU."""
    gpu = environment["gpu"]
    asked = cell.get("device", "auto")
    device = (resolved or {}).get("device") or (asked if asked != "auto" else None)
    device = device or ("cuda" if gpu else "cpu")
    same = ("stack", "node", "cpu", "driver", "os", "python", "memory_gib", "versions", "commit", "dirty")
    return {name: environment[name] for name in same} | {
        "device": device,
        "hardware": gpu["name"] if gpu and device == "cuda" else environment["cpu"],
        "gpu": gpu,
        "torch": environment["versions"].get("torch", "unknown"),
        "cores": environment["cores_allowed"],
        # absent in records of older versions
        "machine": environment.get("machine"),
        "software": environment.get("software"),
    }


def _measures(record: Record) -> dict:
    if record.status != "done":
        return {"epoch_rows": []}
    learnt = {  # what holds of a finished repeat however many processes made it
        "top1": nested(record.accuracy, "top1"),
        "peak_gpu_mib": record.memory["peak_gpu_mib"],
        "peak_host_mib": record.memory["peak_host_mib"],
        "epoch_rows": record.epochs,
        "facts": record.dataset,
        "engines_share": nested(record.loading, "hw_decoder_load"),  # where the cell left it to the files
        **_fell_back(record.loading),
        "images_from": wording.images_from(
            record.cell["loader"], nested(record.cell, "hyper", "recipe"), record.loading
        ),
    }
    return learnt | ({"resumed": len(record.resumed)} if record.resumed else _times(record))


def _times(record: Record) -> dict:
    # the first epoch warms caches and workers up, so it counts only where there is no other
    later = record.epochs[1:] or record.epochs
    row = {phase: record.steps[phase]["mean"] for phase in PHASES}
    return row | {
        "images_per_s": record.throughput["images_per_s"],
        "wait_share": record.throughput["wait_share"],
        "steps_n": record.steps["n"],
        "warmup": record.warmup["policy"],
        "warmup_steps": record.warmup["steps"],
        "epoch_s": pd.Series([epoch["epoch_s"] for epoch in later], dtype=float).median(),
        "first_batch_s": record.phases["first_batch_s"],
        "setup_s": record.phases["setup_s"],
        "telemetry": record.telemetry,
        "phases": record.phases,
        "others_cpu_share": others_share(record.telemetry),
    }


def _fell_back(loading: dict | None) -> dict:
    """Return the share of images that other decoders had to decode, and the names of these decoders.

    Nothing for a loader without a second decoder, and for records that do not tell.
    """
    if not loading or not loading["images"]:
        return {}
    others = loading["fell_back"]
    return {
        "fell_back_share": sum(others.values()) / loading["images"],
        "fell_back_to": " and ".join(sorted(others)),
    }


def nested(found: object, *keys: str) -> Any:
    """Return the value under these keys of nested dictionaries; None if one of them is missing."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def finished(found: Mapping, *keys: str) -> dict[tuple, Mapping]:
    """Return the rows of a document that are done, by their values under these keys."""
    return {itemgetter(*keys)(row): row for row in found["rows"] if row["status"] == "done"}


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list]:
    """Group items by key, keys and items in the order in which they come."""
    found: dict[Any, list] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@dataclass
class Documents:
    """Documents of one kind and experiment. found: (unit, document), of several machines maybe.

    troubles: status, who and sentence of each that is unusable; a section adds those that are not done.
    missing: planned units that have none.
    """

    found: list[tuple[str, Any]]
    troubles: list[dict]
    missing: list[str]

    def __bool__(self) -> bool:
        return bool(self.found or self.troubles or self.missing)

    @property
    def by_unit(self) -> dict[str, Any]:
        """The documents by unit; of several of one name the last."""
        return dict(self.found)

    @property
    def lacking(self) -> dict[str, list]:
        """What the template says of an experiment's documents that cannot be shown."""
        return {"troubles": self.troubles, "missing": self.missing}

    def add_trouble(self, status: str, who: str, sentence: str) -> None:
        self.troubles.append({"status": status, "who": who, "sentence": sentence})

    def tell_unfinished(self) -> None:
        """Add a trouble for each document that is not done."""
        for unit, found in self.found:
            if found["status"] != "done":
                self.add_trouble(found["status"], unit, found["sentence"])


def read_documents(
    kind: str,
    paths: Iterable[str | Path],
    experiment: str,
    read: Callable[[Path], Any],
    planned: Iterable[str] = (),
) -> Documents:
    """Return what could be read of an experiment's documents of one of RESULT_KINDS.

    paths: of all experiments. read: raises GpufeedError for a damaged one. planned: units of the experiment.
    """
    named = ((RESULT_KINDS[kind].names_in(path), path) for path in map(Path, paths))
    ours = [(unit, path) for (of, unit), path in named if of == experiment]
    documents = Documents([], [], [unit for unit in planned if unit not in dict(ours)])
    for unit, path in ours:
        try:
            documents.found.append((unit, read(path)))
        except GpufeedError as error:
            documents.add_trouble("unusable", unit, first_line(error.found))
    return documents
