"""Ceilings of cells, row by row: names, parts of an epoch, the table of the CSV, and the answer in short."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from gpufeed.benchmarks.ceilings.shares import ALONE, END, epoch_parts
from gpufeed.core.plan_ceilings import DECODE, FETCH, TRANSFER
from gpufeed.report import wording
from gpufeed.report.load_records import graphs_of, grouped, machine_of, workers_of
from gpufeed.report.sections import ceilings_verdict
from gpufeed.report.sections.inference import machine

SIDES = (END, ALONE, "input_only")
ENDS = ("median", "ci95_low", "ci95_high")
HEAD = (
    "experiment", "cell_id", "loader", "workers", "augment", "model", "dataset", "batch_size", "machine",
    "gpu_uuid", "commit", "status", "sentence",
)  # fmt: skip
IN_WAIT = (DECODE, TRANSFER)  # stages that a warm epoch waits for


def title(found: Mapping) -> str:
    """Return task and machine, as `vit_tiny on cifar10, bf16, batch 512; NVIDIA H200, torch 2.11`."""
    cell, precision = found["cell"], found["resolved"]["precision"]
    parts = [f"{cell['model']} on {cell['dataset']}", precision, f"batch {batch_size(found)}"]
    if cell.get("cores"):
        parts.append(wording.FEATURES["cores_asked"](cell["cores"]))
    return f"{', '.join(parts)}; {machine(found)}"


def batch_size(found: Mapping) -> int:
    """Return the images of a step; if the cell's own batch did not fit, those of the one that did."""
    return (found["resolved"] or {}).get("batch_size", found["cell"]["batch_size"])


def groups(measurements: Sequence[Mapping]) -> dict[str, list[tuple[str, Mapping]]]:
    """Return title -> (name of the pipeline, document) of those that are done, the highest AU first.

    Those that a busy machine spoilt come last.
    """
    done = [one for one in measurements if one["status"] == "done"]
    return {name: named(rows) for name, rows in grouped(done, title).items()}


def named(rows: Sequence[Mapping]) -> list[tuple[str, Mapping]]:
    """Return each document with a name: its loader, its workers, and what else differs."""
    cells = pd.DataFrame(
        [
            {
                **row["cell"],
                "cell_id": row["cell_id"],
                "step_limit": row["cell"].get("steps"),
                "workers": workers_of(row["cell"], row["resolved"], row["environment"]),
                "cuda_graphs": graphs_of(row["cell"], row["resolved"]),
            }
            for row in rows
        ]
    )
    names = wording.labels(cells.reindex(columns=cells.columns.union([*wording.FEATURES])))
    pairs = zip(names, rows, strict=True)
    return sorted(
        pairs, key=lambda pair: (ceilings_verdict.busy(pair[1]), -pair[1]["shares"]["au"]["median"])
    )


def parts(found: Mapping) -> dict[str, float]:
    """Return seconds of the parts that add up to a steady epoch end to end.

    compute, first batch, the stages that were measured and have points, other wait, growth.
    """
    whole = epoch_parts(found["pairs"], found["segment"]["epochs"])
    epoch_s, left = sum(whole.values()), whole["wait"]
    split = {"compute": whole["compute"], "first batch": whole["start"]}
    for name in IN_WAIT:
        stage = found["stages"][name]
        split[name] = min(left, stage["points"] * epoch_s) if stage["shown"] else 0.0
        left -= split[name]
    return {**split, "other wait": left, "growth": whole["growth"]}


LIMITS = ("au", "au_ci95_low", "au_ci95_high", "au_pairs", "limited_by")


def limits(measurements: Iterable[Mapping]) -> pd.DataFrame:
    """Return what is joined to the table of cells: a row a cell and machine that is done, with LIMITS.

    limited_by: the kind of its verdict, such as `input-bound`.
    """
    rows = []
    for found in measurements:
        if found["status"] == "done":
            au = found["shares"]["au"]
            limited_by = ceilings_verdict.of(found).kind
            machine = machine_of(found["cell"], found["resolved"], found["environment"])
            place = (machine["hardware"], machine["stack"], machine["torch"])
            shares = (au["median"], au["ci95_low"], au["ci95_high"], au["n"])
            rows.append((found["cell_id"], *place, batch_size(found), *shares, limited_by))
    keys = ["cell_id", "hardware", "stack", "torch", "batch_size"]
    table = pd.DataFrame(rows, columns=[*keys, *LIMITS]).drop_duplicates(keys)
    return table.astype(dict.fromkeys(LIMITS[:3], float))


def origin(found: Mapping) -> tuple[str, str]:
    """Return (GPU's UUID, else machine, else node; commit) that a document was measured with."""
    environment = found["environment"]
    uuid = environment["gpu"] and environment["gpu"]["uuid"]
    place = uuid or environment.get("machine") or environment["node"]
    return place, wording.commit(environment["commit"], environment["dirty"])


