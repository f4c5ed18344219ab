"""When does decoding on the GPU pay? From the table of points to numbers and to sentences.

Two decoders differ only where their ranges over the passes do not touch and both have two passes or more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pandas as pd

from gpufeed.report.load_records import grouped
from gpufeed.report.sections import decoding_tables
from gpufeed.report.wording import count, listing, plural, ratio

KINDS = ("gpu", "cpu", decoding_tables.STRIPS, decoding_tables.STRIPS_CPU)


@dataclass(frozen=True)
class Rate:
    """Images per second of one decoder at one point."""

    decoder: str
    median: float
    low: float
    high: float
    n: int

    def beats(self, other: "Rate") -> bool:
        """Return whether it is faster beyond the spread."""
        return min(self.n, other.n) >= 2 and self.low > other.high


@dataclass(frozen=True)
class Size:
    """The rates at one image size: the best GPU decoder, strips, and the best CPU decoder a core count."""

    side: float
    dataset: str
    gpu: Rate | None
    strips: Rate | None
    strips_on: str  # where strips decode: "the GPU" or "16 cores"
    cpu: dict[int, Rate]
    strips_cpu: dict[int, Rate]  # strips without the GPU, by cores
    mixed: bool = False  # images of several sizes: `side` is of their mean

    @property
    def label(self) -> str:
        """`64`, or `about 433` for images of several sizes."""
        return f"{'about ' if self.mixed else ''}{self.side:g}"

    @property
    def worth(self) -> tuple[str, float] | None:
        """How many cores of the best CPU decoders equal the best GPU decoder: ("=" | "<" | ">", cores).

        Interpolated between measured core counts; "<" and ">" say that it lies outside them. None if one
        of the two was not measured.
        """
        return cores_worth(self.gpu, self.cpu) if self.gpu else None


def cores_worth(rate: Rate, cpu: dict[int, Rate]) -> tuple[str, float] | None:
    """Return `Size.worth` for any rate."""
    if not cpu:
        return None
    cores = sorted(cpu)
    reached = np.maximum.accumulate([cpu[c].median for c in cores])  # more cores need not use all of them
    if rate.median < reached[0]:
        return "<", cores[0]
    if rate.median > reached[-1]:
        return ">", cores[-1]
    place = int(np.searchsorted(reached, rate.median))
    if reached[place] == rate.median:
        return "=", float(cores[place])
    (c0, c1), (r0, r1) = cores[place - 1 : place + 1], reached[place - 1 : place + 1]
    return "=", float(c0 + (c1 - c0) * (rate.median - r0) / (r1 - r0))


def say_worth(worth: tuple[str, float] | None) -> str:
    """Return `6.4 cores`, `less than 1 core` or `more than 16 cores`; `-` if unknown."""
    if worth is None:
        return "-"
    sign, cores = worth
    if sign == "=":
        return f"{cores:.0f} cores" if cores >= 9.95 else f"{cores:.1f} cores"
    return f"{'less' if sign == '<' else 'more'} than {plural(int(cores), 'core')}"


def sizes(points: pd.DataFrame) -> list[Size]:
    """Return the image sizes of a machine's points, ascending; warm page cache and usual batch size only."""
    found = []
    for (side, dataset), ours in decoding_tables.usual(points).groupby(["side", "dataset"], sort=True):
        gpu, cpu, strips, strips_cpu = (ours[ours["kind"] == kind] for kind in KINDS)
        on_gpu = bool((strips["device"] == "cuda").any())
        most = int(strips["cores"].max()) if len(strips) else 0
        found.append(
            Size(
                side=float(side),
                dataset=str(dataset),
                gpu=best(gpu),
                strips=best(strips),
                strips_on="the GPU" if on_gpu else plural(most, "core"),
                cpu=best_by_cores(cpu),
                strips_cpu=best_by_cores(strips_cpu),
                mixed=bool(ours["height"].isna().any()),
            )
        )
    return found


def best_by_cores(rows: pd.DataFrame) -> dict[int, Rate]:
    return {int(cores): best(some) for cores, some in rows.groupby("cores")}


def on_most_cores(rates: dict[int, Rate]) -> tuple[int, Rate]:
    return max(rates.items(), key=itemgetter(0))


def best(rows: pd.DataFrame) -> Rate | None:
    """Return the row with the highest median as a Rate; None without rows."""
    if rows.empty:
        return None
    row = rows.loc[rows["images_per_s"].idxmax()]
    ends = (row[f"images_per_s{end}"] for end in ("", "_min", "_max"))
    return Rate(row["decoder"], *ends, int(row["n"]))


def answer(points: pd.DataFrame) -> list[str]:
    """Return the sentences under one machine's figure: when the GPU pays, and what strips change."""
    found = sizes(points)
    if not found:
        return ["No decoder has a finished measurement, so there is nothing to compare."]
    first = points.iloc[0]
    many = len(decoding_tables.nodes(points))
    node = "On this node" if many == 1 else f"On these {many} nodes"
    node += f" ({first['hardware']}, {plural(int(first['node_cores']), 'core')})"
    if not any(size.gpu for size in found):
        return [_without_gpu(node, found), *_strips(found)]
    if not any(size.cpu for size in found):
        unknown = f"{node} no CPU decoder was measured, so it cannot be said when the GPU pays."
        return [unknown, *_strips(found)]
    return [_pays(node, found), *_worths(found), *_ties(found), *_strips(found)]


