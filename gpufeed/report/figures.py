"""Figures from the table of cells: each function takes DataFrames and returns one Figure.

Points and bars are medians over repeats, whiskers and bands the full range. A function that finds
nothing to draw returns a figure with a sentence instead.
"""

import textwrap
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gpufeed.report import style, tables, verdicts, wording
from gpufeed.report.load_records import grouped

MOST_BARS = 16  # of a panel with every cell; one of more cells has the fastest of each kind
MOST_ROWS = 40  # of bars then, the fastest, and of panels
PANEL_IN = 0.95  # height of a panel's title, axis and legend
TITLE_LINE_IN = 0.17  # of its lines from the fourth on
WHISKERS = {"fmt": "none", "ecolor": "black", "capsize": 4, "lw": 1.4, "zorder": 3}  # of bars
CEILING_RANGE = {"color": style.VERMILION, "alpha": 0.25, "lw": 0, "zorder": 1}
PARTS = {
    "load_ms": (style.ORANGE, "//", "load: the host waits for samples"),
    "transfer_ms": (style.SKY, "..", "transfer: copy to the device"),
    "train_ms": (style.GREEN, "", "train: work on the batch"),
}
LIKE_CEILING = "≈ limit"  # one line, as high as a bar
NOTHING = "Nothing to draw: no cell of this experiment has a finished repeat yet."


def throughput(cells: pd.DataFrame) -> Figure:
    """Draw images per second of each pipeline as bars with their range, and the limit as a line."""
    return _bars(cells, _throughput_panel, _throughput_legend(cells))


def breakdown(cells: pd.DataFrame) -> Figure:
    """Draw where a step's time goes: load, transfer and train stacked, the whole step as a tick."""
    total = "total: the whole step (parts beyond it ran at once)"
    handles = [*style.patches(PARTS.values()), Line2D([], [], color="black", lw=3, label=total)]
    return _bars(cells, _breakdown_panel, handles)


def _bars(cells: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], handles: list) -> Figure:
    """Draw a panel of bars for each task, one bar a pipeline. handles: of the legend, below each other."""

    def panel(axis: Axes, rows: pd.DataFrame) -> None:
        axis.set_title(rows["title"].iloc[0])
        draw(axis, rows)

    more = 0.2 * sum(1 + handle.get_label().count("\n") for handle in handles) + 0.1
    drawn, left_out = _panels(cells)
    return style.panels(drawn, panel, _height, NOTHING, more, {"handles": handles}, PANEL_IN, left_out)


def workers(cells: pd.DataFrame) -> Figure:
    """Draw images per second, and speed-up over `dataloader_sync`, against the number of workers.

    One panel a setting (loader, prefetching, pinning, persistence), the other settings held at
    their most frequent value.
    """
    swept = [rows for rows in tables.tasks(cells) if _sweep(rows)]
    if not swept:
        return style.sentence_figure(
            "Nothing to draw: no task of this experiment has finished cells with three worker counts or more."
        )
    sweeps = [_sweep(rows) for rows in style.most(swept)]
    with style.look():
        heights = [0.8 + 2.9 * len(settings) for _, settings in sweeps]
        figure = Figure(figsize=(style.WIDTH_IN, sum(heights)), layout="constrained")
        blocks = figure.subfigures(len(sweeps), 1, squeeze=False, height_ratios=heights)[:, 0]
        for block, (rows, settings) in zip(blocks, sweeps, strict=True):
            _sweep_block(block, rows, settings)
        style.count_left_out(figure, len(swept) - len(sweeps))
    return figure


def has_sweep(cells: pd.DataFrame) -> bool:
    """Return whether `workers` has something to draw."""
    return any(_sweep(rows) is not None for rows in tables.tasks(cells))


def _panels(cells: pd.DataFrame) -> tuple[list[pd.DataFrame], int]:
    """Return the tasks that compare anything, shortened and sorted for reading, and how many are left out.

    One pipeline alone, without a ceiling, is compared with nothing: where there is nothing else, the tasks
    of a machine share a panel.
    """
    panels, alone = [], []
    for rows in tables.tasks(cells):
        ours = fastest_settings(tables.pipelines(rows))
        if len(ours):
            (panels if verdicts.compares(rows) else alone).append(ours)
    if not panels:
        return _together(alone), 0
    kept = [panel.assign(label=wording.labels(panel)) for panel in style.most(panels)]
    return [panel.assign(title=panel_title(panel)) for panel in kept], len(panels) - len(kept)


