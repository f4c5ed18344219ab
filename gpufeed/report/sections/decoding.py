"""The part of the report on decoders alone: sentences, figures and tables of an experiment's sweep."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from gpufeed.report import style, wording
from gpufeed.report.sections import crossover, decoding_tables
from gpufeed.report.sections.crossover import Rate, Size

CROSSOVER = (
    "Decoders alone: pixels a second from JPEG files in the page cache to tensors on the device, reading "
    "and copying included. Solid lines: decoders on the GPU, with all cores to help. Dashed: the best CPU "
    "decoder on so many cores. Where a solid line passes a dashed one, the GPU begins to pay. Points are "
    "medians over the passes, bars reach from the slowest to the fastest."
)
DECODING = (
    "The same decoders on all cores. Above: what larger calls bring. Below: what is lost when the files come "
    "from the disk; before each cold pass they were evicted from the page cache, and the kernel was asked "
    "whether they had gone. Points are medians over the passes, bars reach from the slowest to the fastest."
)


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """Return what the template shows of a sweep; None for an experiment that neither has nor plans one.

    paths: sweeps of all experiments, <experiment>/<decoder>.json. planned: decoders of this one's sweep.
    """
    ours = [path for path in map(Path, paths) if path.parent.name == experiment]
    if not ours and not planned:
        return None
    points, troubles = decoding_tables.read_sweeps(ours)
    machines, there = decoding_tables.machines(points), {path.stem for path in ours}
    return {
        "machines": [_shown_machine(rows, f"{experiment}-{i}") for i, rows in enumerate(machines)],
        "troubles": _grouped(troubles),
        "missing": [decoder for decoder in planned if decoder not in there],
    }


def _shown_machine(rows: pd.DataFrame, prefix: str) -> dict:
    """Return sentences, pictures and tables of one machine's points."""
    found, pictures = crossover.sizes(rows), []
    sentences = crossover.answer(rows)
    if found:
        caption = f"{CROSSOVER} {say_threads(rows)}".rstrip()
        pictures.append(style.picture(draw_crossover(rows), f"{prefix}-crossover", caption))
    if _decoding_panels(decoding_tables.measured(rows)):
        pictures.append(style.picture(draw_decoding(rows), f"{prefix}-decoding", DECODING))
    counts = sorted({cores for size in found for cores in size.cpu})
    without_gpu = max((cores for size in found for cores in size.strips_cpu), default=None)
    return {
        "title": _title(rows),
        "sentences": sentences,
        "headline": " ".join([sentences[0], *(text for text in sentences[1:] if text.startswith("Strips"))]),
        "pictures": pictures,
        "cores": [wording.plural(cores, "core") for cores in counts],
        "strips_cpu": wording.plural(without_gpu, "core") if without_gpu else None,
        "rows": [_row(size, counts, without_gpu, rows) for size in found],
        "buffers": _buffers(rows),
        "versions": sorted(set(rows["version"].dropna())),
    }


def say_threads(rows: pd.DataFrame) -> str:
    """Return what `cores` counts, if there may be fewer physical cores; else empty."""
    counts = decoding_tables.measured(rows)[["cores", "physical_cores"]].astype("Int64").drop_duplicates()
    known = counts.dropna().sort_values("cores")
    shared = known[known["physical_cores"] < known["cores"]]
    if len(shared):
        said = wording.listing(f"{cores} are on {own}" for cores, own in shared.itertuples(index=False))
        return f"Cores are hardware threads, of which several share a physical core: {said}."
    if len(known) < len(counts):
        return "Cores are hardware threads; whether two of them share a physical core is not known."
    return ""


def _title(rows: pd.DataFrame) -> str:
    """Return the machine, its versions and its nodes."""
    first, nodes = rows.iloc[0], decoding_tables.nodes(rows)
    named = wording.listing(nodes)
    on = f"on {named}" if len(nodes) == 1 else f"on {len(nodes)} nodes alike ({named})"
    driver = "" if pd.isna(first["driver"]) else f", driver {first['driver']}"
    return f"{decoding_tables.hardware(rows)}{driver}, torch {first['torch']}, {on}"


