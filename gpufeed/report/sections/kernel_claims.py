"""What kernels are held to, judged on one kernel benchmark: those of the augments, and of the activation.

Medians, with the range that the quartiles of the launches allow: a claim holds or fails only where that
whole range lies on one side of its line.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gpufeed.core.plan_kernels import STEPS
from gpufeed.report import claims

MISSING = "not measured"
BATCH, SIZE = 4096, 64  # images and pixels a side where bytes and not launches decide
FEW = 128  # images where launches decide
CHAIN_SHARE, FUSED_SHARE = 0.70, 0.85  # of the speed of a copy of as many bytes
TIMES_LIBRARIES = 3.0
WITHIN = 0.20  # of the ratio of the bytes
LIBRARIES = {"torchvision": "torchvision v2", "kornia": "Kornia"}

# rows that have a time, by (work, implementation, batch, size) and by (work, form, implementation, columns)
AugmentRows = Mapping[tuple[str, str, int, int], Mapping]
ActivationRows = Mapping[tuple[str, str, str, int], Mapping]


@dataclass(frozen=True)
class Claim:
    """One line of the table. line: what it is held to, empty where it is only shown; answer is then too."""

    claim: str
    line: str
    measured: str
    answer: str


class Measured(NamedTuple):
    """A number with the range that quartiles give it."""

    value: float
    low: float
    high: float


def augment_claims(done: AugmentRows, titles: Mapping[str, str]) -> list[Claim]:
    """Return all claims, in the order of the table. done: rows that have times; titles: works in words."""
    found = [
        share(done, "chain", work, CHAIN_SHARE, f"chain, {titles[work]}") for work in ("normalise", *STEPS)
    ]
    found.append(share(done, "fused", "one_pass", FUSED_SHARE, "fused, all in one pass"))
    found.append(lead_by_bytes(done))
    for name, title in LIBRARIES.items():
        times = slower(done, name)
        claim = f"fused over {title}, the same work, batch {BATCH} of {SIZE} px"
        line = f"at least {TIMES_LIBRARIES:g} times as fast"
        found.append(judged(claim, line, times, "{:.1f} times".format, TIMES_LIBRARIES))
    fused, chain = (done.get(("one_pass", name, FEW, SIZE)) for name in ("fused", "chain"))
    claim = f"fused over the chain, a call with its launches, batch {FEW} of {SIZE} px"
    said = f"{chain['call_ms'] / fused['call_ms']:.1f} times as fast" if fused and chain else MISSING
    return [*found, Claim(claim, "", said, "")]


def share(done: AugmentRows, by: str, work: str, line: float, title: str) -> Claim:
    """Judge a kernel's share of the speed of a copy of the bytes that it moves itself."""
    row = done.get((work, by, BATCH, SIZE))
    claim = f"{title}, batch {BATCH} of {SIZE} px"
    return judged(claim, f"at least {line:.0%} of copy", of_copy(row), "{:.0%}".format, line)


def of_copy(row: Mapping | None) -> Measured | None:
    """Return a row's share of its yardstick's speed; None without a row."""
    return row and Measured(*(row["copy_ms"] / row[f"ms_{end}"] for end in ("median", "q3", "q1")))


def lead_by_bytes(done: AugmentRows) -> Claim:
    """Judge whether the fused kernel leads the chain by what it saves in bytes."""
    lead = slower(done, "chain")
    claim = f"fused over the chain, batch {BATCH} of {SIZE} px"
    if lead is None:
        return Claim(claim, f"within {WITHIN:.0%} of the ratio of their bytes", MISSING, MISSING)
    chain, fused = (done["one_pass", name, BATCH, SIZE]["bytes"] for name in ("chain", "fused"))
    ratio = chain / fused
    line = f"{ratio:.1f} times, the ratio of their bytes, within {WITHIN:.0%}"
    return judged(claim, line, lead, "{:.1f} times".format, ratio * (1 - WITHIN), ratio * (1 + WITHIN))


def slower(done: AugmentRows, by: str) -> Measured | None:
    """Return how many times as long as `fused` another takes for one_pass; None without both times."""
    return faster(*(done.get(("one_pass", name, BATCH, SIZE)) for name in ("fused", by)))


def judged(
    claim: str, line: str, found: Measured | None, say: Callable[[float], str], low: float, high: float = inf
) -> Claim:
    """Judge the claim that a number lies between low and high."""
    if not found:
        return Claim(claim, line, MISSING, MISSING)
    words = f"{say(found.value)} ({say(found.low)} to {say(found.high)})"
    return Claim(claim, line, words, claims.judged(found.low, found.high, low, high))


WORKS = {
    "bias_gelu_forward": "bias and GELU, forward",
    "bias_gelu_backward": "bias and GELU, backward with the bias's gradient",
    "linear_gelu": "linear and GELU, forward",
    "mlp": "MLP block (linear, bias, GELU, linear), forward and backward",
}
WHO = {
    "extension": "extension",
    "epilogue": "cuBLASLt epilogue",
    "compiled": "torch.compile",
    "eager": "eager",
    "gelu_alone": "F.gelu without bias",
}


def activation_claims(done: ActivationRows, lines: Iterable[Mapping], columns: Sequence[int]) -> list[Claim]:
    """Return a claim a line and width; a line of several numbers gives one for each."""
    found = []
    for line, width in itertools.product(lines, columns):
        work, form, who = line["work"], line["form"], line.get("implementation", "extension")
        row = done.get((work, form, who, width))
        name = f"{WHO[who]}, {WORKS[work]}, {form}, {width} columns"
        if "share" in line:
            yardstick = row["yardstick"] if row else "copy or triad"
            said = f"at least {line['share']:.0%} of {yardstick}"
            found.append(judged(name, said, of_copy(row), "{:.0%}".format, line["share"]))
        for other, times in line.get("times", {}).items():
            lead = faster(row, done.get((work, form, other, width)))
            said = f"at least {times:g} times as fast as {WHO[other]}"
            found.append(judged(name, said, lead, "{:.2f} times".format, times))
    return found


def faster(row: Mapping | None, other: Mapping | None) -> Measured | None:
    """Return how many times as long as a row another takes; None without both times."""
    if not row or not other:
        return None
    ends = (("median", "median"), ("q1", "q3"), ("q3", "q1"))
    return Measured(*(other[f"ms_{one}"] / row[f"ms_{own}"] for one, own in ends))


def table_rows(
    done: Mapping[tuple, Mapping],
    works: Mapping[tuple, str],
    who: Mapping[str, str],
    sizes: Sequence[tuple],
    cell: Callable[[Mapping], dict],
) -> list[dict]:
    """Return a row a timed work and implementation, a cell a size. done: rows by (*work, name, *size)."""
    rows = []
    for work, title in works.items():
        for name, said in who.items():
            found = [done.get((*work, name, *size)) for size in sizes]
            if any(found):
                least = any(row["bytes_are"] == "at least" for row in found if row)
                cells = [row and cell(row) for row in found]
                rows.append({"work": title, "implementation": said, "least": least, "cells": cells})
    return rows
