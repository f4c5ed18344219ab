"""What holds a cell back, in a sentence with its evidence, and what the words of verdicts mean.

Pure functions on the document of a cell's ceilings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpufeed.benchmarks.ceilings.shares import END
from gpufeed.core.plan_ceilings import DECODE, FETCH
from gpufeed.core.registry import LOADERS
from gpufeed.report import wording
from gpufeed.report.load_records import workers_of
from gpufeed.system.statistics import BUSY, ENOUGH_FOR_INTERVAL, FAR, FEW_PERCENT, MATTERS

COMPUTE, INPUT, START = "compute-bound", "input-bound", "start-up-bound"
BALANCED, OPEN = "balanced", "no verdict"
FED = 1 / MATTERS  # AU from which on the cost of the input does not matter
LOST = 0.9  # AU below which the input is the bottleneck
HALF = 0.5  # of the wait: what a stage must have to be named as its cause
NOTED = 0.03  # of the epoch: what a stage, or the start of the epochs, must have to be mentioned
GROWN = 0.005  # of the epoch: what the steps' growth must have to be mentioned; less is rounded away
STEP = "step"  # not a stage of the loader: the steps themselves, which its work slows down


@dataclass(frozen=True)
class Verdict:
    """kind: of the five above, or BUSY. stage: what the wait is for (core.plan_ceilings), STEP or None."""

    kind: str
    sentence: str
    stage: str | None = None


def of(found: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a finished document (gpufeed/core/schemas/ceilings.schema.yaml)."""
    low, high = found["shares"]["au"]["ci95_low"], found["shares"]["au"]["ci95_high"]
    if busy(found):
        return Verdict(BUSY, disturbed(found))
    if low is None or held(low, high):
        return Verdict(OPEN, undecided(found))
    if low < LOST:
        return lost(found)
    parts = [waits(found), starts(found), growth(found), limit(found)]
    return verdict(COMPUTE if low >= FED else BALANCED, parts, found)


def busy(found: Mapping[str, Any]) -> bool:
    """Return whether training was faster than its compute alone beyond noise: no number then counts."""
    share = found["shares"]["au"]
    highest = share["max"] if share["ci95_high"] is None else share["ci95_high"]
    return share["median"] > 1 + FEW_PERCENT or highest > 1 + FAR


def disturbed(found: Mapping[str, Any]) -> str:
    """Return the sentence for a busy machine: nothing follows, and what to do."""
    return (
        f"{BUSY}: end to end was faster than compute only, the same work without input ({au(found)}), so no "
        "verdict follows; move the document away and measure again with nothing else on the machine."
        f"{shared(found)}"
    )


def lost(found: Mapping[str, Any]) -> Verdict:
    """Return the verdict where the input is the bottleneck, with what the device waits for."""
    shares = found["shares"]
    wait = shares["wait"]["median"]
    if shares["growth"]["median"] > wait:
        parts = [grows(found), waits(found), starts(found), lift(foremost(found), found)]
        return verdict(INPUT, parts, found, STEP)
    if shares["start"]["ci95_low"] > HALF * wait:
        return verdict(START, [waits(found) + start(found), growth(found), limit(found)], found)
    stage = cause(found)
    if stage is None:
        return verdict(INPUT, [waits(found), apart(found), growth(found), limit(found)], found)
    points = f", {points_of(min(found['stages'][stage]['points'], wait))} of it for {named(stage, found)}"
    parts = [waits(found) + points, starts(found, stage), growth(found), lift(stage, found)]
    return verdict(INPUT, parts, found, stage)


def cause(found: Mapping[str, Any]) -> str | None:
    """Return the stage with most points, if it is shown and has half of the wait; never fetch."""
    stage = foremost(found)
    half = HALF * found["shares"]["wait"]["median"]
    return stage if stage is not None and found["stages"][stage]["points"] >= half else None


def foremost(found: Mapping[str, Any]) -> str | None:
    """Return the stage with most points, NOTED or more, if one is shown to take any time."""
    there = {
        name: stage["points"]
        for name, stage in found["stages"].items()
        if name != FETCH and stage["shown"] and stage["points"] >= NOTED
    }
    return max(there, key=there.get) if there else None


def lift(stage: str | None, found: Mapping[str, Any]) -> str:
    """Return how much removing a stage, and removing all input, would gain at most."""
    if stage is None:
        return limit(found)
    least = min(found["stages"][stage]["at_most"], most(found))
    return f"removing {stage} would lift it to at most {times(least)}, {limit(found, verb='')}"