def _row(size: Size, counts: list[int], without_gpu: int | None, rows: pd.DataFrame) -> dict:
    of = rows[rows["dataset"] == size.dataset].iloc[0]
    quality = "" if pd.isna(of["quality"]) else f", quality {of['quality']:.0f}"
    return {
        "size": decoding_tables.pixel_size(of),
        "source": f"{size.dataset}{quality}, {of['bytes_per_pixel']:.2f} bytes a pixel",
        "cpu": [size.cpu.get(cores) for cores in counts],
        "gpu": size.gpu,
        "worth": crossover.say_worth(size.worth),
        "strips": size.strips,
        "strips_cpu": [size.strips_cpu.get(without_gpu)] if without_gpu else [],
    }


def _buffers(rows: pd.DataFrame) -> list[str]:
    """Return such as `dali_gpu 350 MiB`, the most that each decoder's library held beside torch."""
    most = rows[rows["kind"] != "cpu"].groupby("decoder")["buffers_mib"].max().dropna()
    return [f"{decoder} {mib:,.0f} MiB" for decoder, mib in most.items()]


def _grouped(troubles: pd.DataFrame) -> list[dict]:
    """Return the troubles, those with the same sentence together."""
    groups = troubles.groupby(["status", "sentence"], sort=True)["decoder"]
    return [
        {"status": status, "sentence": sentence, "who": wording.listing(dict.fromkeys(decoders))}
        for (status, sentence), decoders in groups
    ]


NOTHING = "Nothing to draw: no decoder of this sweep has a finished measurement yet."
NO_MORE = "Nothing to draw: this sweep has no second batch size and no cold page cache."
GPU_LOOKS = (  # by rank among the GPU decoders
    {"color": style.BLUE, "marker": "o", "lw": 2.2},
    {"color": style.SKY, "marker": "s", "lw": 1.6},
    {"color": style.GREEN, "marker": "^", "lw": 1.6},
)
CPU_GREYS = ("#A8A8A8", "#868686", "#606060", "#2E2E2E")  # fewer cores are lighter
LEAST_GAP = 0.052  # of the axis' height, between two names beside it


def draw_crossover(points: pd.DataFrame) -> Figure:
    """Draw pixels a second against image size: GPU decoders, strips, best CPU decoder by cores.

    Below each size stands how many cores the best GPU decoder is worth there.
    """
    panels = [(rows, found) for rows in decoding_tables.machines(points) if (found := crossover.sizes(rows))]
    return style.panels(panels, lambda axis, panel: _crossover_panel(axis, *panel), lambda _: 5.2, NOTHING)


def _crossover_panel(axis: Axes, rows: pd.DataFrame, found: list[Size]) -> None:
    names: list[tuple[float, float, str, str]] = []  # side and value at the end of a line, words, colour
    for series, words, look in _series(rows, found):
        sides = np.array([side for side, _ in series])
        scale = sides**2 / 1e6  # images/s to million pixels/s
        middle, low, high = (
            np.array([getattr(rate, end) for _, rate in series]) * scale for end in ("median", "low", "high")
        )
        axis.errorbar(sides, middle, yerr=[middle - low, high - middle], capsize=3, ms=6, **look)
        said = [f"{words}, {side:g} pixels: {wording.count(rate.median)} images/s" for side, rate in series]
        style.hint_points(axis, sides, middle, said)
        names.append((sides[-1], middle[-1], words, look["color"]))
    axis.set(xscale="log", yscale="log", ylabel="million pixels decoded per second")
    sides = [size.side for size in found]
    axis.set_xticks(sides, [_tick(size) for size in found])
    axis.xaxis.set_minor_locator(NullLocator())
    style.plain_ticks(axis.yaxis)
    label = "side of the image in pixels"
    if any(size.worth for size in found):
        label += "\nbelow it: CPU cores that the best GPU decoder is worth"
    axis.set_xlabel(label)
    axis.set_xlim(min(sides) / 1.25, max(sides) * 1.25)
    axis.grid(True)
    axis.set_title(f"Files in the page cache to a tensor on the device\n{_machine(rows)}")
    _name_lines(axis, names)


def _machine(rows: pd.DataFrame) -> str:
    """Return what distinguishes a machine from others, in two lines."""
    first = rows.iloc[0]
    driver = "" if pd.isna(first["driver"]) else f"driver {first['driver']}, "
    n = wording.rounded_ends(decoding_tables.measured(rows)["n"], 6)
    return f"{decoding_tables.hardware(rows)}\n{driver}torch {first['torch']}, n = {n} passes"


