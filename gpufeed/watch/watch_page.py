"""A page about one or several watched trainings (watch.json), which opens without a network."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from gpufeed.core.document import finite_number, validator
from gpufeed.core.errors import GpufeedError
from gpufeed.core.quantities import gib
from gpufeed.report import style, wording

SCHEMA = 1
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
AGAIN = "name a watch.json that gpufeed.watch wrote, or watch the training again with this version"
FOLDED = 12  # stretches: a longer table is folded
LETTERS = 34  # of a name in a figure
MOST = 400  # stretches in a table, and of a kind in a figure
END, ALONE = "end_to_end", "compute_only"
KINDS = {END: ("end to end", style.BLUE, "o"), ALONE: ("compute only", style.VERMILION, "^")}
GROWTH = (  # in growth, as a row, and its factor
    ("host_bytes_per_step", "growth of memory, MiB in 1,000 steps", 1000 / 2**20),
    ("fetch_seconds_per_step", "growth of a fetch, ms in 1,000 steps", 1e6),
)
METHODS = {
    "stock_and_burst": "The next batches were held, and the same training steps ran over them at full speed.",
    "between_batches": "No batch was held: compute-only time is that between two requests for a batch.",
}


def read(path: str | Path) -> dict[str, Any]:
    """Return a watch.json; raise GpufeedError if it is missing, damaged or of another schema."""
    expected = f"the JSON of a watched training, schema {SCHEMA}"
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=finite_number)
    except FileNotFoundError:
        raise GpufeedError(
            f"no file {path}", expected, "correct the path, or finish the training first"
        ) from None
    except IsADirectoryError:
        raise GpufeedError(
            f"the folder {path}", expected, "name that file; for a folder of results: snakemake report"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise GpufeedError(f"{path} that cannot be read ({error})", expected, AGAIN) from error
    if not isinstance(found, dict) or not {"schema", "au"} <= found.keys():
        raise GpufeedError(f"other JSON in {path}", expected, AGAIN)
    if found["schema"] != SCHEMA:
        raise GpufeedError(f"{path} of schema {found['schema']!r}", expected, AGAIN)
    for fault in validator("watch").iter_errors(found):
        raise GpufeedError(f"{path}: {fault.json_path}: {fault.message}", expected, AGAIN)
    return found


def page(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page as HTML. runs: the reader's name of each training -> its watch.json, from `read`."""
    return (
        style.templates()
        .get_template("watch.html.j2")
        .render(
            policy=POLICY,
            css=style.part("report.css"),
            script=style.part("wide.js"),
            plural=wording.plural,
            coded=coded,
            utilization=utilization(runs),
            runs=[run(name, found, number) for number, (name, found) in enumerate(runs.items())],
        )
    )


