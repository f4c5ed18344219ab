"""The part of the report on models in use: does 8 bit pay, the table and the figure, and what did not run."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gpufeed.core import record
from gpufeed.report import style, wording
from gpufeed.report.load_records import Documents, grouped, read_documents
from gpufeed.report.sections import inference_rows
from gpufeed.report.sections.inference_rows import batches, done, machine, rate, rival, title

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
    finished = [found for found in measurements if done(found)]
    for number, found in enumerate(finished):  # a figure each: all in one would not fit a sheet of paper
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
        "headline": inference_rows.headline(found),
        "sentences": inference_rows.sentences(found),
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
        axes = figure.subplots(
            len(drawn), 2, squeeze=False, gridspec_kw={"height_ratios": heights, "width_ratios": (3, 2)}
        )
        for (left, right), found in zip(axes, drawn, strict=True):
            _throughput(left, found, sizes)
            _latency(right, found)
            left.set_title(style.title(f"{title(found)}; {machine(found)}"))
        looks = [(*_look(number).values(), f"batch {batch}") for number, batch in enumerate(sizes)]
        handles = style.patches(looks)
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def _look(number: int) -> dict[str, str]:
    """Return the look of the bars of a batch size, by its number."""
    colours = style.LINE_COLOURS
    return {"color": colours[number % len(colours)], "hatch": HATCHES[number % len(HATCHES)]}


def _throughput(axis: Axes, found: Mapping, sizes: Sequence[int]) -> None:
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


def _latency(axis: Axes, found: Mapping) -> None:
    rows = list(done(found).values())
    times = [row["latency"]["host_ms"] for row in rows]
    middle, high = (np.array([found[end] for found in times]) for end in ("median", "p99"))
    reach = [np.zeros(len(rows)), np.maximum(high - middle, 0)]
    look = {"fmt": "o", "color": style.VERMILION, "ecolor": "black", "capsize": 2, "lw": 1}
    axis.errorbar(middle, range(len(rows)), xerr=reach, **look)
    said = [
        f"{row['backend']} {row['precision']}: {row['latency']['host_ms']['median']:.3g} ms" for row in rows
    ]
    style.hint_points(axis, middle, range(len(rows)), said)
    for at, value in enumerate(middle):
        axis.annotate(f"{value:.3g}", (value, at), (0, 4), **style.ABOVE)
    axis.set(xscale="log", xlim=(middle.min() / EDGE, high.max() * EDGE), xlabel="milliseconds for one image")
    style.plain_ticks(axis.xaxis)
    style.rows(axis, [""] * len(rows))
    axis.grid(axis="x", zorder=0)