def verdict(kind: str, parts: list[str], found: Mapping[str, Any], stage: str | None = None) -> Verdict:
    """Return the verdict; its sentence has the kind, then all parts that are not empty."""
    whole = f"{kind}: {'; '.join(part for part in parts if part)}"
    return Verdict(kind, f"{whole} ({au(found)}).{shared(found)}", stage)


def held(low: float, high: float) -> list[float]:
    """Return the borders between verdicts that lie inside an interval of AU."""
    return [border for border in (LOST, FED) if low < border <= high]


def undecided(found: Mapping[str, Any]) -> str:
    """Return why there is no verdict, and what would bring one."""
    low, high = found["shares"]["au"]["ci95_low"], found["shares"]["au"]["ci95_high"]
    if low is None:
        why = "there are too few pairs for an interval"
    else:
        why = f"AU may lie on either side of {wording.listing(map(wording.percent, held(low, high)))}"
    known = "; ".join(part for part in (waits(found), starts(found), growth(found)) if part)
    return (
        f"{OPEN}: {known}, but {why} ({au(found)}); more pairs, or a quieter machine, would tell."
        f"{shared(found)}"
    )


def device(found: Mapping[str, Any]) -> str:
    """Return what trains, in words."""
    return {"cuda": "GPU", "cpu": "CPU"}.get(found["resolved"]["device"], "device")


def waits(found: Mapping[str, Any]) -> str:
    share = max(0.0, found["shares"]["wait"]["median"])
    return f"the {device(found)} waits {wording.percent(share)} of the epoch"


def start(found: Mapping[str, Any]) -> str:
    """Return how much of the wait falls on the first batches of the epochs."""
    seconds, cell = wording.three_figures(found["start_up"]["epoch_start_s"]), found["cell"]
    entry = LOADERS.get(cell["loader"])
    for_good = entry is not None and (entry.anew or entry.threads)  # whatever persistent_workers says
    can_stay = cell["workers"] and not for_good and not cell.get("persistent_workers")
    stay = " (or persistent_workers)" if can_stay else ""
    return (
        f", {points_of(found['shares']['start']['median'])} of it for the first batch of each epoch "
        f"({seconds} s), of which longer epochs{stay} would have fewer"
    )


def starts(found: Mapping[str, Any], stage: str | None = None) -> str:
    """Return how much of the wait falls on the first batches, if that is worth noting; else empty.

    stage: what the rest of the sentence says the wait is for. Its points have their part of the first batches
    too, where the figure of ceilings draws that part with the start.
    """
    share = min(found["shares"]["start"]["median"], found["shares"]["wait"]["median"])
    if share < NOTED:
        return ""
    included = f", the {stage} of it included" if stage else ""
    return f"{points_of(share)} of the wait fall on the first batch of each epoch{included}"


def grows(found: Mapping[str, Any]) -> str:
    share = found["shares"]["growth"]["median"]
    return f"its steps take {points_of(share)} of the epoch longer beside the loader"


def growth(found: Mapping[str, Any]) -> str:
    """Return `grows` if growth is GROWN or more; else empty."""
    return grows(found) if found["shares"]["growth"]["median"] >= GROWN else ""


def most(found: Mapping[str, Any]) -> float:
    """Return how many times as fast the training would be without any input cost, at most."""
    return max(1.0, 1 / found["shares"]["au"]["median"])


def limit(found: Mapping[str, Any], verb: str = "would lift it ") -> str:
    if most(found) < 1.005:
        return "removing all input would bring less than 0.5 %"
    return f"removing all input {verb}to at most {times(most(found))}"


def apart(found: Mapping[str, Any]) -> str:
    """Return what is known of the wait if no stage surely has half of it."""
    parts = {"the first batch of each epoch": found["shares"]["start"]["median"]}
    parts |= {name: one["points"] for name, one in found["stages"].items() if name != FETCH and one["shown"]}
    said = [f"{points_of(share)} for {name}" for name, share in parts.items() if share >= NOTED]
    if found["stages"][DECODE]["reason"]:
        said.append(f"decode was not told apart: {found['stages'][DECODE]['reason'].rstrip('.')}")
    return "no stage is shown to have half of that" + (f" ({', '.join(said)})" if said else "")


def named(stage: str, found: Mapping[str, Any]) -> str:
    """Return a stage, with its worker processes or threads if there are any."""
    loader = found["cell"]["loader"]
    count = workers_of(found["cell"], found["resolved"], found["environment"])
    return (
        f"{stage} in {wording.workers(loader, count, 'worker process', 'worker processes')}"
        if count
        else stage
    )


