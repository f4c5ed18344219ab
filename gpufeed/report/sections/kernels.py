"""The part of the report on kernels alone, whatever their family: what was measured, and what was not."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpufeed.core import record
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_kernels import ACTIVATION, AUGMENT
from gpufeed.report import wording
from gpufeed.report.sections import kernel_activation, kernel_augment

FAMILIES = {AUGMENT: kernel_augment, ACTIVATION: kernel_activation}


def section(paths: Iterable[str | Path], experiment: str, plan: Mapping | None) -> dict | None:
    """What the template shows of an experiment's kernels; None if it neither has nor plans any.

    paths: benchmarks of all experiments, <experiment>.json. plan: {"lines": what their rows are held to}.
    """
    ours = [path for path in map(Path, paths) if path.stem == experiment]
    if not ours and not plan:
        return None
    machines, troubles = [], []
    for path in ours:
        try:
            found = record.KERNELS.read(path)
        except GpufeedError as error:
            troubles.append(("damaged", error.found.splitlines()[0]))
            continue
        family = family_of(found)
        if found["sentence"]:
            troubles.append((found["status"], found["sentence"]))
        troubles += sorted(
            {(row["status"], trouble(row, family)) for row in found["rows"] if row["sentence"]}
        )
        if any(row["status"] == "done" for row in found["rows"]):
            prefix = f"{experiment}-kernels-{len(machines)}"
            shown = family.shown(found, (plan or {}).get("lines", []), prefix)
            title = wording.measured_on(found["environment"])
            machines.append({"title": title, "intro": family.INTRO, **shown})
    return {"machines": machines, "troubles": troubles, "missing": bool(plan) and not ours}


def family_of(found: dict):
    """The module that shows a benchmark; those of older versions are of the augments."""
    return FAMILIES[found["settings"].get("family", AUGMENT)]


def trouble(row: dict, family) -> str:
    """The sentence of a row that has no time, with its name."""
    work = "" if row["status"] == "skipped" else f", {family.work_of(row)}{family.at(row)}"
    return f"{row['implementation']}{work}: {row['sentence']}"
