"""Results held against the plan: what to show, what is missing and how it is told, and what nobody plans."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpufeed.core.packed_results import unpacked
from gpufeed.core.repeats import again
from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.report.wording import listing, plural

STEPS_SUFFIX = ".steps.parquet"


@dataclass(frozen=True)
class Part:
    """One result of an experiment. kind: of RESULT_KINDS; path: relative to the folder of results."""

    experiment: str
    kind: str
    path: Path


@dataclass(frozen=True)
class Found:
    """The results to report on, and how they compare with the plan."""

    paths: list[Path]  # records, <experiment>/<cell_id>/<repeat>.json
    missing: list[Part] = field(default_factory=list)  # planned and not there
    stale: list[Path] = field(default_factory=list)  # there, of any kind, and no longer planned
    reference: bool = False  # published results of another machine, shown because there are no own ones
    gates: list[Path] = field(default_factory=list)  # verdicts, <dataset>/<loader>/<settings>.json
    builds: list[Path] = field(default_factory=list)  # build times, <experiment>/<decoder>-<cores>.json
    sweeps: list[Path] = field(default_factory=list)  # of decoders alone, <experiment>/<decoder>.json
    kernels: list[Path] = field(default_factory=list)  # of kernels alone, <experiment>.json
    evaluations: list[Path] = field(default_factory=list)  # of models, <experiment>/<cell_id>/evaluation.json
    inferences: list[Path] = field(default_factory=list)  # of models in use, <experiment>/<cell_id>.json
    ceilings: list[Path] = field(default_factory=list)  # of cells, <experiment>/<cell_id>.json
    probes: list[Path] = field(default_factory=list)  # of cells, <experiment>/<cell_id>.json
    advice: list[Path] = field(default_factory=list)  # <experiment>.json
    tunings: list[Path] = field(default_factory=list)  # of loaders, <experiment>/<cell_id>.json

    @property
    def steps_paths(self) -> list[Path]:
        """The step tables beside the records, where there are any."""
        return [path for path in map(steps_beside, self.paths) if path.exists()]

    @property
    def measured(self) -> bool:
        """Whether anything was measured; a verdict of the gate is no measurement."""
        return bool(self.ceilings) or self.beside_ceilings

    @property
    def ceilings_alone(self) -> bool:
        """Whether ceilings are all that was measured."""
        return bool(self.ceilings) and not self.beside_ceilings

    @property
    def beside_ceilings(self) -> bool:
        """Whether anything but ceilings was measured."""
        kinds = RESULT_KINDS.keys() - {"gates", "ceilings", "tunings"}
        return any(self.paths if kind == "records" else getattr(self, kind) for kind in kinds)


def steps_beside(record: str | Path) -> Path:
    """Return the path of the step table of a record."""
    record = Path(record)
    return record.with_name(record.stem + STEPS_SUFFIX)


Plans = Mapping[str, Mapping]  # experiment -> its part of plan_info (see `page.page`)


def planned(name: str, plan: Mapping) -> list[Part]:
    """Return every result that an experiment plans."""
    return [
        Part(name, kind_name, Path(path))
        for kind_name, kind in RESULT_KINDS.items()
        for path in kind.planned(name, plan)
    ]


def on_disk(results: str | Path, experiments: Sequence[str]) -> dict[str, list[Path]]:
    """Return kind -> its sorted files in a folder: of the experiments, and all verdicts of the gate."""
    patterns = {name: dict.fromkeys(map(kind.pattern, experiments)) for name, kind in RESULT_KINDS.items()}
    root = Path(results)
    return {
        name: [path for pattern in ours for path in sorted(root.glob(pattern))]
        for name, ours in patterns.items()
    }


def find_own(results: str | Path, experiments: Iterable[str], plans: Plans) -> Found:
    """Return the planned results of these experiments, with second records beside the first ones.

    A verdict of the gate that any experiment plans is not stale. Nor is the evaluation of a planned cell
    whose model the plan does not keep: it was made on request, and is shown.
    """
    root, experiments = Path(results), list(experiments)
    there = on_disk(root, experiments)
    ours = [part for name in experiments for part in planned(name, plans.get(name, NOTHING))]
    wanted = {root / path for part in ours for path in _with_second(part)}
    evaluations = ((path, plans.get(path.parts[-3], NOTHING)) for path in there["evaluations"])
    wanted |= {path for path, plan in evaluations if path.parts[-2] in plan["cells"]}
    parts = (part for name, plan in plans.items() for part in planned(name, plan))
    by_all = {root / path for part in parts for path in _with_second(part)} | wanted
    existing = {path for paths in there.values() for path in paths}
    missing = [part for part in ours if root / part.path not in existing]
    # records in the order of the plan, in which the report shows cells
    planned_records = [root / path for part in ours if part.kind == "records" for path in _with_second(part)]
    records = [path for path in planned_records if path in existing]
    shown = {kind: [path for path in there[kind] if path in wanted] for kind in there if kind != "records"}
    stale = [path for paths in there.values() for path in paths if path not in by_all]
    return Found(records, missing, stale, **shown)


NOTHING = {"cells": [], "repeats": 0}


def _with_second(part: Part) -> list[Path]:
    """Return the path of a part, and for a repeat also that of its second record."""
    return [part.path, again(part.path)] if part.kind == "records" else [part.path]


def find_reference(results: str | Path, experiments: Iterable[str], plans: Plans) -> Found:
    """Return all published results of these experiments, <results>/reference/<name>/..., planned or not.

    Their config may differ from the present one, so nothing counts as stale; everything that is planned
    counts as missing, for it was not measured here.
    """
    experiments = list(experiments)
    folders = [
        on_disk(folder, experiments) for folder in sorted(unpacked(Path(results) / "reference").glob("*"))
    ]
    there = {kind: [path for folder in folders for path in folder[kind]] for kind in RESULT_KINDS}
    missing = [part for name in experiments for part in planned(name, plans.get(name, NOTHING))]
    found = Found(there.pop("records"), missing, **there)
    return replace(found, reference=found.measured)


def in_words(parts: Iterable[Part]) -> str:
    """Return parts in words, such as `6 repeats of 2 cells and 3 decoders alone`; `nothing` without any.

    A verdict that several experiments wait for counts once.
    """
    parts, said = list(parts), []
    for name, kind in RESULT_KINDS.items():
        paths = {part.path for part in parts if part.kind == name}
        if paths:
            words = plural(len(paths), *(kind.listed or kind.words))
            cells = {path.parent for path in paths}
            said.append(f"{words} of {plural(len(cells), 'cell')}" if name == "records" else words)
    return listing(said) if said else "nothing"


def listed(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Return (name, what it is) of each part, the repeats of a cell together."""
    cells, rows = {}, []
    for part in parts:
        if part.kind == "records":
            cells.setdefault(part.path.parent.name, []).append(part.path.stem)
        else:
            kind = RESULT_KINDS[part.kind]
            experiment, unit = kind.names_in(part.path)
            rows.append((unit or experiment, (kind.listed or kind.words)[0]))
    return [*((cell, f"repeat {', '.join(repeats)}") for cell, repeats in cells.items()), *rows]
