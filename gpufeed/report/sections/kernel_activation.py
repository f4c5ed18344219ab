"""The activation of an MLP in the report: who wins at which width, claims, a figure and a table."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpufeed.core.plan_kernels import ACTIVATION_WORKS, YARDSTICKS
from gpufeed.report import style, wording
from gpufeed.report.load_records import finished
from gpufeed.report.sections import kernel_claims
from gpufeed.report.sections.kernel_claims import WHO, WORKS, ActivationRows, faster

INTRO = (
    "The activation of a transformer's MLP on matrices that lie on the device, out of its L2 cache: medians "
    "over the launches, quartiles in brackets. Where moving bytes decides, the measure is a copy, or for the "
    "backward pass, which reads two arrays and writes one, a sum of two arrays into a third: of as many "
    "bytes, in the same process. What torch moves beyond the least that the work needs is not counted (“at "
    "least”). Where products decide, it is TFLOP/s. Everybody's result was held against float64 before it "
    "was timed. A call is timed without a pause, launching included, and autograd where there is a backward "
    "pass."
)
CAPTION = (
    "Share of the speed of a copy (forward) or of a triad (backward), and TFLOP/s of the work with products, "
    "its microseconds on the bars, by width and implementation; more is better. Medians over the launches, "
    "whiskers from the lower to the upper quartile."
)
SHOWN = {(work, form): f"{WORKS[work]}, {form}" for work, forms in ACTIVATION_WORKS.items() for form in forms}
RIVALS = ("compiled", "eager")
FUSED = ("extension", "epilogue")  # gpufeed.native', which the sentences are about


def named(row: Mapping) -> str:
    """Return what a row measured, and its sizes, in words."""
    return f"{SHOWN[row['work'], row['form']]} at {row['rows']} x {row['columns']}"


def shown(found: dict, lines: Iterable[Mapping], prefix: str) -> dict:
    """Return sentences, claims, the figure and the table of one benchmark. prefix: of the figure's ids."""
    done = finished(found, "work", "form", "implementation", "columns")
    settings = found["settings"]
    return {
        "sentences": sentences(done, settings["columns"]),
        "claims": kernel_claims.activation_claims(done, lines, settings["columns"]),
        "pictures": [style.picture(draw(done, settings), prefix, CAPTION)],
        "tables": [table(done, settings)],
    }


def sentences(done: ActivationRows, columns: Sequence[int]) -> list[str]:
    """Return a sentence for each work and form that was measured."""
    said = [
        (say_share if work in YARDSTICKS else say_winners)(done, work, form, columns) for work, form in SHOWN
    ]
    return [text for text in said if text]


def say_share(done: ActivationRows, work: str, form: str, columns: Sequence[int]) -> str:
    """Return the extension's share of its yardstick at every width, and its lead over torch's ways."""
    rows = {width: row for width in columns if (row := done.get((work, form, "extension", width)))}
    if not rows:
        return ""
    shares = wording.listing(f"{row['share_of_copy']:.0%}" for row in rows.values())
    text = (
        f"{wording.capital(WORKS[work])}, {form}: at {wording.listing(rows)} columns the extension has "
        f"{shares} of the speed of a {YARDSTICKS[work]} of as many bytes"
    )
    for rival in RIVALS:
        others = (faster(row, done.get((work, form, rival, width))) for width, row in rows.items())
        leads = [lead.value for lead in others if lead]
        if leads:
            text += f", {wording.rounded_ends(leads, 2)} times the speed of {WHO[rival]}"
    return text + "."


def say_winners(done: ActivationRows, work: str, form: str, columns: Sequence[int]) -> str:
    """Return which is fastest at each width, by how much, and where that is uncertain."""
    parts = [part for width in columns if (part := winner(done, work, form, width))]
    return f"{wording.capital(WORKS[work])}, {form}: {'; '.join(parts)}." if parts else ""


def winner(done: ActivationRows, work: str, form: str, width: int) -> str:
    """Return who is fastest at one width; empty where fewer than two were measured."""
    rows = [row for name in WHO if (row := done.get((work, form, name, width)))]
    if len(rows) < 2:
        return ""
    first, second, *_ = sorted(rows, key=lambda row: row["ms_median"])
    rate = f"{first['ms_median']:.3g} ms, {first['tflop_per_s']:,.0f} TFLOP/s"
    names = [WHO[row["implementation"]] for row in (first, second)]
    if first["ms_q3"] >= second["ms_q1"]:
        text = f"at {width} columns {names[0]} ({rate}) and {names[1]} cannot be told apart"
    else:
        lead = second["ms_median"] / first["ms_median"]
        text = f"at {width} columns {names[0]} ({rate}) is fastest, {lead:.2f} times the speed of {names[1]}"
    for row in rows:
        if row["implementation"] in FUSED and row not in (first, second):
            behind = row["ms_median"] / first["ms_median"]
            text += f", {behind:.2f} times that of {WHO[row['implementation']]}"
    return text