def run(name: str, found: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the template's values for one training."""
    unit, size = ("samples", found["batch_samples"]) if found["batch_samples"] else ("batches", 1)
    return {
        "name": name,
        "found": found,
        "method": METHODS[found["method"]],
        "unit": unit,
        "numbers": numbers(found, unit),
        "causes": found.get("causes", []),
        "stages": stage_rows(found.get("stages")),
        "rates": rates(found, unit, size, f"rates-{number}"),
        "stretches": [stretch(one, size) for one in found["stretches"][:MOST]],
        "folded": len(found["stretches"]) > FOLDED,
        "held": memory(found["held"]["host_bytes"] + found["held"]["device_bytes"]),
    }


def numbers(found: Mapping[str, Any], unit: str) -> list[tuple[str, str, str]]:
    """Return rows of name, value and spread, with a dash for values that were not measured."""
    au, stall, copied = (found[name] for name in ("au", "data_stall_share", "copy_seconds"))
    starts = found["epoch_start_seconds"]
    rows = [("accelerator utilization (AU)", *valued(au["value"], au, wording.tenths))]
    for side, word in ((ALONE, "compute only, the limit"), (END, "end to end")):
        rate = found[side]
        rows.append((f"{unit} a second, {word}", *valued(rate["samples_per_second"], rate, wording.count)))
    first, _ = valued(median(starts) if starts else None, {}, time)
    spread = f"at most {time(max(starts))}, n = {len(starts)}" if starts else "-"
    return [
        *rows,
        ("data stall, of the time of a step", *valued(stall, {}, wording.tenths)),
        ("first batch of an epoch, median", first, spread),
        ("copy of a batch to the device", *valued(copied, {}, time)),
        *growth(found.get("growth", {})),
    ]


def coded(text: str) -> Markup:
    """Return a text whose parts in backticks are code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>" if at % 2 else "{}").format(one) for at, one in enumerate(parts)
    )


def growth(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return rows for the growth of memory and fetches over the steps, if known."""
    rows = []
    for key, name, factor in GROWTH:
        one = found.get(key, {})
        if one.get("value") is not None:
            scaled = {end: one[end] and factor * one[end] for end in ("low", "high")}
            rows.append(
                (name, *valued(factor * one["value"], {**scaled, "n": one["n"]}, wording.three_figures))
            )
    return rows


def stage_rows(found: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return rows of a stage, its time for a batch, and the training's speed without it."""
    if not found:
        return []
    worth = found["at_most"]
    said = {name: f"{worth[name]:.2f} times as fast" if name in worth else "-" for name in found["seconds"]}
    return [(name, time(seconds), said[name]) for name, seconds in found["seconds"].items()]


def valued(value: float | None, of: Mapping[str, Any], say) -> tuple[str, str]:
    """Return a value in words, and its interval with n."""
    if value is None:
        return "not measured", "-"
    if "n" not in of:
        return say(value), "-"
    if of["low"] is None:
        return say(value), f"n = {of['n']}, too few for an interval"
    return say(value), f"{say(of['low'])} to {say(of['high'])}, n = {of['n']}"


def time(seconds: float) -> str:
    """Return seconds with three figures; less than one as milliseconds."""
    small = seconds < 1
    return f"{wording.three_figures(seconds * 1e3 if small else seconds)} {'ms' if small else 's'}"


def stretch(one: Mapping[str, Any], size: int) -> dict[str, str]:
    """Return a row of the table of stretches."""
    rate = one["steps"] * size / one["seconds"] if one["seconds"] > 0 else None
    return {
        "kind": KINDS.get(one["kind"], (one["kind"].replace("_", " "),))[0],
        "first": f"{one['first_step']:,}",
        "steps": f"{one['steps']:,}",
        "seconds": wording.three_figures(one["seconds"]),
        "rate": wording.count(rate),
    }


def memory(size: int) -> str:
    """Return bytes as `12.3 GiB`, `4.5 MiB` or `6 KiB`."""
    return gib(size) if size > 2**19 else f"{size / 2**10:.0f} KiB"


def utilization(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the figure of AU with its interval and the limit, one bar for each training."""
    with style.look(), style.mpl.rc_context({"font.size": 11}):
        figure, (axis,) = style.stack([0.85 + 0.75 * len(runs)])
        for place, (name, found) in enumerate(runs.items()):
            au = found["au"]
            value, low, high = (au[key] for key in ("value", "low", "high"))
            (bar,) = axis.barh(place, value or 0, height=0.4, color=style.BLUE, zorder=2)
            style.hint(bar, f"{name}: AU {brief(au)}")
            if low is not None:
                axis.plot([low, high], [place] * 2, color="black", lw=2.5, marker="|", ms=11, mew=2, zorder=4)
            known = f"{'…' * (len(name) > LETTERS)}{name[-LETTERS:]}: " if len(runs) > 1 else ""
            axis.text(0, place - 0.3, known + brief(au), va="bottom", parse_math=False, in_layout=False)
        axis.axvline(1, color=style.VERMILION, ls="--", lw=2, zorder=3)
        axis.set_xlim(0, max(1.05, axis.get_xlim()[1]))
        axis.set_ylim(len(runs) - 0.6, -0.75)
        axis.set_yticks([])
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.set_xlabel("accelerator utilization (AU); dashed: the limit")
        axis.spines["left"].set_visible(False)
    caption = (
        "Accelerator utilization (AU): the time of a training step with its batch at hand, over that of a "
        "step with the loader. The whisker is its 95 % interval. The dashed line is the limit: a loader that "
        "never lets a step wait."
    )
    return style.picture(figure, "utilization", caption)


def brief(au: Mapping[str, Any]) -> str:
    """Return AU with its interval and n, for a figure."""
    if au["value"] is None:
        return "not measured"
    interval = "" if au["low"] is None else f" ({wording.ends(au['low'], au['high'])})"
    return f"{wording.tenths(au['value'])}{interval}, n = {au['n']}"


def rates(found: Mapping[str, Any], unit: str, size: int, prefix: str) -> dict[str, str] | None:
    """Return the figure of the rate of each stretch over the steps; None without a measured stretch."""
    timed = [one for one in found["stretches"] if one["seconds"] > 0 and one["steps"]]
    if not timed:
        return None
    with style.look(), style.mpl.rc_context({"font.size": 11}):
        figure, (axis,) = style.stack([3.4])
        for kind in dict.fromkeys(one["kind"] for one in timed):
            of_kind = [one for one in timed if one["kind"] == kind]
            draw_kind(axis, kind, of_kind[:: -(-len(of_kind) // MOST)], size)
        for side in (ALONE, END):
            if (value := found[side]["samples_per_second"]) is not None:
                axis.axhline(value, color=KINDS[side][1], lw=1, ls="--", zorder=1)
        axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(lambda value, _: style.short(round(value, 3)))
        axis.set(xlabel="step", ylabel=f"{unit} a second")
        axis.grid(axis="y", color="#80808040")
        figure.legend(loc="outside upper left", ncols=3)
    caption = (
        f"{unit.capitalize()} a second of each stretch, at the steps in which it was measured; the dashed "
        "lines are the rates of the table. What end to end lacks to compute only is lost to the input."
    )
    return style.picture(figure, prefix, caption)


def draw_kind(axis: Axes, kind: str, stretches: Sequence[Mapping[str, Any]], size: int) -> None:
    """Draw the stretches of a kind: a line as long as its steps, and a marker in its middle."""
    word, colour, marker = KINDS.get(kind, (kind.replace("_", " "), style.GREY, "s"))
    y = [one["steps"] * size / one["seconds"] for one in stretches]
    begin, middle, end = (
        [one["first_step"] + part * one["steps"] for one in stretches] for part in (0, 0.5, 1)
    )
    axis.hlines(y, begin, end, colors=colour, lw=2.5, zorder=2)
    look = {"color": colour, "marker": marker, "ms": 5, "ls": "none", "zorder": 3}
    axis.plot(middle, y, label=word.replace("$", r"\$"), **look)
