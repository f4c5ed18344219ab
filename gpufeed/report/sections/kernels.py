"""The part of the report on kernels alone, whatever their family: what was measured, and what was not."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpufeed.core import record
from gpufeed.core.plan_kernels import ACTIVATION, AUGMENT
from gpufeed.report import wording
from gpufeed.report.load_records import read_documents
from gpufeed.report.sections import kernel_activation, kernel_augment

FAMILIES = {AUGMENT: kernel_augment, ACTIVATION: kernel_activation}


def section(paths: Iterable[str | Path], experiment: str, plan: Mapping | None) -> dict | None:
    """Return what the template shows of an experiment's kernels; None if it neither has nor plans any.

    paths: benchmarks of all experiments, <experiment>.json. plan: {"lines": what their rows are held to}.
    """
    documents = read_documents("kernels", paths, experiment, record.KERNELS.read, [""] * bool(plan))
    if not documents:
        return None
    machines = []
    for _, found in documents.found:
        family = family_of(found)
        if found["sentence"]:
            documents.add_trouble(found["status"], "", found["sentence"])
        told = {(row["status"], trouble(row, family)) for row in found["rows"] if row["sentence"]}
        for status, sentence in sorted(told):
            documents.add_trouble(status, "", sentence)
        if any(row["status"] == "done" for row in found["rows"]):
            prefix, lines = f"{experiment}-kernels-{len(machines)}", (plan or {}).get("lines", [])
            title = wording.measured_on(found["environment"])
            machines.append({"title": title, "intro": family.INTRO, **family.shown(found, lines, prefix)})
    return {"machines": machines, **documents.lacking}


def family_of(found: dict):
    """Return the module that shows a benchmark; older versions measured augments only."""
    return FAMILIES[found["settings"].get("family", AUGMENT)]


def trouble(row: dict, family) -> str:
    """Return the sentence of a row without a time, with its name."""
    work = "" if row["status"] == "skipped" else f", {family.named(row)}"
    return f"{row['implementation']}{work}: {row['sentence']}"