def _together(alone: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return one panel a machine, one bar a pipeline: the title has what all share, the names the rest."""
    found = []
    for machine, panels in grouped(alone, wording.machine).items():
        panels = sorted(panels, key=lambda rows: -rows["images_per_s"].max())
        left_out = len(panels) - len(panels[:MOST_ROWS])
        together = pd.concat(
            rows.assign(label=wording.labels(rows), task=wording.task(rows)) for rows in panels[:MOST_ROWS]
        )
        shared, names = wording.split_shared((together["task"] + ", " + together["label"]).tolist())
        named = [name or label for name, label in zip(names, together["label"], strict=True)]
        together = together.assign(label=named, title=_title(shared, machine, left_out))
        found.append(together.sort_values("images_per_s", ascending=False))
    return found


def fastest_settings(rows: pd.DataFrame, *more: str) -> pd.DataFrame:
    """Return the rows, fastest first; of more than MOST_BARS only the fastest of each kind.

    A kind is a loader, share of the JPEG engines, number of workers and augment, with the columns `more`.
    `left_out` counts what is not drawn; the table of cells has them all.
    """
    kept = ordered = rows.sort_values("images_per_s", ascending=False)
    if len(rows) > MOST_BARS:
        kept = ordered.drop_duplicates(["loader", "hw_decoder_load", "workers", "augment", *more])[:MOST_ROWS]
    return kept.assign(left_out=len(rows) - len(kept))


def _height(rows: pd.DataFrame) -> float:
    """Return the height of a panel in inches, by its longest label and its title."""
    more = max(0, rows["title"].iloc[0].count("\n") - 2) * TITLE_LINE_IN
    return style.rows_in(rows["label"], _rate_words(rows)) + more


def panel_title(rows: pd.DataFrame) -> str:
    """Return task and machine of a panel's rows, and how many pipelines are not drawn."""
    return _title(wording.task(rows), wording.machine(rows), rows["left_out"].iloc[0])


def _title(task: str, machine: str, left_out: int) -> str:
    """Return both in lines as wide as a panel, and a line on what is not drawn, if anything is not."""
    slower = "1 slower one is" if left_out == 1 else f"{left_out:,} slower ones are"
    told = [f"(fastest settings only; {slower} in the table)"] if left_out else []
    wrapped = (textwrap.fill(text, style.TITLE_LETTERS) for text in (task, machine) if text)
    return "\n".join([*wrapped, *told])


def _throughput_panel(axis: Axes, rows: pd.DataFrame) -> None:
    y = np.arange(len(rows))
    medians = rows["images_per_s"].to_numpy(float)
    bars = axis.barh(y, medians, height=style.BAR, color=style.BLUE, zorder=2)
    axis.errorbar(medians, y, xerr=style.whiskers(rows), **WHISKERS)
    for bar, (_, row) in zip(bars, rows.iterrows(), strict=True):
        style.hint(bar, f"{row['label']}: {verdicts.speed(row)}, {verdicts.short_ceiling(row)}".rstrip(", "))
    ceilings = rows["ceiling_images_per_s"].to_numpy(float)
    low, high = (rows[f"ceiling_images_per_s_{end}"].to_numpy(float) for end in ("min", "max"))
    bounds = axis.vlines(ceilings, y - 0.2, y + 0.2, colors=style.VERMILION, lw=2, zorder=4)
    if (known := rows[rows["ceiling_n_repeats"].notna()]).size:
        style.hint(bounds, f"limit: {verdicts.speed(known.iloc[0], 'ceiling_')}")
    for position, start, end in zip(y, low, high, strict=True):
        if start < end:
            axis.fill_betweenx([position - 0.2, position + 0.2], start, end, **CEILING_RANGE)
    widest = np.nanmax(np.concatenate([rows["images_per_s_max"].to_numpy(float), ceilings, high]))
    axis.set(xlim=(0, widest * 1.02), xlabel="images per second")
    style.rows(axis, rows["label"], _rate_words(rows))
    axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.xaxis.set_major_formatter("{x:,.10g}")
    axis.grid(axis="x", color="#DDDDDD", zorder=0)


def _rate_words(rows: pd.DataFrame) -> list[str]:
    """Return the numbers of each bar in words; where others have a limit, also that there is none."""
    words = rows.apply(verdicts.short_ceiling, axis=1).str.replace("the limit", "limit")
    words = words.mask(rows["against_ceiling"] == "not distinguishable", LIKE_CEILING)
    if words.any():
        words = words.replace("", "limit not measured")
    rates = rows["images_per_s"].map(wording.count)
    return [rate + f" ({more})" * bool(more) for rate, more in zip(rates, words, strict=True)]


def _throughput_legend(cells: pd.DataFrame) -> list:
    ours = tables.pipelines(tables.measured(cells))
    n = wording.rounded_ends(ours["n_repeats"], 6)
    name = "one repeat" if n == "1" else f"median over n = {n} repeats, whiskers: smallest to largest"
    handles: list = [Patch(facecolor=style.BLUE, label=name)]
    bounds = ours["ceiling_n_repeats"].dropna()
    if len(bounds):
        n = wording.rounded_ends(bounds, 6)
        name = "one repeat" if n == "1" else f"median over n = {n}, band: range"
        name = f"limit: compute only (replay), {name}"
        if (ours["against_ceiling"] == "not distinguishable").any():
            name += f"\n{LIKE_CEILING}: not distinguishable from it"
        handles.append(Line2D([], [], color=style.VERMILION, lw=2, label=name))
    return handles


def _breakdown_panel(axis: Axes, rows: pd.DataFrame) -> None:
    y = np.arange(len(rows))
    left = np.zeros(len(rows))
    for part, (colour, hatch, name) in PARTS.items():
        widths = rows[part].to_numpy(float)
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0, "zorder": 2}
        bars = axis.barh(y, widths, left=left, height=style.BAR, **look)
        for bar, label, width in zip(bars, rows["label"], widths, strict=True):
            style.hint(bar, f"{label}, {name.partition(':')[0]}: {wording.count(width)} ms")
        left += widths
    totals = rows["total_ms"].to_numpy(float)
    axis.vlines(totals, y - 0.2, y + 0.2, colors="black", lw=3, zorder=3)
    axis.set_xlim(0, np.concatenate([left, totals]).max() * 1.02)
    both = zip(totals, rows["wait_share"], strict=True)
    words = [f"{wording.count(total)} ms, wait {wording.percent(share)}" for total, share in both]
    style.rows(axis, rows["label"], words)
    axis.set_xlabel("milliseconds a step (mean over steps, median over repeats)")
    axis.grid(axis="x", color="#DDDDDD", zorder=0)


