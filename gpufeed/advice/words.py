"""Advice as sentences, for the page and the terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpufeed.advice.rate_model import COMPUTE, CPU, DEVICE, HOST, INPUT
from gpufeed.core.plan_ceilings import DECODE, FETCH, TRANSFER
from gpufeed.system.statistics import MATTERS

CAUSES = {
    FETCH: "reading files that are not in the page cache",
    DECODE: "decoding",
    TRANSFER: "the copy to the device",
    INPUT: "the loader, which makes batches more slowly than the model takes them",
    HOST: "the training thread, which also loads or receives each batch",
    CPU: "the CPU's cores, which loading and training share",
    DEVICE: "the GPU, on which loading and training compete",
    COMPUTE: "starts of epochs, and what training and loading take from each other",
}
BOUNDS = {
    COMPUTE: "compute only",
    INPUT: "the loader",
    HOST: "the thread that trains",
    CPU: "CPU cores",
    DEVICE: "the GPU, shared",
}
OFF = 0.15  # of a prediction: a measured rate further away is reported with its distance


def lines(advice: Mapping[str, Any], measured: Mapping[str, float] | None = None) -> list[str]:
    """Return the advice as sentences, the answer first.

    measured: cell -> images a second, for the cells measured since.
    """
    return [state(advice, measured or {}), *answer(advice, measured or {}), *unable(advice)]


def state(advice: Mapping[str, Any], measured: Mapping[str, float]) -> str:
    """Return in words how much of the time today's pipeline loses, and to what."""
    if advice["compute_images_per_s"] is None:
        return "What you do today could not be probed here, so no gain over it is known."
    share = lost_share(advice, measured)
    waits = round(share * 100)
    where = f"what you do today reaches {100 - waits} % of the limit"
    if advice["device"] == "cuda":
        where = f"your GPU waits {waits if waits > 0 else 'less than 1'} % of the time: {where}"
    else:
        where += ", which is the training alone"
    said = f"By short probes, {where}" if advice["of"] not in measured else where[0].upper() + where[1:]
    if share < 1 - MATTERS:
        return f"{said}. One of the two was disturbed, for the training alone cannot be slower."
    if share < 1 - 1 / MATTERS:
        return f"{said}. The model itself is the limit."
    return f"{said}. Largest cause of the loss: {CAUSES[advice['cause']]}."


def lost_share(advice: Mapping[str, Any], measured: Mapping[str, float]) -> float:
    """Return the share of the time that today's pipeline loses, as measured or else as predicted."""
    limits = [rate for cell, rate in measured.items() if cell.split("-")[1:2] == ["replay"]]
    limit = limits[0] if len(limits) == 1 else advice["compute_images_per_s"]
    return 1 - measured[advice["of"]] / limit if advice["of"] in measured else advice["input_share"]


def is_faster(one: Mapping[str, Any], advice: Mapping[str, Any], measured: Mapping[str, float]) -> bool:
    """Return whether a measured candidate is faster than what is done today.

    Where that already reaches the training alone, only a candidate whose own training is faster can be. Where
    it is above that, the limit was disturbed and says nothing.
    """
    ours, today = one["compute_images_per_s"], advice["compute_images_per_s"]
    at_limit = today is not None and 1 - MATTERS <= lost_share(advice, measured) < 1 - 1 / MATTERS
    able = not at_limit or (ours is not None and ours >= MATTERS * today)
    return able and measured[one["cell_id"]] >= MATTERS * measured[advice["of"]]


def answer(advice: Mapping[str, Any], measured: Mapping[str, float]) -> Iterator[str]:
    """Yield what to do and its rate, by measured rates once the candidates are measured."""
    today = measured.get(advice["of"])
    chosen = [one for one in advice["candidates"] if one["chosen"]]
    seen = [one for one in chosen if one["cell_id"] in measured]
    if today is not None and seen:
        seen.sort(key=lambda one: -measured[one["cell_id"]])
        faster = [one for one in seen if is_faster(one, advice, measured)]
        if faster:
            times = measured[faster[0]["cell_id"]] / today
            gain = f"{times:.2f} times today's {number(today)}"
            yield f"Do this: {faster[0]['change']}. {rates(faster[0], measured)}, {gain}."
        elif measured[seen[0]["cell_id"]] >= MATTERS * today:
            why = "so what was measured above that was disturbed, or is chance"
            yield f"Leave it as it is: training alone is not faster, {why}."
        else:
            none = "the measured change is not"
            if len(seen) > 1:
                none = f"none of the {len(seen)} measured changes is"
            by = f"by {(MATTERS - 1) * 100:.0f} % or more"
            yield f"Leave it as it is: {none} faster than today's {number(today)} images/s {by}."
        others, rest = faster[1:], [one for one in seen if one not in faster]
    else:
        advised = [one for one in chosen if one["advised"]]
        if advised:
            yield f"Do this: {advised[0]['change']}. {rates(advised[0], measured)}."
        elif advice["compute_images_per_s"] is not None:  # without today's rate nobody knows
            yield "Leave it as it is: no other setting is predicted to be faster by more than its interval."
        others, rest = advised[1:], []
    for one in others:
        yield f"Next: {one['change']}. {rates(one, measured)}."
    for one in rest:
        slower = ", not faster" * (measured[one["cell_id"]] < MATTERS * today)
        yield f"Measured too{slower}: {one['change']}. {rates(one, measured)}."


def rates(candidate: Mapping[str, Any], measured: Mapping[str, float]) -> str:
    """Return a text such as `Predicted 1,234 images/s (1,180 to 1,290), measured 1,215`."""
    rate, found = candidate["images_per_s"], measured.get(candidate["cell_id"])
    text = f"Predicted {number(rate['median'])} images/s ({number(rate['low'])} to {number(rate['high'])})"
    if found is None:
        return text
    off = found / rate["median"] - 1
    how = f" ({abs(off):.0%} {'above' if off > 0 else 'below'} the prediction)".replace("%", " %")
    return f"{text}, measured {number(found)}{how * (abs(off) > OFF)}"


def number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def unable(advice: Mapping[str, Any]) -> Iterator[str]:
    """Yield the candidates that this machine cannot run, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for one in advice["candidates"]:
        if one["sentence"]:
            reasons.setdefault(one["sentence"], []).append(one["change"] or "what you do today")
    for reason, changes in reasons.items():
        yield f"Not advised: {'; '.join(changes)}. {reason}"
