"""Models in use, row by row: rates, the table of the CSV, and whether 8 bits pay, in sentences."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gpufeed.core import record
from gpufeed.report import wording
from gpufeed.report.load_records import finished
from gpufeed.system.statistics import MATTERS

EIGHT_BIT = ("int8", "fp8")  # precisions of the arithmetic that no eager row has
COLUMNS = ("backend", "precision", "status", "sentence", "note", "bytes", "images", "top1")
DIFFERENCES = ("over_fp32", "over_bf16", "agreement")


def done(found: Mapping) -> dict[tuple[str, str], Mapping]:
    """Return the rows that were measured to the end, by (backend, precision)."""
    return finished(found, "backend", "precision")


def rival(rows: Mapping[tuple[str, str], Mapping], precision: str) -> Mapping | None:
    """Return the eager row that rows of this precision are compared with; None if not measured.

    That of the same precision; of an 8-bit one that of bf16, which the rest of such a model has on a GPU, or
    else fp32.
    """
    if precision not in EIGHT_BIT:
        return rows.get(("eager", precision))
    return rows.get(("eager", "bf16")) or rows.get(("eager", "fp32"))


def rate(row: Mapping, batch: int) -> Mapping[str, float] | None:
    """Return median, min and max of a row's images a second at this batch; None if it has none."""
    return next((entry["images_per_s"] for entry in row["throughput"] if entry["batch"] == batch), None)


def batches(found: Mapping) -> list[int]:
    """Return batch sizes, the smallest first."""
    return sorted(found["settings"]["batch_sizes"])


def title(found: Mapping) -> str:
    """Return model and dataset, such as `vit_tiny on tiny_imagenet`."""
    return f"{found['cell']['model']} on {found['cell']['dataset']}"


def machine(found: Mapping) -> str:
    """Return where it was measured, such as `NVIDIA H200, torch 2.11.0`."""
    on_gpu = bool(found["resolved"]) and found["resolved"]["device"] == "cuda"
    return wording.measured_on(found["environment"], on_gpu)


