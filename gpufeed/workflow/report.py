"""What the report shows of the plan, what it waits for, and the baseline of a comparison."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import baseline_records
from gpufeed.core.plan_impact import planned_impact
from gpufeed.core.plan_side_by_side import pair
from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.core.run_part import nothing_in
from gpufeed.workflow.benchmarks import Benchmarks, Models
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.repeats import Repeats
from gpufeed.workflow.run import Run

TABLES = ("cells", "batches")
FIGURES = ("throughput", "breakdown", "workers", "timeline")


@dataclass(frozen=True, eq=False)
class Report:
    """The report of a run. options: of the command that starts it again (gpufeed.core.rerun_options)."""

    run: Run
    gates: Gates
    repeats: Repeats
    benchmarks: Benchmarks
    models: Models
    options: list[str]

    @cached_property
    def side_by_side(self) -> dict[str, dict[str, str]]:
        """Experiment -> block -> the cell of that block, for two blocks."""
        return {name: pair(self.run.config, self.run.plan, name) for name in self.run.plan.cells}

    def pair_of(self, wildcards: Any) -> dict[str, str]:
        """Return block -> its cell for the two that an experiment shows side by side."""
        return self.side_by_side[wildcards.experiment]

    def advice_of(self, wildcards: Any) -> list[str]:
        """Return the advice of an experiment; [] without `advice`."""
        has_any = self.run.advised[wildcards.experiment] is not None
        return [self.repeats.advice_on(wildcards.experiment)] if has_any and not self.run.partial else []

    def impact_of(self, experiment: str) -> dict[str, Any] | None:
        """Return the impact table of an experiment as plain data; None without one."""
        impact = planned_impact(self.run.config, experiment, self.run.plan.cells[experiment].values())
        return impact and asdict(impact)

    def plan_of(self, experiment: str) -> dict[str, Any]:
        """Return what the report shows of an experiment's plan: title, question, and all results."""
        config, cells, builds = self.run.config, self.run.plan.cells[experiment], self.benchmarks.builds
        whole = not self.run.partial  # a part has no advice
        measured = self.repeats.cells_so_far(experiment) if whole else list(cells)
        repeats = self.repeats.so_far(experiment)
        if experiment in self.run.plan.auto and config["block"] is not None:
            repeats = max(repeats, config["block"] + 1)
        return {
            "title": config["experiments"][experiment]["title"],
            "question": config["experiments"][experiment]["question"],
            "repeats": repeats,
            "cells": measured,
            "loaders": {cell: cells[cell].loader for cell in measured},
            "cores": max([8, *(cell.cores_wanted for cell in cells.values())]),
            "gates": self.gates.names(experiment, measured),
            "builds": ["-".join(one) for one in builds[experiment].runs] if experiment in builds else [],
            "kernels": self.benchmarks.kernels_in_report(experiment),
            "impact": self.impact_of(experiment),
            "models": self.models.kept[experiment],
            "inference": self.models.in_use[experiment],
            "ceilings": self.benchmarks.limited[experiment],
            "probes": self.benchmarks.probed(experiment) if whole else [],
            "advice": self.run.advised[experiment] if whole else None,
            "tuned": self.gates.tuned_in(experiment),
            "side_by_side": self.side_by_side[experiment],
            "sweep": (self.benchmarks.sweep_in(experiment) or {}).get("decoders", []),
        }

    def documents_of(self, experiment: str, timed: bool = False) -> dict[str, list[str]]:
        """Return kind of result -> the documents of an experiment that a run makes.

        For a part, these are its records and their verdicts. timed: as ResultKind.planned.
        """
        if self.run.partial:
            records = self.repeats.part_of(experiment)
            verdicts = self.gates.names(experiment, self.run.cells[experiment]) if records else []
            gates = [self.gates.path(name) for name in verdicts]
            return {kind: [] for kind in RESULT_KINDS} | {"records": records, "gates": gates}
        plan = self.plan_of(experiment)
        return {
            name: [f"{self.run.results}/{path}" for path in kind.planned(experiment, plan, timed)]
            for name, kind in RESULT_KINDS.items()
        }

    def records_of(self, experiments: Iterable[str]) -> dict[str, list[str]]:
        """Return experiment -> the records that it plans, of the repeats known so far."""
        return {name: self.documents_of(name)["records"] for name in experiments}

    def plan_info(self, wildcards: Any = None) -> dict[str, Any]:
        """Return what the report shows of the plan: experiments, folders of images, and what was left out."""
        plan = self.run.plan
        return {
            "experiments": {name: self.plan_of(name) for name in plan.cells},
            "left_out": [asdict(left) for left in plan.left_out],
            "folders": self.run.folders,
            "command": " ".join(["snakemake {target} --cores {cores} --resources gpu=1", *self.options]),
        }

    def parts_of(self, experiments: Iterable[str], records: bool = True) -> Iterator[str]:
        """Yield everything that the report of these experiments waits for.

        records: whether to include records that are known without a checkpoint. The tables wait for all
        records. A job that also waited for the known ones would run again whenever some were added. A partial
        run makes only the page, which shows all records that exist; one without any raises GpufeedError.
        """
        if self.run.partial:
            experiments = list(experiments)
            found = list(chain.from_iterable(self.records_of(experiments).values()))
            if not found:
                raise nothing_in(self.run.config, self.run.plan, experiments)
            yield from found
            return
        for experiment in experiments:
            tables = f"{self.run.results}/tables/{experiment}"
            figures = f"{self.run.results}/figures/{experiment}"
            found = self.documents_of(experiment)
            yield from found["records"] if records else ()
            yield from (*found["gates"], *found["builds"], *found["advice"])
            yield from (f"{tables}/{table}.csv" for table in TABLES)
            yield from (f"{figures}/{figure}.svg" for figure in FIGURES)
            if self.side_by_side[experiment]:
                yield f"{tables}/side_by_side.csv"
                yield from (f"{figures}/side_by_side.svg", f"{figures}/side_by_side_totals.svg")
            if self.benchmarks.sweep_in(experiment):
                yield f"{tables}/decoders.csv"
                yield from (f"{figures}/crossover.svg", f"{figures}/decoding.svg")
            yield from (*found["kernels"], *found["tunings"])
            for cell in self.models.kept[experiment]:
                kept = f"{self.run.results}/models/{experiment}/{cell}"
                yield from (f"{kept}/evaluation.json", f"{kept}/confusion.svg")
                if self.models.predicts_images(experiment):
                    yield f"{kept}/predictions.csv"
            if self.models.in_use[experiment]:
                yield from found["inferences"]
                yield from (f"{tables}/inference.csv", f"{figures}/inference.svg")
            if self.benchmarks.limited[experiment]:
                yield from found["ceilings"]
                yield from (f"{tables}/ceilings.csv", f"{figures}/ceilings.svg")

    def parts_of_page(self, wildcards: Any) -> Iterator[str]:
        """Yield what a page waits for."""
        return self.parts_of(self.scope_of(wildcards), records=False)

    def scope_of(self, wildcards: Any) -> list[str]:
        """Return the experiments of a page: all of `run` for report.html, one for report-NAME.html."""
        return [wildcards.scope[1:]] if wildcards.scope else self.run.config["run"]

    def baseline_of(self, wildcards: Any) -> list[str]:
        """Return the baseline's records of an experiment."""
        if not (folder := self.run.config["baseline"]):
            raise GpufeedError(
                "no folder `baseline` in the config",
                "a folder of results to compare with",
                "--config baseline=results/reference/h200, or python -m gpufeed.compare A B",
            )
        return [str(path) for path in baseline_records(folder, wildcards.experiment)]

    def comparisons(self) -> list[str]:
        """Return the comparisons that plain `snakemake` makes: none without a baseline in the config."""
        whole = self.run.config["baseline"] and not self.run.partial
        names = self.run.config["run"] if whole else []
        return [f"{self.run.results}/comparison/{name}.csv" for name in names]