def _tick(size: Size) -> str:
    words = crossover.say_worth(size.worth).replace("less than ", "< ").replace("more than ", "> ")
    words = words.partition(" core")[0]
    return size.label + ("" if size.worth is None else f"\n{words}")


def _series(rows: pd.DataFrame, found: list[Size]) -> list[tuple[list[tuple[float, Rate]], str, dict]]:
    """Return what is drawn: [(side, rate)], its name and its look; the best comes last, and on top."""
    counts = sorted({cores for size in found for cores in size.cpu})
    drawn = []
    for rank, cores in enumerate(counts):
        series = [(size.side, size.cpu[cores]) for size in found if cores in size.cpu]
        names = list(dict.fromkeys(rate.decoder for _, rate in series))
        words = f"{wording.plural(cores, 'core')}: {names[0] if len(names) == 1 else 'best CPU decoder'}"
        grey = CPU_GREYS[max(0, len(CPU_GREYS) - len(counts) + rank)]
        drawn.append((series, words, {"color": grey, "marker": "D", "lw": 1.4, "ls": "--"}))
    drawn += _gpu_series(rows)
    strips_cpu = [(size.side, size.strips_cpu[max(size.strips_cpu)]) for size in found if size.strips_cpu]
    if strips_cpu:
        most = max(cores for size in found for cores in size.strips_cpu)
        look = {"color": style.ORANGE, "marker": "P", "lw": 1.6, "ls": "--"}
        drawn.append((strips_cpu, f"strips on {wording.plural(most, 'core')}", look))
    strips = [(size.side, size.strips) for size in found if size.strips]
    if strips:
        on = next(size.strips_on for size in found if size.strips)
        look = {"color": style.VERMILION, "marker": "P", "lw": 2.2, "ls": "-"}
        drawn.append((strips, f"strips on {on}", look))
    return drawn


def _gpu_series(rows: pd.DataFrame) -> list[tuple[list[tuple[float, Rate]], str, dict]]:
    """Return the series of each GPU decoder, the slowest first."""
    ours = decoding_tables.usual(rows)
    ours = ours[ours["kind"] == "gpu"]
    speed = ours.groupby("decoder")["megapixels_per_s"].mean().sort_values(ascending=False)
    drawn = []
    for rank, decoder in enumerate(speed.index):
        sides = ours[ours["decoder"] == decoder].groupby("side", sort=True)
        series = [(float(side), crossover.best(some)) for side, some in sides]
        look = {"ls": "-", **GPU_LOOKS[min(rank, len(GPU_LOOKS) - 1)]}
        drawn.append((series, f"GPU: {decoder}", look))
    return drawn[::-1]