def table(measurements: Iterable[Mapping]) -> pd.DataFrame:
    """Return one row a document, in their order; an unmeasured one has its status and sentence.

    Shares are of the epoch, seconds those of an epoch.
    """
    rows: list[dict[str, Any]] = []
    for found in measurements:
        uuid, commit = origin(found)
        head = {name: found["cell"].get(name) for name in HEAD} | {
            **{name: found[name] for name in ("experiment", "cell_id", "status", "sentence")},
            "workers": workers_of(found["cell"], found["resolved"], found["environment"]),
            "batch_size": batch_size(found),
            "machine": machine(found),
            "gpu_uuid": uuid,
            "commit": commit,
        }
        rows.append(head | (flat(found) if found["status"] == "done" else {}))
    return pd.DataFrame(rows, columns=None if rows else HEAD)


def flat(found: Mapping) -> dict[str, Any]:
    """Return the numbers of a document without nesting, and its verdict."""
    verdict = ceilings_verdict.of(found)
    values: dict[str, Any] = {"verdict": verdict.kind, "stage": verdict.stage, "evidence": verdict.sentence}
    values["pairs"] = len(found["pairs"])
    for name, share in found["shares"].items():
        values |= {f"{name}_{end}": share[end] for end in ENDS}
    for side in SIDES:
        values |= {f"images_per_s_{side}_{end}": found["images_per_s"][side][end] for end in ENDS}
    for name in (FETCH, *IN_WAIT):
        stage = found["stages"][name]
        values[f"{name}_s"] = stage["seconds"] and stage["seconds"]["median"]
        values |= {f"{name}_{key}": stage[key] for key in ("points", "at_most", "reason")}
    return {**values, **found["start_up"]}


Rows = Sequence[tuple[str, Mapping]]  # as `groups` gives them, the highest AU first


def headline(rows: Rows) -> str:
    """Return the pipeline with the highest AU, its images/s, those beside and behind it, and its verdict.

    Those that a busy machine spoilt are left out; where all are, the first says so.
    """
    rows = [row for row in rows if not ceilings_verdict.busy(row[1])] or rows[:1]
    name, found = rows[0]
    au, rate = wording.tenths(found["shares"]["au"]["median"]), wording.count(speed(found)["median"])
    sentence = ceilings_verdict.of(found).sentence
    return f"{name}: AU {au}, {rate} images/s{standing(rows)}{faster(rows)}. {wording.capital(sentence)}"


def standing(rows: Rows) -> str:
    """Return whose AU is not distinguishable from the first one's, and who comes next."""
    (_, first), *others = rows
    au = first["shares"]["au"]
    close = [(name, found) for name, found in others if not apart(au, found["shares"]["au"])]
    behind = [(name, found) for name, found in others if apart(au, found["shares"]["au"])]
    words = ""
    if close:
        words = f", not told apart from {' or '.join(with_au(*one) for one in close)}"
    elif behind:
        words = f", the highest AU of {len(rows)} pipelines"
    if behind:
        points = ceilings_verdict.points_of(au["median"] - behind[0][1]["shares"]["au"]["median"])
        words += f"; next {with_au(*behind[0])}, {points} below"
    return words


def faster(rows: Rows) -> str:
    """Return who has most images/s if that is not the first row; else, or if unknown, empty."""
    (_, first), *_ = rows
    name, found = max(rows, key=lambda row: speed(row[1])["median"])
    elsewhere = origin(found) != origin(first)
    if found is first or not (elsewhere or apart(speed(found), speed(first))):
        return ""
    where = ", on another GPU or by another version of gpufeed" if elsewhere else ""
    return f"; most images/s: {name}, {wording.count(speed(found)['median'])}{where}"


def apart(one: Mapping, other: Mapping) -> bool:
    """Return whether the 95 % intervals of two summaries are disjoint; False without intervals."""
    if one["ci95_low"] is None or other["ci95_low"] is None:
        return False
    return one["ci95_low"] > other["ci95_high"] or other["ci95_low"] > one["ci95_high"]


def with_au(name: str, found: Mapping) -> str:
    return f"{name} {wording.tenths(found['shares']['au']['median'])}"


def speed(found: Mapping) -> Mapping:
    """Return the summary of its images per second, end to end."""
    return found["images_per_s"][END]


def mixed_origins(rows: Rows) -> str:
    """Return a sentence if the rows of a table come from several GPUs or versions; else empty."""
    origins = grouped(rows, lambda row: origin(row[1]))
    if len(origins) < 2:
        return ""
    each = ". ".join(
        f"{commit} on {place}: {'; '.join(name for name, _ in ours)}"
        for (place, commit), ours in origins.items()
    )
    return (
        "AU and what is lost are of one process each, on one GPU, and can be held against each other; "
        f"images/s are of several GPUs or versions of gpufeed. {each}."
    )
