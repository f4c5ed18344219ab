"""The settings of a loader that fit a machine, and the search for the fastest of them.

Nothing here measures: the search calls a function that does, so that tests can use synthetic rates.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Any

from gpufeed.core.cells import Cell, impossible, settle
from gpufeed.core.loader_setting import AXES, Setting
from gpufeed.core.registry import LOADERS
from gpufeed.core.run_time_estimate import waiting

MOST = 60  # settings of a space
GRID_S = 3.0  # spent by an exhaustive search on each setting, beside its start
SHARE = 0.1  # of the time of an exhaustive search: the budget of this one
LEAST_BUDGET_S, LEAST_STARTS = 5.0, 3  # also for few settings: seconds, and the time of so many starts
LEAST_S = 0.3  # of a stretch, since a shorter one is no measurement
CLOSE = 1.1  # a decoder with so many times the CPU time of the cheapest one cannot win
BEHIND = 0.85  # of the best rate: slower settings do not reach the next rung
DOUBT = 0.04  # of a rate that was measured for a second; less for longer ones
HELPS = 1.01  # times as fast: such a change is combined with others
RUNGS = (0.5, 0.6, 1.0)  # of the remaining time
LEADING = AXES[:2]  # searched first, since the others matter less


@dataclass(frozen=True)
class Limits:
    """The resources that a setting must fit into. batch_bytes: of one batch in host memory."""

    cores: int
    host_bytes: int
    shm_bytes: int
    batch_bytes: int

    def fit(self, setting: Setting, threads: bool) -> bool:
        """Return whether each worker has a core and their queue fits in memory. threads: not processes."""
        queue = waiting(self.batch_bytes, setting.workers, setting.prefetch_factor)
        room = self.host_bytes if threads else min(self.host_bytes, self.shm_bytes)
        return setting.workers <= self.cores and queue <= room


def space(
    cell: Cell, limits: Limits, device: str, decoders: Sequence[str], only: Mapping[str, list] | None = None
) -> list[Setting]:
    """Return at most MOST settings of a cell's loader that can exist and fit, the most promising first.

    cell: with a number of workers; its own setting is among them if it fits. decoders: those of the loader
    that this node has. only: axis -> its values instead of the usual ones. If there are too many settings,
    the axis with most values loses its last one; among equals, the axis with least influence.
    """
    values = usual(cell, limits.cores, device, decoders) | dict(only or {})
    while len(found := list(dict.fromkeys(fitting(cell, limits, values)))) > MOST:
        longest = max(reversed(AXES), key=lambda axis: len(values[axis]))
        values[longest] = values[longest][:-1]
    return found


def usual(cell: Cell, cores: int, device: str, decoders: Sequence[str]) -> dict[str, list]:
    """Return the values of each axis; the cell's own is the first or the second."""
    loader = LOADERS[cell.loader]
    found = {
        "workers": [cores, cell.workers, cores // 2, cores // 4, 3 * cores // 4, 1, 0],
        "decoder": [cell.decoder, *decoders],
        "persistent_workers": [True, cell.persistent_workers, False],
        "prefetch_factor": [2, cell.prefetch_factor or 2, 4],
        "pin_memory": [True, cell.pin_memory, False],
    }
    if loader.workers == "never":
        found["workers"] = [0]
    if loader.threads and not loader.own_process:
        found["persistent_workers"] = [cell.persistent_workers]
    if device != "cuda":
        found["pin_memory"] = [cell.pin_memory]
    return {axis: list(dict.fromkeys(values)) for axis, values in found.items()}


def fitting(cell: Cell, limits: Limits, values: Mapping[str, list]) -> Iterator[Setting]:
    """Yield the settings of these values that can exist and fit, perhaps with duplicates."""
    for chosen in product(*(values[axis] for axis in AXES)):
        one = settle(replace(cell, settings=None, **dict(zip(AXES, chosen, strict=True))))
        setting = Setting.of(one)
        if impossible(one) is None and limits.fit(setting, LOADERS[cell.loader].threads):
            yield setting


@dataclass(frozen=True)
class Stretch:
    """Some seconds of training with a setting. images_per_s: of whole epochs, including their starts.

    seconds: in all. start_s: of these, the seconds of the loader's start and end.
    """

    images_per_s: float
    seconds: float
    start_s: float


@dataclass(frozen=True)
class Tried:
    """A setting that was measured. images_per_s: over all stretches. rung: the last that it reached."""

    setting: Setting
    images_per_s: float
    seconds: float
    steady_s: float
    rung: int

    @property
    def sure(self) -> float:
        """Return the rate minus its uncertainty, so that a short lucky stretch does not win."""
        return self.images_per_s * max(0.0, 1 - DOUBT / self.steady_s**0.5)

    def and_also(self, stretch: Stretch, rung: int) -> "Tried":
        """Return the same with one more stretch, whose rate is weighted by its seconds without start."""
        steady = max(stretch.seconds - stretch.start_s, 1e-3)
        whole = self.steady_s + steady
        rate = (self.images_per_s * self.steady_s + stretch.images_per_s * steady) / whole
        return Tried(self.setting, rate, self.seconds + stretch.seconds, whole, rung)


def is_one_change(changes: Mapping[str, Any]) -> bool:
    """Return whether there is exactly one change, in an axis outside of LEADING."""
    return len(changes) == 1 and not changes.keys() & {*LEADING}


# (setting, seconds of a stretch after its start, most seconds in all, a rate: it may end early if it is
# clearly slower) -> the stretch
Measure = Callable[[Setting, float, float, float], Stretch]


class Search:
    """Successive halving, one group of axes after the other.

    Rung 1 measures workers and decoders, with the most promising values of the rest; decoders that cannot win
    by their CPU time are left out. Rung 2 measures the better half of them again, and the best one with one
    change in each other axis. Rung 3 measures the better half of these, and the best with all changes that
    helped, in the remaining time.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        measure: Measure,
        costs: Mapping[str, float] | None = None,
        own: Setting | None = None,
        spent_s: float = 0.0,
    ):
        """Set the budget. costs: decoder -> CPU seconds of a sample. own: a setting that is always measured.

        spent_s: seconds already spent.
        """
        self.settings, self.measure, self.own = list(settings), measure, own
        self.costs, self.spent_s = dict(costs or {}), spent_s
        self.budget_s = max(LEAST_BUDGET_S, SHARE * GRID_S * len(settings))
        self.tried: dict[Setting, Tried] = {}
        self.starts: list[float] = []

    @property
    def left_s(self) -> float:
        """The remaining seconds of the budget."""
        return self.budget_s - self.spent_s

    def run(self) -> list[Tried]:
        """Return all settings that were measured, the best first."""
        self.rung(1, self.leads())
        if self.tried:
            base = self.ranked()[0].setting
            self.rung(2, [*self.better_half(1), *self.neighbours(base)])
            self.rung(3, [*self.better_half(2), *self.combined(base)])
        return self.ranked()

    def leads(self) -> list[Setting]:
        """Return one setting for each choice of workers and decoder, and the cell's own."""
        there = {setting.decoder for setting in self.settings}
        known = {name: cost for name, cost in self.costs.items() if name in there}
        dear = {name for name, cost in known.items() if cost > CLOSE * min(known.values())}
        found: dict[tuple, Setting] = {}
        for setting in self.settings:
            if setting.decoder not in dear:
                found.setdefault((setting.workers, setting.decoder), setting)
        own = [self.own] if self.own in self.settings else []
        return list(dict.fromkeys([*found.values(), *own]))

    def ranked(self) -> list[Tried]:
        """Return the tried settings: the last rung first, and within it by `sure` rate."""
        return sorted(self.tried.values(), key=lambda one: (one.rung, one.sure), reverse=True)

    def better_half(self, rung: int) -> list[Setting]:
        """Return the faster half of a rung, at least two, without settings far behind the best."""
        found = [one for one in self.ranked() if one.rung == rung]
        kept = found[: max(2, -(-len(found) // 2))][:3]
        return [one.setting for one in kept if one.images_per_s >= BEHIND * found[0].images_per_s]

    def neighbours(self, base: Setting) -> list[Setting]:
        """Return the settings with one change to `base`, outside of workers and decoder."""
        return [one for one in self.settings if one not in self.tried and is_one_change(one.changes(base))]

    def combined(self, base: Setting) -> list[Setting]:
        """Return `base` with all single changes that helped; nothing if fewer than two did."""
        helped: dict[str, Any] = {}
        for one in self.ranked():
            changes = one.setting.changes(base)
            if is_one_change(changes) and one.images_per_s > HELPS * self.tried[base].images_per_s:
                helped = changes | helped
        setting = replace(base, **helped)
        return [setting] if len(helped) > 1 and setting in self.settings else []

    def rung(self, number: int, candidates: Sequence[Setting]) -> None:
        """Measure each candidate for an equal part of the rung's time, while the budget lasts.

        A single candidate is measured in the first rung only, as there is nothing to compare it with.
        """
        if len(candidates) < 2 and self.tried:
            return
        each_s, best = RUNGS[number - 1] * self.left_s / len(candidates), 0.0
        for setting in candidates:
            if self.left_s < LEAST_S:
                return
            start_s = median(self.starts) if self.starts else 0.0
            seconds = max(LEAST_S, each_s - start_s)
            stretch = self.measure(setting, seconds, min(self.left_s, 2 * each_s + LEAST_S), best)
            self.spent_s += stretch.seconds
            if not self.starts:  # an exhaustive search starts each setting; most start faster than this one
                of_all = self.budget_s + SHARE * len(self.settings) * stretch.start_s / 2
                self.budget_s = max(of_all, LEAST_BUDGET_S + LEAST_STARTS * stretch.start_s)
            self.starts.append(stretch.start_s)
            before = self.tried.get(setting, Tried(setting, 0.0, 0.0, 0.0, number))
            self.tried[setting] = before.and_also(stretch, number)
            best = max(best, stretch.images_per_s)