def table(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Return one row a model, backend and precision, in the order of the paths.

    A measurement that was not made has one row with its status and sentence. Raises GpufeedError for a
    damaged one.
    """
    rows: list[dict[str, Any]] = []
    for path in paths:
        found = record.INFERENCE.read(path)
        head = {"cell_id": found["cell_id"], "model": found["cell"]["model"]}
        head |= {"dataset": found["cell"]["dataset"], "machine": machine(found)}
        if found["status"] != "done":
            rows.append({**head, "status": found["status"], "sentence": found["sentence"]})
        measured = done(found)
        for row in found["rows"]:
            rows.append({**head, **flat(row, batches(found), rival(measured, row["precision"]))})
    keys = [*head, *COLUMNS, *DIFFERENCES] if rows else ["cell_id", "model", "dataset", "machine", *COLUMNS]
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=[*keys, *(name for name in frame.columns if name not in keys)])


def flat(row: Mapping, sizes: Iterable[int], eager: Mapping | None) -> dict[str, Any]:
    """Return a row without nesting; eager: what its rates are divided by."""
    values = {key: row[key] for key in (*COLUMNS, *DIFFERENCES)}
    for clock in ("host_ms", "device_ms"):
        times = (row["latency"] or {}).get(clock) or {}
        values |= {f"latency_{clock}_{end}": times.get(end) for end in ("median", "p90", "p99")}
    for batch in sizes:
        own, other = rate(row, batch), eager and rate(eager, batch)
        values |= {f"images_per_s_{batch}_{end}": own and own[end] for end in ("median", "min", "max")}
        values[f"times_eager_{batch}"] = own["median"] / other["median"] if own and other else None
    return values


NEAR = 0.005  # of the accuracy: half a point
MOST_NAMED = 2  # rows that the fastest is not told apart from


@dataclass(frozen=True)
class Speed:
    """How fast a row is at one thing. value: more is better; low, high: how far it may be away."""

    name: str
    value: float
    low: float
    high: float
    said: str


def sentences(found: Mapping) -> list[str]:
    """Return what a measurement says of 8 bits: speed by batch, latency, accuracy; a sentence each."""
    rows, said = done(found), []
    for precision in EIGHT_BIT:
        if not any(kind == precision for _, kind in rows):
            if any(row["precision"] == precision for row in found["rows"]):
                said.append(f"No {precision.upper()} route ran to its end here: see the reasons below.")
            continue
        for batch in batches(found):
            said.append(verdict(rows, precision, f"batch {batch}", lambda row, n=batch: throughput(row, n)))
        said.append(verdict(rows, precision, "one image", latency))
        said += accuracies(rows, precision)
    return [sentence for sentence in said if sentence]


def headline(found: Mapping) -> str:
    """Return the fastest row at the largest batch and with one image, and rows as fast as far as known.

    The factor over eager fp32 stands only where it is ahead of that by more than MATTERS. Empty without rows.
    """
    rows, largest = done(found), max(batches(found), default=0)
    ways = [(f"At batch {largest}", lambda row: throughput(row, largest)), ("With one image", latency)]
    said = []
    for where, speed in ways:
        best = fastest(rows, speed, lambda kind: True)
        if best is not None:
            eager = speed(rows[("eager", "fp32")]) if ("eager", "fp32") in rows else None
            times = ""
            if eager and ahead(best, eager):
                times = f", {wording.ratio(best.value / eager.value)} the speed of eager fp32"
            said.append(f"{where} {best.name} {standing(best, speeds(rows, speed))}: {best.said}{times}.")
    return " ".join(said)


def standing(best: Speed, all_: list[Speed]) -> str:
    """Return how the row with the highest median stands to the others."""
    near = [other.name for other in all_ if other != best and not ahead(best, other)]
    if not near:
        return "is fastest"
    names = wording.listing(near) if len(near) <= MOST_NAMED else f"{len(near)} others"
    return f"has the highest median, not distinguishable from {names}"


def verdict(rows: Mapping, precision: str, where: str, speed: Callable[[Mapping], Speed | None]) -> str:
    """Compare the fastest row of this precision with the fastest of more than 8 bits; empty without both."""
    ours = fastest(rows, speed, lambda kind: kind == precision)
    others = fastest(rows, speed, lambda kind: kind not in EIGHT_BIT)
    if ours is None or others is None:
        return ""
    if ahead(ours, others):
        answer = "pays"
    elif ahead(others, ours):
        answer = "does not pay"
    else:
        answer = "is not shown to pay or to cost"
    factor = wording.ratio(ours.value / others.value)
    return (
        f"At {where} {precision.upper()} {answer}: its fastest route, {ours.name}, has {ours.said}, {factor} "
        f"the speed of the fastest without, {others.name} ({others.said})."
    )


def ahead(one: Speed, other: Speed) -> bool:
    """Return whether one range lies beyond MATTERS above the other; one process each gives no interval."""
    return one.low > MATTERS * other.high


def fastest(rows: Mapping, speed: Callable, wanted: Callable[[str], bool]) -> Speed | None:
    """Return the fastest of the rows whose precision is wanted."""
    chosen = {key: row for key, row in rows.items() if wanted(key[1])}
    return max(speeds(chosen, speed), key=lambda found: found.value, default=None)


def speeds(rows: Mapping, speed: Callable) -> list[Speed]:
    """Return the speeds of the rows that have one."""
    return [found for row in rows.values() if (found := speed(row))]


def throughput(row: Mapping, batch: int) -> Speed | None:
    """Return images a second, with the range of the rounds."""
    found = rate(row, batch)
    if found is None:
        return None
    said = f"{wording.count(found['median'])} images/s"
    return Speed(row_name(row), found["median"], found["min"], found["max"], said)


def latency(row: Mapping) -> Speed | None:
    """Return calls a second with one image; both ends of the range use the known slow tenth."""
    if row["latency"] is None:
        return None
    times = row["latency"]["host_ms"]
    spread = times["p90"] - times["median"]
    fast = max(times["median"] - spread, times["median"] / 2)
    said = f"{times['median']:.3g} ms"
    return Speed(row_name(row), 1 / times["median"], 1 / times["p90"], 1 / fast, said)


def row_name(row: Mapping) -> str:
    """Return the name of a row in a sentence."""
    return row["backend"] if row["precision"] in EIGHT_BIT else f"{row['backend']} {row['precision']}"


def accuracies(rows: Mapping, precision: str) -> list[str]:
    """Return how far the accuracy of each row of this precision is from bf16, or else fp32."""
    said = []
    for (_, kind), row in rows.items():
        reference = "bf16" if row["over_bf16"] is not None else "fp32"
        difference = row[f"over_{reference}"]
        if kind != precision or difference is None:
            continue
        near = "within" if abs(difference) <= NEAR else "more than"
        said.append(
            f"The accuracy of {row_name(row)} is {wording.points(difference)} points from eager {reference} "
            f"({near} {NEAR * 100:g} points) on {row['images']:,} images, of which "
            f"{wording.percent(row['agreement'])} get the class that eager fp32 gives."
        )
    return said