SWEPT_WORDS = {"loader": str, **wording.FEATURES}  # of tables.SWEPT
SWEPT_TITLES = {
    "loader": "Worker processes",
    "prefetch_factor": "Batches ahead",
    "pin_memory": "Host memory",
    "persistent_workers": "Between epochs",
}


def _sweep(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]] | None:
    """Return a task's pipelines and the settings to draw if they sweep the workers; else None.

    Two worker counts are no sweep: the bars of `throughput` show them better.
    """
    ours = tables.pipelines(rows)
    with_workers = ours[ours["workers"] > 0]
    if with_workers.empty or ours["workers"].nunique() < 3:
        return None
    varied = [name for name in tables.SWEPT[1:] if tables.held(with_workers, name)[name].nunique() > 1]
    return ours, ["loader", *varied]


def _sweep_block(block: SubFigure, rows: pd.DataFrame, settings: list[str]) -> None:
    """Draw all panels of one task."""
    title = style.title(f"{wording.task(rows)}; {wording.machine(rows)}")
    block.suptitle(title, x=0.01, ha="left", fontsize=10, weight="bold")
    axes = block.subplots(len(settings), 1, squeeze=False).ravel()
    base = rows.loc[rows["loader"] == "dataloader_sync", "images_per_s"].max()
    for axis, setting in zip(axes, settings, strict=True):
        _sweep_panel(axis, rows, setting, base)


