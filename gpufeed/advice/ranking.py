"""Rank cells by predicted rates: which are faster than today's pipeline, and which of them to measure."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpufeed.advice.rate_model import predicted
from gpufeed.core.cells import AXES
from gpufeed.core.document import now
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import ADVICE, ADVICE_VERSION, CEILINGS, PROBE
from gpufeed.core.registry import LOADERS
from gpufeed.system.statistics import MATTERS

log = logging.getLogger("gpufeed")
# axes in which two cells differ, in this order; other axes follow
FIRST = ("loader", "decoder", "workers", "prefetch_factor", "augment", "cuda_graphs", "compile")
ROOM = (  # kinds of memory: the keys of what a cell needs and what there is, and its name
    ("host_mib", "host_free_mib", "of host memory"),
    ("shm_mib", "shm_free_mib", "in /dev/shm"),
    ("device_mib", "device_total_mib", "of the GPU's memory"),
)
SHARE = 0.95  # of the memory that there is: a training also evaluates and logs
GIB = 1024  # MiB


def advise(
    probes: Sequence[Mapping[str, Any]], of: str, best: int, ceilings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the advice (core/schemas/advice.schema.yaml) from the probes of an experiment.

    of: id of the cell to improve. best: number of cells to measure beside it. ceilings: of that cell, if
    measured.
    """
    by_id = {probe["cell_id"]: probe for probe in probes}
    today = by_id[of]
    rates = {name: predicted(probe) for name, probe in by_id.items() if probe["status"] == "done"}
    reasons = {name: why_not(probe) for name, probe in by_id.items()}
    able = [name for name in rates if reasons[name] is None]
    ranked = sorted(able, key=lambda name: -rates[name]["median"])
    now_at = rates.get(of)
    hopeful = [name for name in ranked if name != of and (not now_at or rates[name]["high"] > now_at["low"])]
    candidates = [
        {
            "cell_id": name,
            "change": change(today["cell"], by_id[name]["cell"]),
            "rank": ranked.index(name) + 1 if name in ranked else None,
            "images_per_s": {end: rates[name][end] for end in ("low", "median", "high")}
            if name in rates
            else None,
            "compute_images_per_s": compute_rate(by_id[name]) if name in rates else None,
            "bound": rates[name]["bound"] if name in rates else None,
            "chosen": name in hopeful[:best],
            "advised": name in hopeful[:best] and is_gain(rates[name], now_at),
            "sentence": reasons[name],
        }
        for name in [*ranked, *(name for name in by_id if name not in ranked)]
    ]
    return {
        "schema_version": ADVICE_VERSION,
        "experiment": today["experiment"],
        "of": of,
        "best": best,
        "device": today["resolved"] and today["resolved"]["device"],
        "compute_images_per_s": compute_rate(today) if now_at else None,
        "input_share": now_at and now_at["input_share"],
        "cause": stage_of(ceilings) or (now_at and now_at["bound"]),
        "candidates": candidates,
        "finished_at": now(),
    }


def is_gain(rate: Mapping[str, float], today: Mapping[str, float] | None) -> bool:
    """Return whether a predicted gain matters: intervals do not overlap, and medians differ by MATTERS."""
    return today is None or (rate["low"] > today["high"] and rate["median"] >= MATTERS * today["median"])


def compute_rate(probe: Mapping[str, Any]) -> float:
    """Return the images a second of the training alone."""
    rounds = probe["compute"]["rounds"]
    return sum(one["images"] for one in rounds) / sum(one["seconds"] for one in rounds)


def why_not(probe: Mapping[str, Any]) -> str | None:
    """Return why a cell cannot be advised, as a sentence; None if it can."""
    if probe["status"] != "done":
        return probe["sentence"]
    for needed, there, words in ROOM:
        need, room = probe["memory"][needed], probe["memory"][there]
        if need is not None and room is not None and need > SHARE * room:
            return f"It needs {need / GIB:.2f} GiB {words}, and there are {room / GIB:.2f} GiB."
    return None


def change(today: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    """Return what differs between two cells, such as `workers 8 in place of 2`; empty for the same cell."""
    axes = [*FIRST, *sorted(AXES - {*FIRST})]
    loader, skipped = LOADERS[cell["loader"]], set()
    if not (today["workers"] and cell["workers"]):  # settings that mean nothing without workers
        skipped = {"prefetch_factor", "persistent_workers"}
    skipped |= set() if loader.decoders else {"decoder"}
    skipped |= {"workers"} if loader.workers == "never" else set()
    differ = [name for name in axes if today.get(name) != cell.get(name) and name not in skipped]
    return ", ".join(f"{name} {said(cell.get(name))} in place of {said(today.get(name))}" for name in differ)


def said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def stage_of(ceilings: Mapping[str, Any] | None) -> str | None:
    """Return the stage of the loader that takes most time by measured ceilings; None without one."""
    stages = (ceilings or {}).get("stages") or {}
    shown = {name: stage["points"] for name, stage in stages.items() if stage["shown"]}
    return max(shown, key=shown.get, default=None)


def read_advice(paths: Iterable[str | Path], experiment: str) -> dict[str, Any] | None:
    """Return the advice of an experiment among documents of all; None without one, or if it is damaged."""
    for path in map(Path, paths):
        if path.stem == experiment:
            try:
                return ADVICE.read(path)
            except GpufeedError as error:
                log.warning("the advice is left out: %s", error.found)
    return None


def for_job(job: Any) -> None:
    """Do the work of rule advise, a gpufeed.job.Job: write the advice; print what is measured next."""
    from gpufeed.advice.words import state

    probes = [PROBE.read(path) for path in job.input.probes]
    limits = [CEILINGS.read(path) for path in job.input.get("ceilings") or []]
    found = advise(probes, job.params.asked["of"], job.params.asked["best"], next(iter(limits), None))
    ADVICE.write(found, job.output[0])
    print(f"{state(found, {})} {measured_next(found)}", flush=True)


def measured_next(advice: Mapping[str, Any]) -> str:
    """Return a sentence that names the cells measured after the probes."""
    others = [one["chosen"] for one in advice["candidates"] if one["cell_id"] != advice["of"]]
    if not any(others):
        return "Measured next: today's settings and the limit."
    best = f"the best {sum(others)} of {len(others)} alternatives" if len(others) > 1 else "the alternative"
    return f"Measured next: today's settings, the limit, and {best}."
