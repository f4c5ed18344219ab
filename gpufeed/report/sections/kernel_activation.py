"""The activation of an MLP in the report: who wins at which width, claims, a figure and a table."""

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from gpufeed.core.plan_kernels import ACTIVATION_IMPLEMENTATIONS, ACTIVATION_WORKS, YARDSTICKS
from gpufeed.report import style, wording
from gpufeed.report.sections import kernel_figure, kernel_lines
from gpufeed.report.sections.kernel_lines import WHO, WORKS, Rows, faster

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
RIVALS = ("compiled", "eager")
FUSED = ("extension", "epilogue")  # gpufeed.native', which the sentences are about


def work_of(row: Mapping) -> str:
    """What a row measured, in words."""
    return f"{WORKS[row['work']]}, {row['form']}"


def at(row: Mapping) -> str:
    """The sizes of a row, in words."""
    return f" at {row['rows']} x {row['columns']}"


def shown(found: dict, lines: Iterable[Mapping], prefix: str) -> dict:
    """Sentences, claims, the figure and the table of one benchmark. prefix: of the figure's ids."""
    done = {
        (row["work"], row["form"], row["implementation"], row["columns"]): row
        for row in found["rows"]
        if row["status"] == "done"
    }
    settings = found["settings"]
    svg = style.inline_svg(style.to_svg(kernel_figure.draw(done, settings)), prefix, CAPTION)
    return {
        "sentences": sentences(done, settings["columns"]),
        "claims": kernel_lines.claims(done, lines, settings["columns"]),
        "pictures": [{"svg": Markup(svg), "caption": CAPTION}],
        "tables": [table(done, settings)],
    }


def sentences(done: Rows, columns: Sequence[int]) -> list[str]:
    """A sentence a work and form that somebody did."""
    said = []
    for work, forms in ACTIVATION_WORKS.items():
        for form in forms:
            say = say_share if work in YARDSTICKS else say_winners
            said.append(say(done, work, form, columns))
    return [text for text in said if text]


def say_share(done: Rows, work: str, form: str, columns: Sequence[int]) -> str:
    """The extension's share of its yardstick at every width, and its lead over torch's ways."""
    rows = {width: row for width in columns if (row := done.get((work, form, "extension", width)))}
    if not rows:
        return ""
    shares = wording.listing(f"{row['share_of_copy']:.0%}" for row in rows.values())
    text = (
        f"{capital(WORKS[work])}, {form}: at {wording.listing(rows)} columns the extension has {shares} "
        f"of the speed of a {YARDSTICKS[work]} of as many bytes"
    )
    for rival in RIVALS:
        leads = {
            width: lead.value
            for width, row in rows.items()
            if (lead := faster(row, done.get((work, form, rival, width))))
        }
        if leads:
            text += f", {ranged(leads.values())} times the speed of {WHO[rival]}"
    return text + "."


def say_winners(done: Rows, work: str, form: str, columns: Sequence[int]) -> str:
    """Who is fastest at each width, by how much, and where that cannot be told."""
    parts = [part for width in columns if (part := winner(done, work, form, width))]
    return f"{capital(WORKS[work])}, {form}: {'; '.join(parts)}." if parts else ""


def winner(done: Rows, work: str, form: str, width: int) -> str:
    """Who is fastest at one width; empty where fewer than two were measured."""
    rows = [row for name in ACTIVATION_IMPLEMENTATIONS if (row := done.get((work, form, name, width)))]
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


def ranged(values: Iterable[float]) -> str:
    """`1.4`, or `1.4 to 1.6`."""
    ends = [f"{value:.2g}" for value in sorted(values)]
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def table(done: Rows, settings: dict) -> dict:
    """All works by everybody, a column a width."""
    caption = (
        f"{settings['rows']:,} rows in {settings['dtype']}; at most {settings['launches']} launches, "
        f"{settings['flush_mib']} MiB written before each. The block around the MLP has a fourth of the "
        "columns"
    )
    rows = []
    for work, forms in ACTIVATION_WORKS.items():
        for form in forms:
            for name in ACTIVATION_IMPLEMENTATIONS:
                found = [done.get((work, form, name, width)) for width in settings["columns"]]
                if any(found):
                    rows.append(
                        {
                            "work": f"{WORKS[work]}, {form}",
                            "implementation": WHO[name],
                            "least": any(row["bytes_are"] == "at least" for row in found if row),
                            "cells": [cell(row) if row else None for row in found],
                        }
                    )
    return {
        "summary": "All widths",
        "caption": caption,
        "columns": [f"{width} columns" for width in settings["columns"]],
        "rows": rows,
    }


def cell(row: Mapping) -> dict:
    """One measurement in words, the first the most important."""
    time = f"{row['ms_median']:.3g} ms ({row['ms_q1']:.3g} to {row['ms_q3']:.3g})"
    call = f"{row['call_ms']:.3g} ms a call"
    if row["yardstick"] is None:
        return {"first": f"{row['tflop_per_s']:,.0f} TFLOP/s", "rest": [time, call]}
    share = f"{row['share_of_copy']:.0%} of {row['yardstick']}"
    return {"first": share, "rest": [f"{row['gb_per_s']:,.0f} GB/s", time, call]}
