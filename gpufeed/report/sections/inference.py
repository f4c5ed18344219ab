"""Models in use in the report: whether 8 bits pay, the tables, the figure, and what did not run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gpufeed.core import record
from gpufeed.report import style, wording
from gpufeed.report.load_records import Documents, finished, grouped, read_documents
from gpufeed.system.statistics import MATTERS

CAPTION = (
    "Images per second of batches, and milliseconds of single calls with one image on the host's clock until "
    "the device is done, by backend and precision; images lie on the device. Bars are medians over the "
    "rounds, whiskers reach from the slowest to the fastest; points are medians of the calls, whiskers reach "
    "to the slowest hundredth."
)


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """Return what the template shows of an experiment's models in use; None if it neither has nor plans any.

    paths: measurements of all experiments, <experiment>/<cell>.json. planned: ids of the cells whose models
    are to be measured.
    """
    documents = read_documents("inferences", paths, experiment, record.INFERENCE.read, planned)
    if not documents:
        return None
    measurements = list(documents.by_unit.values())
    for found in measurements:
        add_troubles(documents, found)
    pictures = []
    drawn = [found for found in measurements if done(found)]
    for number, found in enumerate(drawn):  # a figure each: all in one would not fit a sheet of paper
        caption = f"The same of {title(found)}." if number else CAPTION
        pictures.append(style.picture(draw([found]), f"{experiment}-inference-{number}", caption))
    shown = [model(found) for found in measurements if found["status"] == "done"]
    return {"models": shown, "pictures": pictures, **documents.lacking}


def add_troubles(documents: Documents, found: Mapping) -> None:
    """Add what stopped a measurement, or its rows; rows with the same sentence together."""
    if found["sentence"]:
        documents.add_trouble(found["status"], title(found), found["sentence"])
        return
    stopped = [row for row in found["rows"] if row["status"] != "done"]
    for (status, sentence), rows in grouped(stopped, itemgetter("status", "sentence")).items():
        names = wording.listing(f"{row['backend']} {row['precision']}" for row in rows)
        documents.add_trouble(status, f"{title(found)}, {names}", sentence)


def model(found: Mapping) -> dict:
    """Return sentences and table of one measurement that is done."""
    rows = done(found)
    notes = {row["note"]: None for row in rows.values() if row["note"]}
    settings, images = found["settings"], max((row["images"] for row in rows.values()), default=0)
    return {
        "title": f"{title(found)}; {machine(found)}",
        "headline": headline(found),
        "sentences": sentences(found),
        "batches": batches(found),
        "how": (
            f"Accuracy: all {images:,} images of split {found['split']}. Latency: single calls, each waited "
            f"for, {settings['calls']} a row at most. Throughput: {settings['rounds']} rounds of about "
            f"{settings['seconds']:g} s, in which the backends take turns; {settings['warmup']} calls before "
            f"each are not counted. Trained in {found['trained']['precision']}."
        ),
        "rows": [line(row, rows, batches(found), list(notes)) for row in rows.values()],
        "notes": list(notes),
    }


def line(row: Mapping, rows: Mapping, sizes: Sequence[int], notes: Sequence[str]) -> dict:
    """Return a row of a measurement, and what is beside it: rates as (own, factor over eager) by batch."""
    eager = rival(rows, row["precision"])
    peaks = [one["peak_gpu_mib"] for one in row["setup"] if one["peak_gpu_mib"] is not None]
    rates = [(rate(row, batch), eager and rate(eager, batch)) for batch in sizes]
    return {
        **row,
        "number": notes.index(row["note"]) + 1 if row["note"] else None,
        "differences": {
            name: row[f"over_{name}"] for name in ("fp32", "bf16") if row[f"over_{name}"] is not None
        },
        "rates": [(own, other and own["median"] / other["median"]) for own, other in rates],
        "peak": max(peaks, default=None),
    }


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


def table(measurements: Iterable[Mapping]) -> pd.DataFrame:
    """Return one row a model, backend and precision; without a measurement its status and sentence."""
    rows: list[dict[str, Any]] = []
    for found in measurements:
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


HEAD_IN = 1.0
EDGE = 1.5  # from the first point to the edge, for the number above it
HATCHES = ("", "//", "..", "\\\\")
NOTHING = "Nothing to draw: no backend of any model has been measured."


def draw(measurements: Sequence[Mapping]) -> Figure:
    """Draw panels for the measurements that have a row that is done."""
    drawn = [found for found in measurements if done(found)]
    if not drawn:
        return style.sentence_figure(NOTHING)
    heights = [HEAD_IN + style.ROW_IN * len(done(found)) for found in drawn]
    sizes = sorted({batch for found in drawn for batch in batches(found)})
    with style.look():
        figure = Figure(figsize=(style.WIDTH_IN, sum(heights) + 0.4), layout="constrained")
        axes = figure.subplots(len(drawn), 2, squeeze=False, height_ratios=heights, width_ratios=(3, 2))
        for (left, right), found in zip(axes, drawn, strict=True):
            _draw_throughput(left, found, sizes)
            _draw_latency(right, found)
            left.set_title(style.title(f"{title(found)}; {machine(found)}"))
        looks = [(*_look(number).values(), f"batch {batch}") for number, batch in enumerate(sizes)]
        handles = style.patches(looks)
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _look(number: int) -> dict[str, str]:
    """Return the look of the bars of a batch size, by its number."""
    colours = style.LINE_COLOURS
    return {"color": colours[number % len(colours)], "hatch": HATCHES[number % len(HATCHES)]}


def _draw_throughput(axis: Axes, found: Mapping, sizes: Sequence[int]) -> None:
    rows, wide = done(found), style.BAR / len(sizes)
    for number, batch in enumerate(sizes):
        have = [(at, rate(row, batch)) for at, row in enumerate(rows.values()) if rate(row, batch)]
        if not have:
            continue
        y = np.array([at for at, _ in have]) + (number - (len(sizes) - 1) / 2) * wide
        middle, low, high = (np.array([found[end] for _, found in have]) for end in ("median", "min", "max"))
        look = {**_look(number), "height": wide, "edgecolor": "white", "lw": 0, "zorder": 2}
        for bar, (at, one) in zip(axis.barh(y, middle, **look), have, strict=True):
            who = " ".join(list(rows)[at])
            style.hint(bar, f"{who}, batch {batch}: {wording.count(one['median'])} images/s")
        axis.errorbar(middle, y, xerr=[middle - low, high - middle], **style.RANGE)
    style.rows(axis, [f"{backend} {precision}" for backend, precision in rows])
    axis.grid(axis="x", zorder=0)
    axis.set(xlim=(0, None), xlabel="images per second")
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter(lambda value, _: style.short(value))


def _draw_latency(axis: Axes, found: Mapping) -> None:
    rows = done(found)
    times = [row["latency"]["host_ms"] for row in rows.values()]
    middle, high = (np.array([found[end] for found in times]) for end in ("median", "p99"))
    reach = [np.zeros(len(rows)), np.maximum(high - middle, 0)]
    look = {"fmt": "o", "color": style.VERMILION, "ecolor": "black", "capsize": 2, "lw": 1}
    axis.errorbar(middle, range(len(rows)), xerr=reach, **look)
    said = [f"{' '.join(who)}: {found['median']:.3g} ms" for who, found in zip(rows, times, strict=True)]
    style.hint_points(axis, middle, range(len(rows)), said)
    for at, value in enumerate(middle):
        axis.annotate(f"{value:.3g}", (value, at), (0, 4), **style.ABOVE)
    axis.set(xscale="log", xlim=(middle.min() / EDGE, high.max() * EDGE), xlabel="milliseconds for one image")
    style.plain_ticks(axis.xaxis)
    style.rows(axis, [""] * len(rows))
    axis.grid(axis="x", zorder=0)
