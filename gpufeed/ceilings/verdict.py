"""What holds a cell back, in a sentence with its evidence. Pure functions on the document of its ceilings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpufeed.analysis import wording
from gpufeed.analysis.statistics import MATTERS
from gpufeed.ceilings.plan import DECODE, FETCH

COMPUTE, INPUT, START, BALANCED, OPEN = (
    "compute-bound",
    "input-bound",
    "start-up-bound",
    "balanced",
    "no verdict",
)
FED = 1 / MATTERS  # an AU from which on all that input costs is nobody's reason to change anything
LOST = 0.9  # an AU below which the input is what to work on
HALF = 0.5  # of the wait: what a stage must have to be named as its cause
NOTED = 0.03  # of the epoch: what the steps' growth must have to be mentioned
STEP = "step"  # not a stage of the loader: the steps themselves, which its work slows down


@dataclass(frozen=True)
class Verdict:
    """kind: of the five above. stage: what the wait is for (gpufeed.ceilings.plan), STEP, or None."""

    kind: str
    sentence: str
    stage: str | None = None


def of(found: Mapping[str, Any]) -> Verdict:
    """The verdict on a finished document (gpufeed/schemas/ceilings.schema.yaml)."""
    low, high = found["shares"]["au"]["ci95_low"], found["shares"]["au"]["ci95_high"]
    if low is None or (low < FED <= high) or (low < LOST <= high):
        return Verdict(OPEN, undecided(found))
    if low >= FED:
        return Verdict(COMPUTE, sentence(COMPUTE, [waits(found), limit(found)], found))
    if low >= LOST:
        return Verdict(BALANCED, sentence(BALANCED, [waits(found), growth(found), limit(found)], found))
    return lost(found)


def lost(found: Mapping[str, Any]) -> Verdict:
    """The verdict where the input is what to work on: for what of it the device waits."""
    shares = found["shares"]
    wait = shares["wait"]["median"]
    if shares["growth"]["median"] > wait:
        parts = [grows(found), waits(found), limit(found)]
        return Verdict(INPUT, sentence(INPUT, parts, found), STEP)
    if shares["start"]["ci95_low"] > HALF * wait:
        return Verdict(
            START, sentence(START, [waits(found) + start(found), growth(found), limit(found)], found)
        )
    stage = cause(found)
    if stage is None:
        parts = [waits(found), apart(found), growth(found), limit(found)]
        return Verdict(INPUT, sentence(INPUT, parts, found))
    there = found["stages"][stage]
    points = f", {points_of(min(there['points'], wait))} of it for {named(stage, found)}"
    least = min(there["at_most"], most(found))
    lift = f"removing {stage} would lift it to at most {times(least)}, {limit(found, '')}"
    return Verdict(INPUT, sentence(INPUT, [waits(found) + points, growth(found), lift], found), stage)


def cause(found: Mapping[str, Any]) -> str | None:
    """The stage with most points, if it is shown and has half of the wait; fetch has epochs of its own."""
    there = {
        name: stage["points"]
        for name, stage in found["stages"].items()
        if name != FETCH and stage["shown"] and stage["points"] >= HALF * found["shares"]["wait"]["median"]
    }
    return max(there, key=there.get) if there else None


def sentence(kind: str, parts: list[str], found: Mapping[str, Any]) -> str:
    """All parts that say something, behind the kind."""
    whole = f"{kind}: {'; '.join(part for part in parts if part)}"
    return f"{whole} ({au(found)}).{shared(found)}"


def undecided(found: Mapping[str, Any]) -> str:
    """Why there is no verdict, and what would bring one."""
    return (
        f"{OPEN}: {waits(found)}, and the interval holds {wording.percent(FED)} or {wording.percent(LOST)} "
        f"({au(found)}): more pairs, or a quieter machine, would tell.{shared(found)}"
    )


def device(found: Mapping[str, Any]) -> str:
    """What trains, in words."""
    return {"cuda": "GPU", "cpu": "CPU"}.get(found["resolved"]["device"], "device")


def waits(found: Mapping[str, Any]) -> str:
    share = max(0.0, found["shares"]["wait"]["median"])
    return f"the {device(found)} waits {wording.percent(share)} of the epoch"


def start(found: Mapping[str, Any]) -> str:
    """What the first batches of the epochs take of the wait."""
    seconds = wording.three_figures(found["start_up"]["epoch_start_s"])
    return (
        f", {points_of(found['shares']['start']['median'])} of it for the first batch of each epoch "
        f"({seconds} s), so that longer epochs, or workers that stay, would help"
    )


def grows(found: Mapping[str, Any]) -> str:
    share = found["shares"]["growth"]["median"]
    return f"its steps take {points_of(share)} of the epoch longer beside the loader"


def growth(found: Mapping[str, Any]) -> str:
    """The same where it is more than nothing; else empty."""
    return grows(found) if found["shares"]["growth"]["median"] >= NOTED else ""


def most(found: Mapping[str, Any]) -> float:
    """What removing all waiting, or, where steps grow too, all input brings at most."""
    share = found["shares"]["au"]["median"] if growth(found) else 1 - found["shares"]["wait"]["median"]
    return max(1.0, 1 / share)


def limit(found: Mapping[str, Any], verb: str = "would lift it ") -> str:
    what = "input" if growth(found) else "waiting"
    return f"removing all {what} {verb}to at most {times(most(found))}"


def apart(found: Mapping[str, Any]) -> str:
    """What is known of the stages where none has half of the wait."""
    known = {name: stage for name, stage in found["stages"].items() if name != FETCH and not stage["reason"]}
    if known:
        said = (f"{name} {points_of(stage['points'])}" for name, stage in known.items())
        return f"no stage that was taken out has half of that ({wording.listing(said)})"
    reason = found["stages"][DECODE]["reason"]
    return f"for which stage was not told apart ({reason.rstrip('.')})"


def named(stage: str, found: Mapping[str, Any]) -> str:
    """A stage, and who does it where these could be more."""
    workers = found["cell"]["workers"]
    return f"{stage} in {wording.plural(workers, 'worker process', 'worker processes')}" if workers else stage


def au(found: Mapping[str, Any]) -> str:
    """AU with its interval and the number of pairs."""
    share = found["shares"]["au"]
    value = f"AU {share['median'] * 100:.1f} %"
    if share["ci95_low"] is None:
        return f"{value}, {share['n']} pairs"
    ends = f"{share['ci95_low'] * 100:.1f} to {share['ci95_high'] * 100:.1f} %"
    return f"{value}, 95 % interval {ends}, {share['n']} pairs"


def shared(found: Mapping[str, Any]) -> str:
    if not found["shared_cores"]:
        return ""
    return " Training and loading share the CPU's cores: each would be faster without the other."


def points_of(share: float) -> str:
    """A share of the epoch in points: `48 points`."""
    points = max(0.0, share) * 100
    return f"{points:.0f} points" if points >= 9.5 else f"{points:.1f} points"


def times(factor: float) -> str:
    """`1.9x`; two decimals where one would read as nothing."""
    return f"{factor:.1f}x" if factor >= 1.2 else f"{factor:.2f}x"