def _pays(node: str, found: Sequence[Size]) -> str:
    """Return from which image size the GPU beats each number of cores, and which decoders win below."""
    counts = sorted({cores for size in found if size.gpu for cores in size.cpu}, reverse=True)

    def where_it_pays(cores: int) -> str:
        both = [size for size in found if size.gpu and cores in size.cpu]
        return _where([(size, size.gpu.beats(size.cpu[cores])) for size in both])

    pays = grouped(counts, where_it_pays)
    parts = "; ".join(f"{where} against {_cores(cores)}" for where, cores in pays.items())
    sentence = f"{node}, decoding single JPEGs on the GPU pays {parts}."
    most = counts[0]
    slower = [size for size in found if size.gpu and most in size.cpu and size.cpu[most].beats(size.gpu)]
    if slower:
        names = listing(sorted({size.cpu[most].decoder for size in slower}))
        verb = "is" if most == 1 else "are"
        sentence += f" At {_pixels(slower)}, {plural(most, 'core')} with {names} {verb} faster."
    return sentence


def _where(wins: Sequence[tuple[Size, bool]]) -> str:
    """Return at which sizes something holds, such as `from 256 pixels a side on`; sizes ascend."""
    won = [size for size, holds in wins if holds]
    if not won:
        return "at no size measured"
    if len(won) == len(wins):
        return "at every size measured" if len(wins) > 1 else f"at {_pixels(won)}, the only size measured,"
    if won == [size for size, _ in wins][-len(won) :]:
        return f"from {won[0].label} pixels a side on"
    return f"only at {_pixels(won)}"


def _worths(found: Sequence[Size]) -> list[str]:
    """Return how many cores the GPU is worth at each size."""
    parts = [f"{say_worth(size.worth)} at {size.label}" for size in found if size.worth]
    return [f"By pixels a side, the best GPU decoder is worth {listing(parts)}."] if parts else []


def _ties(found: Sequence[Size]) -> list[str]:
    """Return where GPU and CPU are not distinguishable."""
    by_cores: dict[int, list[Size]] = {}
    for size in found:
        for cores, cpu in size.cpu.items():
            if size.gpu and not size.gpu.beats(cpu) and not cpu.beats(size.gpu):
                by_cores.setdefault(cores, []).append(size)
    if not by_cores:
        return []
    parts = [f"at {_pixels(tied)} against {_cores([cores])}" for cores, tied in sorted(by_cores.items())]
    return [f"GPU and CPU cannot be told apart {'; '.join(parts)}: the ranges of their passes touch."]


def _strips(found: Sequence[Size]) -> list[str]:
    """Return what strips change about the answer."""
    ours = [size for size in found if size.strips and rival(size)]
    if not ours:
        return []
    wins = [(size, size.strips.beats(rival(size))) for size in ours]
    on = ours[0].strips_on
    if not any(won for _, won in wins):
        return [
            f"Strips, decoded on {on}, are faster than the best decoder of single files at no size measured."
        ]
    most = max((size for size, won in wins if won), key=lambda size: size.strips.median / rival(size).median)
    others = []
    if most.gpu:
        others.append(f"{ratio(most.strips.median / most.gpu.median)} {most.gpu.decoder} on single files")
    if most.cpu:
        cores, cpu = on_most_cores(most.cpu)
        others.append(f"{ratio(most.strips.median / cpu.median)} {cpu.decoder} on {plural(cores, 'core')}")
    return [
        f"Strips change this: decoded on {on} they are faster than every decoder of single files "
        f"{_where(wins)}; at {most.label} pixels a side they reach {count(most.strips.median)} images/s, "
        f"{listing(others)}.",
        *_strips_without_gpu(most),
    ]


def _strips_without_gpu(size: Size) -> list[str]:
    """Return what strips reach on the CPU's cores, at one image size."""
    if not size.strips_cpu or not size.cpu:
        return []
    cores, ours = on_most_cores(size.strips_cpu)
    their_cores, theirs = on_most_cores(size.cpu)
    verdict = "faster than" if ours.beats(theirs) else "not told apart from"
    verdict = "slower than" if theirs.beats(ours) else verdict
    return [
        f"Without the GPU, strips on {plural(cores, 'core')} reach {count(ours.median)} images/s there, "
        f"{verdict} {theirs.decoder} on {plural(their_cores, 'core')} "
        f"({ratio(ours.median / theirs.median)})."
    ]


def rival(size: Size) -> Rate | None:
    """Return the fastest decoder of single files at this size, on whatever it needs."""
    rates = [rate for rate in (size.gpu, *size.cpu.values()) if rate]
    return max(rates, key=lambda rate: rate.median, default=None)


def _without_gpu(node: str, found: Sequence[Size]) -> str:
    """Return what can be said without a measured GPU decoder."""
    fastest = [(size, *on_most_cores(size.cpu)) for size in found if size.cpu]
    if not fastest:
        return f"{node} neither a GPU decoder nor a CPU decoder of single files was measured."
    parts = [
        f"{rate.decoder} with {count(rate.median)} images/s at {size.label} pixels a side "
        f"({plural(cores, 'core')})"
        for size, cores, rate in fastest
    ]
    return (
        f"{node} no GPU decoder was measured, so it cannot be said when the GPU pays. "
        f"The fastest CPU decoders are {listing(parts)}."
    )


def _cores(counts: Sequence[int]) -> str:
    """Return numbers of cores, such as `16 and 8 cores` or `1 core`."""
    return f"{listing(counts)} core{'' if list(counts) == [1] else 's'}"


def _pixels(found: Sequence[Size]) -> str:
    """Return sizes, such as `64 and 128 pixels a side`."""
    return f"{listing(size.label for size in found)} pixels a side"
