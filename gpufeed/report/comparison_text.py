"""A comparison as words: a table for the terminal, and one for a pull request."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from gpufeed.report.comparison import BETWEEN, ORDER, REFUSED, Comparison
from gpufeed.report.wording import count, in_columns, listing, plural
from gpufeed.system.statistics import ENOUGH_FOR_INTERVAL, FEW, MATTERS, UNLIKE

HEADINGS = ("verdict", "A / B", "95 % interval", "A images/s", "B images/s", "n", "cell")
RIGHT = (1, 3, 4)  # columns of numbers
FORCED = "FORCED: some of these cells may not be compared; the reasons stand below"
MOST_NAMED = 10  # cells of one side
WITHOUT = {  # verdict without an interval -> which repeats have none, and what to do
    FEW: f"with too few repeats: measure {ENOUGH_FOR_INTERVAL} of each to know",
    UNLIKE: "whose repeats differ in number and spread: measure as many of both to know",
}


def text(found: Comparison) -> str:
    """Return the whole comparison as text for a terminal."""
    blocks = [heading(found), aligned(HEADINGS, cells(found)), *remarks(found), conclusion(found)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def markdown(found: Comparison) -> str:
    """Return the whole comparison as Markdown for a pull request."""
    lines = heading(found).splitlines()
    blocks = ["## Comparison", "\n".join(f"- {line}" for line in lines), f"**{conclusion(found)}**"]
    blocks += [piped(HEADINGS, cells(found)) if len(found.rows) else "", *remarks(found)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def heading(found: Comparison) -> str:
    """Return what the two sides are, and how to read the rest."""
    lines = [
        f"{side}: {name}, {f'measured on {listing(machines)}' if machines else 'without a repeat to compare'}"
        for (side, name), machines in zip(found.names.items(), found.machines.values(), strict=True)
    ]
    lines.append(
        f"A / B: images/s of A over those of B; faster or slower where the whole 95 % interval lies beyond "
        f"{MATTERS} or 1 / {MATTERS}, which takes {ENOUGH_FOR_INTERVAL} repeats of each, "
        "and as many of both where their spread differs"
    )
    return "\n".join([*([FORCED] if found.forced else []), *lines])


def cells(found: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of the table, as HEADINGS."""
    return [_cell(row) for _, row in found.rows.iterrows()]


def _cell(row: pd.Series) -> tuple[str, ...]:
    verdict = row["verdict"] + (" (forced)" if row["forced"] else "")
    verdict += ", ranges apart" if row["verdict"] in WITHOUT and row["apart"] else ""
    bounds = ""
    if not pd.isna(row["ratio"]):
        bounds = f"{row['low']:.3f} to {row['high']:.3f}" + (" (range)" if row["bounds"] == "range" else "")
    return (
        verdict,
        "" if pd.isna(row["ratio"]) else f"{row['ratio']:.3f}",
        bounds,
        count(row["a_images_per_s"]),
        count(row["b_images_per_s"]),
        f"{row['n']:.0f} pairs" if row["paired"] else f"{row['a_n']:.0f} and {row['b_n']:.0f}",
        f"{row['experiment']}/{row['cell_id']}",
    )


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = RIGHT) -> str:
    """Return a table with columns two spaces apart; empty without rows. right: right-aligned columns."""
    if not rows:
        return ""
    lines = in_columns([headings, *rows], right)
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def piped(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = RIGHT) -> str:
    """Return a Markdown table. right: right-aligned columns."""
    rule = ["---:" if number in right else "---" for number in range(len(headings))]
    lines = [headings, rule, *rows]
    return "\n".join("| " + " | ".join(value.replace("|", "\\|") for value in line) + " |" for line in lines)


def remarks(found: Comparison) -> list[str]:
    """Return reasons and notes, each once with the number of its cells, and what only one side has."""
    rows = found.rows
    reasons = rows.loc[rows["forced"].astype(bool) | (rows["verdict"] == REFUSED), "reason"]
    blocks = [
        _counted("Refused" if not found.forced else "Forced, although", _split(reasons)),
        _counted("Not measured on both sides", _unmeasured(found)),
        _counted("To keep in mind", _split(rows["notes"])),
    ]
    blocks += [_only(found, side) for side in found.only]
    for side, paths in found.damaged.items():
        files = plural(len(paths), "file is no record", "files are no records")
        blocks.append(f"Left out of {side}: {files}, the first {paths[0]}." if paths else "")
    return [block for block in blocks if block]


def _only(found: Comparison, side: str) -> str:
    """Return the cells that only one side has; an experiment that the other side lacks is one line."""
    names = found.only[side]
    if not names:
        return ""
    others = {name.split("/")[0] for other, cells in found.only.items() if other != side for name in cells}
    shared = others | set(found.rows["experiment"])
    whole = Counter(name.split("/")[0] for name in names if name.split("/")[0] not in shared)
    lines = [f"- {experiment}: {plural(number, 'cell')}" for experiment, number in whole.items()]
    single = [f"- {name}" for name in names if name.split("/")[0] in shared]
    more = [f"- and {len(single) - MOST_NAMED} more"] if len(single) > MOST_NAMED else []
    title = f"Only in {side}, {plural(len(names), 'cell')}:"
    return "\n".join([title, "", *lines, *single[:MOST_NAMED], *more])


def _unmeasured(found: Comparison) -> Counter[str]:
    rows = found.rows
    return Counter(
        f"{row['experiment']}/{row['cell_id']}: {row['reason']}"
        for _, row in rows[rows["a_n"].eq(0) | rows["b_n"].eq(0)].iterrows()
    )


def _split(sentences: pd.Series) -> Counter[str]:
    return Counter(one for sentence in sentences for one in sentence.split(BETWEEN) if one)


def _counted(title: str, sentences: Counter[str]) -> str:
    if not sentences:
        return ""
    lines = [
        f"- {sentence}" + (f" ({number} cells)" if number > 1 else "")
        for sentence, number in sentences.most_common()
    ]
    return "\n".join([f"{title}:", "", *lines])


def conclusion(found: Comparison) -> str:
    """Return the answer in a sentence or two."""
    if found.rows.empty:
        return "No cell is on both sides: nothing was compared."
    counts = [f"{found.count(verdict)} {verdict}" for verdict in ORDER if found.count(verdict)]
    said = [f"Of {plural(len(found.rows), 'cell')}: {', '.join(counts)}."]
    if not found.judged:
        said.append("No cell could be judged, so that this shows no regression and rules none out.")
    for verdict, advice in WITHOUT.items():
        if apart := int((found.rows["apart"].astype(bool) & (found.rows["verdict"] == verdict)).sum()):
            said.append(f"Ranges are apart in {apart} {advice}.")
    if intervals := len(found.intervals):
        said.append(
            f"The 95 % interval holds 1 and is narrower than +-5 % in {found.repeated} of {intervals}."
        )
    return " ".join(said)
