"""How many CPU cores each loader needs to keep each model fed: AU over cores, a line a loader.

AU (accelerator utilization) is compute-only over end-to-end time: images/s of a cell over those of the
`replay` cell with the same work on the same cores, from the pairs of one block.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from gpufeed.core.registry import LOADERS
from gpufeed.report import style, tables, wording
from gpufeed.report.load_records import grouped
from gpufeed.report.significance import paired_ratio, paired_repeats, ratio_of_repeats
from gpufeed.report.verdicts import Verdict

FED = 0.95  # AU from which a model counts as fed
PANEL = [column for column in tables.SAME_TASK if column not in ("cores_asked", "overrides")]
PANEL += wording.OF_THE_STEP
LENGTHS = ("epochs", "step_limit")  # of a pass: it may be shorter where there are few cores
UNNAMED = (*wording.OF_WORKERS, *wording.OF_THE_STEP, *LENGTHS, "decoder", "cores_asked")
NAMED = [feature for feature in wording.FEATURES if feature not in UNNAMED]
NEAREST = 3  # loaders that a sentence names of those that keep no model fed
HEAD_IN, AXES_IN, NAME_IN = 1.1, 2.8, 0.16  # of a panel: title and axis, the least of its lines, a name
NAMES_AT = 1.04  # where the names begin, as a share of the axis
CAPTION = (
    "AU against the CPU cores that all processes and threads of a repeat were kept on, a line a loader that "
    "was measured on several numbers of cores: its images per second over those of replay on the same cores, "
    "medians over the pairs of n blocks. Bars: 95 % interval, below six blocks the range. Above the dashed "
    f"line a model counts as fed ({FED * 100:.0f} %). Of several settings of a loader the fastest on each "
    "number of cores is drawn."
)


def measured(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """Return a table a panel: the fastest setting of each loader on each number of cores that cells chose.

    Columns beside those of the cells: loader_name, of_replay (AU), low, high, blocks. None for a model that
    was measured on one number of cores, or without `replay`.
    """
    rows = tables.pipelines(tables.measured(cells))
    rows = rows[(rows["cores_asked"] > 0) & rows["ceiling_share"].notna()]
    found = []
    for _, panel in rows.groupby(PANEL, dropna=False, sort=False):
        if panel["cores_asked"].nunique() < 2:
            continue
        names = wording.labels(panel.assign(workers=0), NAMED, unique=False)
        if panel["variant"].nunique() > 1:
            names = (names + ", " + panel["variant"]).str.removesuffix(", ")
        fastest = panel.assign(loader_name=names).sort_values("images_per_s", ascending=False)
        fastest = fastest.drop_duplicates(["loader_name", "cores_asked"])
        found.append(pd.concat([fastest, fastest.apply(au, axis=1)], axis=1).sort_values("cores_asked"))
    return found


def au(row: pd.Series) -> pd.Series:
    """Return AU of a cell with its 95 % interval, or below six pairs its range."""
    both = row["repeats"], row["ceiling_repeats"]
    pairs = paired_repeats(*both)[["rate", "other"]].itertuples(index=False, name=None)
    ratio = paired_ratio(pairs)
    ratio = ratio if ratio.n else ratio_of_repeats(*both)
    low, high = ratio.interval or ratio.range
    return pd.Series({"of_replay": ratio.median, "low": low, "high": high, "blocks": ratio.n})


def answers(cells: pd.DataFrame) -> list[Verdict]:
    """Return a verdict a model on how many cores each loader needs; none if cores were not varied."""
    au = "AU (accelerator utilization, compute-only over end-to-end time)"
    fed = f"Fed: an {au} of {FED * 100:.0f} % or more."
    return [Verdict(title(panel), sentence(panel), lead(panel), (fed,)) for panel in measured(cells)]


def title(panel: pd.DataFrame) -> str:
    """Return what a panel trains, without the cores, and on what machine."""
    return f"{wording.task(panel.iloc[:1].assign(cores_asked=0, variant=''))}; {wording.machine(panel)}"


def fewest(panel: pd.DataFrame) -> dict[str, int | None]:
    """Return loader -> the fewest cores that keep the model fed, fewest first; None if no number does."""
    fed = panel[panel["low"] >= FED].groupby("loader_name")["cores_asked"].min()
    found = {name: int(fed[name]) if name in fed else None for name in panel["loader_name"].unique()}
    return dict(sorted(found.items(), key=lambda one: (one[1] is None, one[1] or 0, one[0])))


def lead(panel: pd.DataFrame) -> str:
    """Return the loaders that need the fewest cores, and the best that decodes while it trains, in short."""
    found, decoding = fewest(panel), panel[~panel["loader"].map(is_decoded).astype(bool)]
    least = next(iter(found.values()))
    if least is None:
        most = wording.plural(int(panel["cores_asked"].max()), "core")
        return f"No loader keeps it fed on up to {most}; the nearest is {with_best(panel, nearest(panel)[0])}"
    first = [name for name, cores in found.items() if cores == least]
    fed = panel[panel["loader_name"].isin(first) & (panel["cores_asked"] == least)]
    said = f"Kept fed on {wording.plural(least, 'core')} by {wording.listing(first)} ({n_of(fed)})"
    if decoding.empty or {*first} & {*decoding["loader_name"]}:
        return said
    said += ", from images decoded before; of loaders that decode while they train "
    needs = fewest(decoding)
    least = next(iter(needs.values()))
    if least is None:
        return f"{said}the best is {with_best(panel, nearest(decoding)[0])}"
    first = wording.listing(name for name, cores in needs.items() if cores == least)
    return f"{said}the fewest are enough for {first}: {wording.plural(least, 'core')}"


def is_decoded(loader: str) -> bool:
    """Return whether a loader reads pixels that were decoded before the training."""
    return loader in LOADERS and LOADERS[loader].decoded


def nearest(panel: pd.DataFrame) -> list[str]:
    """Return the loaders by the highest AU that each reached, highest first."""
    return panel.groupby("loader_name")["of_replay"].max().sort_values(ascending=False).index.tolist()


def sentence(panel: pd.DataFrame) -> str:
    """Return how many of the measured cores each loader needs."""
    found = fewest(panel)
    fed = [f"by {name} on {needs_in_words(panel, name, n)}" for name, n in found.items() if n is not None]
    never = [name for name in nearest(panel) if found[name] is None]
    best = wording.listing(with_best(panel, name) for name in never[:NEAREST])
    others = wording.plural(len(never), "other pipeline" if fed else "pipeline")
    others += f" stay{'s' * (len(never) == 1)} below that on every measured number of cores"
    others += f", the nearest {best}. " if len(never) > NEAREST else f": {best}. "
    return (
        "AU (accelerator utilization) is compute-only over end-to-end time. The model counts as fed where AU "
        f"is {FED * 100:.0f} % or more, by the lower end of its interval (below six blocks: of its range): "
        f"{', '.join(fed) or 'by no loader'}. " + others * bool(never) + f"Blocks: {n_of(panel)}."
    )


def needs_in_words(panel: pd.DataFrame, name: str, cores: int) -> str:
    """Return such as `2 cores`, noting if the loader was not measured on fewer although others were."""
    fewer = (panel["cores_asked"] < cores).any()
    alone = (panel.loc[panel["loader_name"] == name, "cores_asked"] >= cores).all()
    return wording.plural(cores, "core") + " (not measured on fewer)" * bool(fewer and alone)


def n_of(panel: pd.DataFrame) -> str:
    """Return the number of blocks: `n = 3`, or by cores `n = 3 on 2 and 16 cores, n = 1 on 4 cores`."""
    return by_cores(panel, "blocks", "n = ")


def by_cores(panel: pd.DataFrame, column: str, before: str = "") -> str:
    """Return the values of a column, by numbers of cores if they differ."""
    groups = panel.groupby("cores_asked")[column]  # a pass of whole epochs has no number of steps
    values = {int(cores): wording.rounded_ends(own.dropna(), 6) for cores, own in groups}
    found = grouped(values, values.get)
    if len(found) == 1:
        return before + next(iter(found))
    return ", ".join(f"{before}{value} on {wording.listing(cores)} cores" for value, cores in found.items())


def with_best(panel: pd.DataFrame, name: str) -> str:
    """Return a loader with the highest AU that it reached, and where."""
    best = panel[panel["loader_name"] == name].sort_values("of_replay").iloc[-1]
    return f"{name} (AU {wording.tenths(best['of_replay'])} on {int(best['cores_asked'])} cores)"


def section(cells: pd.DataFrame, name: str) -> dict | None:
    """Return tables and figure of AU over cores; None if cores were not varied. name: of the experiment."""
    panels = measured(cells)
    if not panels:
        return None
    return {
        "tables": [table(panel) for panel in panels],
        "pictures": [style.picture(draw(cells), f"{name}-cores-0", CAPTION)],
    }


def table(panel: pd.DataFrame) -> dict:
    """Return AU of each loader on each number of cores, by the fewest that a loader needs, then by AU.

    `steps`: how long a pass is, where that differs.
    """
    cores, found = sorted(panel["cores_asked"].astype(int).unique()), fewest(panel)
    rows = {(row["loader_name"], int(row["cores_asked"])): row for _, row in panel.iterrows()}
    names = sorted(nearest(panel), key=lambda name: found[name] or float("inf"))
    return {
        "title": title(panel),
        "cores": cores,
        "steps": by_cores(panel, "step_limit") if panel["step_limit"].nunique() > 1 else "",
        "rows": [
            {"name": name, "needs": found[name], "fields": [field(rows.get((name, n))) for n in cores]}
            for name in names
        ],
    }


def field(row: pd.Series | None) -> tuple[str, str]:
    """Return AU, and its range with n; a dash if it was not measured."""
    if row is None:
        return "-", ""
    n = f"n = {int(row['blocks'])}"
    ends = f"{wording.ends(row['low'], row['high'])}, " if row["blocks"] > 1 else ""
    return wording.tenths(row["of_replay"]), ends + n


def draw(cells: pd.DataFrame) -> Figure:
    """Draw AU over cores, a panel a model; a sentence if no loader has several numbers of cores."""
    panels = [
        panel[panel.groupby("loader_name")["cores_asked"].transform("size") > 1] for panel in measured(cells)
    ]
    panels = [panel for panel in panels if not panel.empty]
    nothing = "Nothing to draw: no loader was measured on several numbers of cores."
    names = sorted({name for panel in panels for name in panel["loader_name"]})
    return style.panels(panels, lambda axis, panel: _panel(axis, panel, names), _height, nothing)


def _height(panel: pd.DataFrame) -> float:
    return HEAD_IN + max(AXES_IN, NAME_IN * (1 + panel["loader_name"].nunique()))


def _panel(axis: Axes, panel: pd.DataFrame, names: list[str]) -> None:
    axis.set_title(style.title(title(panel)))
    cores = sorted(panel["cores_asked"].astype(int).unique())
    top = max(1.05, panel["high"].max() * 1.02)
    ends = []
    for name, line in panel.groupby("loader_name"):
        look = style.line(names.index(name))
        x, y = (line[column].to_numpy(float) for column in ("cores_asked", "of_replay"))
        reach = [line["of_replay"] - line["low"], line["high"] - line["of_replay"]]
        axis.errorbar(x, y, yerr=reach, capsize=3, lw=1.6, ms=6, **look)
        said = [
            f"{name}, {wording.plural(int(row['cores_asked']), 'core')}: AU " + ", ".join(field(row))
            for _, row in line.iterrows()
        ]
        style.hint_points(axis, x, y, said)
        ends.append((x[-1], y[-1], str(name), look["color"]))
    ends.sort(key=lambda end: end[1])
    gap = top * NAME_IN / max(AXES_IN, NAME_IN * (1 + len(ends)))
    places = style.spread([y for _, y, *_ in ends], gap, top)
    axis.set(xscale="log", xlim=(cores[0] / 1.15, cores[-1] * 1.06), xlabel="CPU cores")
    axis.set(ylim=(0, top), ylabel="AU: share of the compute-only rate")
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.6, "relpos": (0, 0.5), "shrinkB": 4}
        axis.annotate(
            name, (x, y), (NAMES_AT, place), "data", ("axes fraction", "data"), color=colour, fontsize=9,
            va="center", arrowprops=leader,
        )  # fmt: skip
    axis.axhline(FED, color="black", lw=1, ls=(0, (4, 3)), zorder=1)
    axis.xaxis.set_major_locator(FixedLocator(cores))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.grid(True)
