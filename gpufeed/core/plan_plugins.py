"""Asks, before anything is planned, whether the references of a config run with their options.

A process with torch answers (gpufeed.plugins). Answers are cached until the code or a version changes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpufeed.core.cell_matrix import crossed
from gpufeed.core.cells import Cell
from gpufeed.core.config_sources import with_defaults
from gpufeed.core.dataset_size import size_of
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_whole
from gpufeed.core.references import FORMS, code_of, is_reference
from gpufeed.core.registry import RECIPES

KEPT = Path(".snakemake/gpufeed_plugins.json")  # the cache, in the folder of the run
OWN = "own"  # size: the one that the model was made for
CLASSES = {"cifar10": 10, "cifar10_jpeg": 10, "fashion_mnist": 10}
ROOT = Path(__file__).resolve().parents[2]


def references_of(cell: Cell) -> dict[str, str]:
    """Return kind -> reference, for those that a cell has."""
    of = {"dataset": cell.source.get("layout")}
    return {kind: name for kind in FORMS if is_reference(name := of.get(kind, getattr(cell, kind)))}


def options_of(cell: Cell, group: str) -> dict[str, Any]:
    """Return the options of a cell's reference of kind `group`, which are given as overrides."""
    parsed = map(parse_override, cell.overrides)
    return {key: value for of, key, value in parsed if of == group}


def parse_override(text: str) -> tuple[str, str, object]:
    """Split 'model.stem=cifar' into (group, key, value); the value is JSON if possible, else a string."""
    target, _, value = text.partition("=")
    group, _, key = target.partition(".")
    try:
        return group, key, json.loads(value)
    except (ValueError, RecursionError):  # the latter for a thousand opening brackets
        return group, key, value


def question(config: Mapping, cell: Cell, kind: str) -> dict[str, Any]:
    """Return the question about a cell's reference as plain data.

    size: (height, width) of its images; OWN: that of the model, or of the recipe; None: not known yet.
    """
    name, source = references_of(cell)[kind], config["sources"][cell.dataset]
    asked = {"kind": kind, "name": name, "options": options_of(cell, kind), "code": code_of([name])}
    if kind == "dataset":
        return asked | {"options": source.get("options", {})}
    described = {} if is_reference(source["layout"]) else source.get("options", {})
    classes = with_defaults(source["layout"], described).get("classes")
    asked["classes"] = classes or CLASSES.get(source["layout"])
    asked["size"] = size_of(config, cell.dataset)
    if RECIPES[cell.recipe].of_loader:
        side = options_of(cell, "recipe").get("size")
        asked["size"] = [side, side] if isinstance(side, int) else OWN
    return asked


def answers(config: Mapping) -> dict[str, Any]:
    """Return question -> answer for all references of the experiments of a config; {} without any.

    Raises GpufeedError for the first reference that is refused.
    """
    layouts = [source["layout"] for source in config["sources"].values()]
    if not any(map(is_reference, [*named(config["experiments"]), *layouts])):
        return {}
    cells = [cell for name in config["experiments"] for _, cell in crossed(config, name)]
    asked = [question(config, cell, kind) for cell in cells for kind in references_of(cell)]
    return ask(asked)


def named(experiments: Mapping) -> Iterable[object]:
    """Yield all values of the axes that may be references."""
    for experiment in experiments.values():
        for block in (experiment.get("common", {}), *experiment["blocks"].values()):
            for values in (block.get(kind) for kind in FORMS):
                yield from values if isinstance(values, list) else [values]


def ask(questions: Iterable[Mapping]) -> dict[str, Any]:
    """Return question (see `as_text`) -> answer; only questions without a cached answer start the process."""
    wanted, known = {as_text(each): each for each in questions}, {}
    with suppress(OSError, ValueError):
        known = json.loads(KEPT.read_text(encoding="utf-8"))
    if new := {text: each for text, each in wanted.items() if text not in known}:
        for text, answer in zip(new, asked_of_process(list(new.values())), strict=True):
            if "error" in answer:
                raise GpufeedError(*answer["error"])
            known[text] = answer
        with suppress(OSError):
            KEPT.parent.mkdir(exist_ok=True)
            write_whole(KEPT, json.dumps(known))
    return {text: known[text] for text in wanted}


def as_text(question: Mapping) -> str:
    """Return a question as text, with the versions that its answer holds for."""
    return json.dumps({**question, "versions": versions()}, sort_keys=True)


@cache
def versions() -> list[str]:
    """Return the versions of the packages that build models; "" for one that is not installed."""
    found = []
    for package in ("torch", "torchvision", "timm"):
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("")
    return found


def asked_of_process(questions: list[Mapping]) -> list[dict]:
    """Return the answers of a gpufeed.plugins process, which sees no GPU and which user code may crash."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "gpufeed.plugins"],
        input=json.dumps(questions),
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        names = ", ".join(sorted({each["name"] for each in questions}))
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise GpufeedError(
            f"a process that ended with status {done.returncode} while importing {names} ({said})",
            "code that imports in a Python with torch and the packages that it needs",
            "import it in a Python shell, and fix what ends that shell",
        )
    return json.loads(done.stdout)