def table(done: ActivationRows, settings: dict) -> dict:
    """Return the table of all works and implementations, a column a width."""
    caption = (
        f"{settings['rows']:,} rows in {settings['dtype']}; at most {settings['launches']} launches, "
        f"{settings['flush_mib']} MiB written before each. The block around the MLP has a fourth of the "
        "columns"
    )
    rows = kernel_claims.table_rows(done, SHOWN, WHO, [(width,) for width in settings["columns"]], cell)
    columns = [f"{width} columns" for width in settings["columns"]]
    return {"summary": "All widths", "caption": caption, "columns": columns, "rows": rows}


def cell(row: Mapping) -> dict:
    """Return one measurement in words, the first the most important."""
    time = f"{row['ms_median']:.3g} ms ({row['ms_q1']:.3g} to {row['ms_q3']:.3g})"
    call = f"{row['call_ms']:.3g} ms a call"
    if row["yardstick"] is None:
        return {"first": f"{row['tflop_per_s']:,.0f} TFLOP/s", "rest": [time, call]}
    share = f"{row['share_of_copy']:.0%} of {row['yardstick']}"
    return {"first": share, "rest": [f"{row['gb_per_s']:,.0f} GB/s", time, call]}


PANEL_IN, LEGEND_IN = 2.5, 0.7
GROUP = 0.84  # of the distance of two groups is bars
LOOKS = {
    "extension": (style.BLUE, ""),
    "epilogue": (style.GREEN, "\\\\"),
    "compiled": (style.ORANGE, "//"),
    "eager": (style.SKY, ".."),
    "gelu_alone": (style.GREY, "xx"),
}
NOTHING = "Nothing to draw: no row of this benchmark has a time."
SHORT = WORKS | {  # what fits above a panel
    "bias_gelu_backward": "bias and GELU, backward",
    "mlp": "MLP block, forward and backward",
}


def draw(done: ActivationRows, settings: Mapping) -> Figure:
    """Draw a panel for each work and form with a time. done: see `ActivationRows`."""
    panels = [key for key in SHOWN if any(found[:2] == key for found in done)]
    names = [name for name in WHO if any(found[2] == name for found in done)]
    legend = {"handles": style.patches((*LOOKS[name], WHO[name]) for name in names), "ncols": 3}

    def panel(axis: Axes, key: tuple[str, str]) -> None:
        _panel(axis, done, *key, settings["columns"])

    return style.panels(panels, panel, lambda _: PANEL_IN, NOTHING, LEGEND_IN, legend)


def _panel(axis: Axes, done: ActivationRows, work: str, form: str, columns: list[int]) -> None:
    names = [name for name in WHO if any((work, form, name) == key[:3] for key in done)]
    wide = GROUP / len(names)
    for number, name in enumerate(names):
        colour, hatch = LOOKS[name]
        found = [(at, done.get((work, form, name, width))) for at, width in enumerate(columns)]
        found = [(at, row) for at, row in found if row]
        x = np.array([at for at, _ in found]) + (number - (len(names) - 1) / 2) * wide
        middle, low, high = np.array([_value(row) for _, row in found]).T
        bars = axis.bar(x, middle, width=wide, color=colour, hatch=hatch, edgecolor="white", lw=0, zorder=2)
        for bar, (_, row) in zip(bars, found, strict=True):
            first, rest = cell(row).values()
            who = f"{SHOWN[work, form]}, {WHO[name]}, {row['columns']} columns"
            style.hint(bar, f"{who}: {first}, {rest[-2]}")
        axis.errorbar(x, middle, yerr=[middle - low, high - middle], **style.RANGE)
        for place, end, (_, row) in zip(x, high, found, strict=True):
            value = row["share_of_copy"] * 100 if row["yardstick"] else row["ms_median"] * 1000
            axis.annotate(f"{value:.0f}", (place, end), (0, 2), **style.ABOVE)
    if work in YARDSTICKS:
        axis.axhline(1, color=style.VERMILION, lw=1.2, zorder=1)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value * 100:.0f} %")
        axis.set_ylabel(f"of the speed of a {YARDSTICKS[work]}")
    else:
        axis.set_ylabel("TFLOP/s; microseconds on the bars")
    axis.set_ylim(0, axis.get_ylim()[1] * 1.08)
    axis.set_title(f"{SHORT[work]}, {form}")
    axis.set_xticks(range(len(columns)), [f"{width} columns" for width in columns])
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="y", zorder=0)


def _value(row: Mapping) -> tuple[float, float, float]:
    """Return (median, low, high) of what a panel shows of a row: its share, or else its TFLOP/s."""
    if row["yardstick"] is None:
        return tuple(row["flops"] / row[f"ms_{end}"] / 1e9 for end in ("median", "q3", "q1"))
    return kernel_claims.of_copy(row)