def _name_lines(axis: Axes, names: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names on the right of the axis, as near to the ends of their lines as there is room."""
    to_share = axis.transAxes.inverted()
    ends = np.array([to_share.transform(axis.transData.transform(name[:2]))[1] for name in names])
    order = np.argsort(ends)
    for place, height in zip(order, style.spread(ends[order], LEAST_GAP, 1.0), strict=True):
        side, value, words, colour = names[place]
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.7, "shrinkA": 0, "shrinkB": 5}
        look = {"color": colour, "va": "center", "fontsize": 9, "fontweight": "bold", "arrowprops": leader}
        where = {"textcoords": "axes fraction", "annotation_clip": False}
        axis.annotate(words, (side, value), (1.02, height), **where, **look)


def draw_decoding(points: pd.DataFrame) -> Figure:
    """Draw panels for each dataset: images per second against batch size, and warm against cold.

    Each machine has its name above its panels if there are several.
    """
    found = decoding_tables.machines(decoding_tables.measured(points))
    machines = [(rows, panels) for rows in found if (panels := _decoding_panels(rows))]
    if not machines:
        return style.sentence_figure(NO_MORE)
    decoders = list(dict.fromkeys(points["decoder"]))
    looks = {name: style.line(number) for number, name in enumerate(decoders)}
    heights = [[inches for *_, inches in panels] for _, panels in machines]
    with style.look():
        # room for the legend, and for the name of each machine
        more = 0.9 + 0.5 * len(machines) * (len(machines) > 1)
        figure = Figure(figsize=(style.WIDTH_IN, sum(map(sum, heights)) + more), layout="constrained")
        parts = figure.subfigures(len(machines), 1, squeeze=False, height_ratios=list(map(sum, heights)))
        for part, inches, (rows, panels) in zip(parts[:, 0], heights, machines, strict=True):
            if len(machines) > 1:
                part.suptitle(_machine(rows))
            axes = part.subplots(len(panels), 1, squeeze=False, height_ratios=inches)[:, 0]
            for axis, (panel, draw, _) in zip(axes, panels, strict=True):
                draw(axis, panel, looks)
        shown = {name for _, panels in machines for panel, *_ in panels for name in panel["decoder"]}
        handles = [Line2D([], [], label=name, **looks[name]) for name in decoders if name in shown]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=9)
    return figure


def _decoding_panels(rows: pd.DataFrame) -> list[tuple[pd.DataFrame, Callable, float]]:
    """Return what `draw_decoding` draws of one machine: rows of a panel, drawing function, height."""
    # on the most cores of each decoder, where batch sizes and page caches are measured
    rows = rows[rows["cores"] == rows.groupby("decoder")["cores"].transform("max")]
    batches = _panels_of(rows[rows["cache"] == "warm"], "batch_size")
    colds = _panels_of(rows[rows["main"].astype(bool)], "cache")
    inches = 1.0 + style.ROW_IN * max((panel["decoder"].nunique() for panel in colds), default=0)
    return [(panel, _batch_panel, 3.2) for panel in batches] + [
        (panel, _cold_panel, inches) for panel in colds
    ]


def _panels_of(rows: pd.DataFrame, column: str) -> list[pd.DataFrame]:
    """Return a table a dataset, of the decoders that have several values of this column there."""
    groups = (same for _, same in rows.groupby(["side", "dataset"], sort=True))
    several = (same[same.groupby("decoder")[column].transform("nunique") > 1] for same in groups)
    return [panel for panel in several if len(panel)]


def _batch_panel(axis: Axes, rows: pd.DataFrame, looks: dict[str, dict]) -> None:
    for decoder, ours in rows.groupby("decoder", sort=False):
        ours = ours.sort_values("batch_size")
        look = {"capsize": 3, "ms": 5, "lw": 1.4, **looks[decoder]}
        axis.errorbar(ours["batch_size"], ours["images_per_s"], yerr=style.whiskers(ours), **look)
        both = ours["batch_size"], ours["images_per_s"]
        said = [
            f"{decoder}, {size:,} images a call: {wording.count(rate)} images/s"
            for size, rate in zip(*both, strict=True)
        ]
        style.hint_points(axis, *both, said)
    sizes = sorted(set(rows["batch_size"]))
    axis.set(xscale="log", yscale="log", xlabel="images a call", ylabel="images per second")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.xaxis.set_minor_locator(NullLocator())
    style.plain_ticks(axis.yaxis)
    axis.grid(True)
    axis.set_title(f"Batch size, {_dataset(rows)}")


def _cold_panel(axis: Axes, rows: pd.DataFrame, looks: dict[str, dict]) -> None:
    warm = rows[rows["cache"] == "warm"].sort_values("images_per_s", ascending=False)
    for y, (decoder, rate) in enumerate(zip(warm["decoder"], warm["images_per_s"], strict=True)):
        same = rows[rows["decoder"] == decoder]
        cold = same[same["cache"] == "cold"]
        colour = looks[decoder]["color"]
        axis.plot([cold["images_per_s"].iloc[0], rate], [y, y], color=colour, lw=1)
        for some, face in ((cold, "white"), (same[same["cache"] == "warm"], colour)):
            bar = {"fmt": "o", "ms": 7, "color": colour, "mfc": face, "capsize": 3}
            axis.errorbar(some["images_per_s"], [y], xerr=style.whiskers(some), **bar)
            said = (
                f"{decoder}, {some['cache'].iloc[0]}: {wording.count(some['images_per_s'].iloc[0])} images/s"
            )
            style.hint_points(axis, some["images_per_s"], [y], [said])
    style.rows(axis, warm["decoder"])
    axis.set(xscale="log", xlabel="images per second (filled: warm, hollow: cold)")
    style.plain_ticks(axis.xaxis)
    axis.grid(True, axis="x")
    axis.set_title(f"Page cache, {_dataset(rows)}")


def _dataset(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    size = decoding_tables.pixel_size(first)
    pixels = "" if size.startswith("mixed") else " pixels"
    return f"{first['dataset']} ({size}{pixels})"