def _sweep_panel(axis: Axes, rows: pd.DataFrame, setting: str, base: float) -> None:
    """Draw lines over worker counts; bars if the setting was varied at one worker count only."""
    held = tables.held(rows[rows["workers"] > 0], setting)
    values = held.groupby("workers")[setting].nunique()
    at = values.index[values > 1]
    if len(at) == 1:
        _setting_bars(axis, held[held["workers"] == at[0]], setting, int(at[0]))
    else:
        _setting_lines(axis, held, setting, base, rows)
    axis.set(ylim=(0, None), ylabel="images per second")
    axis.yaxis.set_major_formatter("{x:,.10g}")
    if not pd.isna(base):
        right = axis.secondary_yaxis("right", functions=(lambda v: v / base, lambda v: v * base))
        right.set_ylabel("times dataloader_sync")


def _setting_bars(axis: Axes, held: pd.DataFrame, setting: str, workers: int) -> None:
    ours = held.sort_values("images_per_s").drop_duplicates(setting, keep="last").sort_values(setting)
    x = np.arange(len(ours))
    bars = axis.bar(x, ours["images_per_s"].to_numpy(float), width=0.6, color=style.BLUE, zorder=2)
    for bar, (_, row) in zip(bars, ours.iterrows(), strict=True):
        style.hint(bar, f"{SWEPT_WORDS[setting](row[setting])}: {verdicts.speed(row)}")
    axis.errorbar(x, ours["images_per_s"].to_numpy(float), yerr=style.whiskers(ours), **WHISKERS)
    axis.set_xticks(x, [SWEPT_WORDS[setting](value) for value in ours[setting]])
    axis.set_title(f"{SWEPT_TITLES[setting]}, {wording.plural(workers, 'worker')}")
    axis.grid(axis="y", zorder=0)


def _setting_lines(axis: Axes, held: pd.DataFrame, setting: str, base: float, rows: pd.DataFrame) -> None:
    fastest = held.sort_values("images_per_s").drop_duplicates([setting, "workers"], keep="last")
    for number, (value, line) in enumerate(fastest.sort_values("workers").groupby(setting)):
        look, name = style.line(number), SWEPT_WORDS[setting](value)
        axis.errorbar(
            line["workers"].to_numpy(float), line["images_per_s"].to_numpy(float), yerr=style.whiskers(line),
            capsize=3, lw=1.6, label=name, **look,
        )  # fmt: skip
        said = [
            f"{name}, {wording.plural(int(row['workers']), 'worker')}: {verdicts.speed(row)}"
            for _, row in line.iterrows()
        ]
        style.hint_points(axis, line["workers"].to_numpy(float), line["images_per_s"], said)
        if setting == "loader" and (line["epoch_start_share"] > verdicts.MOSTLY_AT_START).any():
            axis.plot(
                line["workers"].to_numpy(float), line["within_epoch_images_per_s"].to_numpy(float),
                **look | {"ls": ":"}, lw=1, mfc="white", label=f"{value}, first batches left out",
            )  # fmt: skip
    if not pd.isna(base):
        axis.plot([0], [base], marker="*", ms=11, ls="none", color="black", label="dataloader_sync")
    bounded = held[held["ceiling_images_per_s"].notna()]
    if len(bounded):
        bound = bounded.iloc[0]
        label = f"limit (replay, n = {int(bound['ceiling_n_repeats'])})"
        axis.axhline(bound["ceiling_images_per_s"], color=style.VERMILION, lw=1.4, label=label)
        axis.axhspan(bound["ceiling_images_per_s_min"], bound["ceiling_images_per_s_max"], **CEILING_RANGE)
    axis.set(xlabel="workers", title=SWEPT_TITLES[setting])
    axis.set_xticks(sorted({0, *rows["workers"].astype(int)}))
    axis.grid(True)
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