def au(found: Mapping[str, Any]) -> str:
    """Return AU with its interval and the number of pairs."""
    share = found["shares"]["au"]
    ends = wording.interval(share["ci95_low"], share["ci95_high"])
    within = f", 95 % interval {ends} %" if ends else ""
    return f"AU {wording.tenths(share['median'])}{within}, {share['n']} pairs"


def shared(found: Mapping[str, Any]) -> str:
    if not found["shared_cores"]:
        return ""
    return " Training and loading share the CPU's cores: each would be faster without the other."


def points_of(share: float) -> str:
    """Return a share of the epoch in points, such as `48 points`."""
    points = max(0.0, share) * 100
    return f"{points:.0f} points" if points >= 9.5 else f"{points:.1f} points"


def times(factor: float) -> str:
    """Return a factor such as `1.9x`, with two decimals below 1.2."""
    return f"{factor:.1f}x" if factor >= 1.2 else f"{factor:.2f}x"


ALIKE, BELOW = "not told apart from end to end", "below end to end"


def input_mark(found: Mapping) -> str:
    """Return ALIKE or BELOW, by the 95 % intervals of both rates; empty if the input alone is faster.

    Without an interval a rate has its range. BELOW cannot be of a machine that stays as it is: no training is
    faster than its input.
    """
    (alone_low, alone_high), (low, high) = (rate_range(found, side) for side in ("input_only", END))
    if alone_low > high:
        return ""
    return BELOW if alone_high < low else ALIKE


def input_sentence(found: Mapping) -> str:
    """Return the sentence of `input_mark`, with both rates in images/s; empty without a mark."""
    marked = input_mark(found)
    if not marked:
        return ""
    alone, both = (rate_words(found, side) for side in ("input_only", END))
    bound = of(found).kind in (INPUT, START)
    limit = "the limit" if bound else "a limit as well"
    if marked == BELOW:
        return (
            f"The input alone, {alone}, lies below {both} end to end: it is {limit}, and one of the two was "
            "disturbed."
        )
    return f"The input alone is {limit}: its {alone} are not told apart from {both} end to end."


def rate_range(found: Mapping, side: str) -> tuple[float, float]:
    of = found["images_per_s"][side]
    return (of["min"], of["max"]) if of["ci95_low"] is None else (of["ci95_low"], of["ci95_high"])


def rate_words(found: Mapping, side: str) -> str:
    ends = " to ".join(map(wording.count, rate_range(found, side)))
    return f"{wording.count(found['images_per_s'][side]['median'])} images/s ({ends})"


def definitions() -> dict[str, str]:
    """Return word -> its definition."""
    fed, lost, half = (f"{share * 100:.3g}" for share in (FED, LOST, HALF))
    grown, noted = (f"{share * 100:.1f} points" for share in (GROWN, NOTED))
    return {
        "AU": "Compute-only over end-to-end time: the share of a steady epoch that remains where one batch "
        "on the device is trained on again and again. Both are measured by turns in one process, pair by "
        "pair; given are the median over the pairs and its 95 % interval. What AU lacks to 100 % is wait "
        "and growth.",
        "Wait": "The gaps between training steps on the compute stream, less those that compute only has "
        "too, as a share of the end-to-end time. What a loader queues on that stream itself lies in the "
        "gaps.",
        "Growth": "By how much the steps themselves take longer beside the loader, as a share of the "
        f"end-to-end time. Verdicts tell it from {grown} on.",
        "Points": "Hundredths of the end-to-end time of an epoch. Those of a stage are what its removal can "
        "save at most: they need not add up to the wait, and have their part of the epochs' first batches "
        f"in them. Verdicts leave a stage, and the first batches, below {noted} untold.",
        COMPUTE: f"AU's 95 % interval lies at {fed} % or above: without any input training "
        f"would be at most {MATTERS} times as fast.",
        BALANCED: f"AU's interval lies between {lost} and {fed} %.",
        INPUT: f"AU's interval lies below {lost} %. The stage with most points is named if "
        f"it is shown to take time and has {half} % of the wait. Where growth is larger than wait, the steps "
        "themselves are named.",
        START: "The same, and the first batches of the epochs have more than "
        f"{half} % of the wait, by the lower end of their interval.",
        OPEN: f"AU's interval holds {lost} or {fed} %, or there are fewer than "
        f"{ENOUGH_FOR_INTERVAL} pairs and so no interval.",
        BUSY: f"AU's median lies more than {FEW_PERCENT * 100:.0f} % above 100 %, or the upper end of its "
        f"interval more than {FAR * 100:.0f} %. Training cannot be faster than its compute alone: something "
        "else ran on the machine, and no verdict follows.",
    }
