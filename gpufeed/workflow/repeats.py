"""The repeats of a cell, and its records."""

import json
from typing import Any

from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_advice import measured
from gpufeed.core.repeats import AGAIN, Auto
from gpufeed.workflow.run import Run


class Repeats:
    """The records of a run. checkpoints: Snakemake's; their jobs add repeats to the planned ones."""

    def __init__(self, run: Run, checkpoints: Any):
        self.run, self.checkpoints = run, checkpoints

    def attempt_of(self, wildcards: Any) -> int:
        """Return the attempt that a record comes from."""
        folder = f"{self.run.results}/records/{wildcards.experiment}/{wildcards.cell}"
        return self.run.attempt_at(f"{folder}/{wildcards.repeat}.json")

    def disturbed_in(self, experiment: str, repeats: int | str) -> str:
        """Return the file that lists which of these repeats are measured once more."""
        return f"{self.run.results}/again/{experiment}/{repeats}.json"

    def decision_on(self, experiment: str, repeats: int | str) -> str:
        """Return the file that says whether this number of repeats is too small, for `repeats: auto`."""
        return f"{self.run.results}/repeats/{experiment}/{repeats}.json"

    def advice_on(self, experiment: str) -> str:
        """Return the file that says which candidates are measured, for `advice`."""
        return f"{self.run.results}/advice/{experiment}.json"

    def cells_so_far(self, experiment: str, document: str | None = None) -> list[str]:
        """Return the cells that are measured, by the advice that exists.

        document: that of the advice, if it is not the usual one.
        """
        if (asked := self.run.advised[experiment]) is None:
            return list(self.run.plan.cells[experiment])
        document = document or self.advice_on(experiment)
        return measured(self.run.plan, experiment, asked["of"], document)

    def cells_of(self, experiment: str) -> list[str]:
        """Return the cells that are measured; with `advice`, Snakemake makes the advice first."""
        if self.run.advised[experiment] is None:
            return self.cells_so_far(experiment)
        return self.cells_so_far(experiment, self.checkpoints.advise.get(experiment=experiment).output[0])

    def auto_of(self, experiment: str) -> Auto:
        """Return the settings of `repeats: auto`; raise GpufeedError without it."""
        try:
            return self.run.plan.auto[experiment]
        except KeyError:
            raise GpufeedError(
                f"a fixed number of repeats in experiment {experiment}",
                "`repeats: auto` in it",
                "add it, or use a target of another experiment",
            ) from None

    def so_far(self, experiment: str) -> int:
        """Return the repeats of a cell by the decisions that exist."""
        if experiment not in self.run.plan.auto:
            return self.run.plan.repeats[experiment]
        return self.auto_of(experiment).count(lambda repeats: self.decision_on(experiment, repeats))

    def part_of(self, experiment: str) -> list[str]:
        """Return the records that a run of one block, or of selected cells, measures."""
        block, most = self.run.config["block"], self.so_far(experiment)
        if block is not None and experiment in self.run.plan.auto:
            most = self.auto_of(experiment).most
        numbers = [number for number in range(most) if block in (None, number)]
        folder = f"{self.run.results}/records/{experiment}"
        return [f"{folder}/{cell}/{number}.json" for cell in self.run.cells[experiment] for number in numbers]

    def of_experiment(self, experiment: str) -> int:
        """Return the repeats of a cell; with `repeats: auto`, Snakemake measures until they are enough."""
        if experiment not in self.run.plan.auto:
            return self.run.plan.repeats[experiment]
        decide = self.checkpoints.count_repeats
        return self.auto_of(experiment).count(
            lambda repeats: decide.get(experiment=experiment, repeats=repeats).output[0]
        )

    def first_records(self, experiment: str, repeats: int) -> list[str]:
        """Return the first records of these repeats of all cells; a record implies its steps table."""
        return [
            f"{self.run.results}/records/{experiment}/{cell}/{repeat}.json"
            for cell in self.cells_of(experiment)
            for repeat in range(repeats)
        ]

    def second_records(self, experiment: str, repeats: int) -> list[str]:
        """Return the second records of disturbed repeats, which Snakemake finds once all are measured."""
        if not self.run.plan.cells[experiment]:
            return []
        return self._second_in(
            experiment, self.checkpoints.find_disturbed.get(experiment=experiment, repeats=repeats).output[0]
        )

    def second_so_far(self, experiment: str) -> list[str]:
        """Return the second records of this plan's repeats that were found to be disturbed."""
        try:
            found = self._second_in(experiment, self.disturbed_in(experiment, self.so_far(experiment)))
        except (OSError, ValueError):
            return []
        # others are of an earlier run in this folder, such as one of other images
        return [path for path in found if path.split("/")[-2] in self.run.plan.cells[experiment]]

    def _second_in(self, experiment: str, document: str) -> list[str]:
        with open(document) as file:
            names = json.load(file)["again"]
        return [f"{self.run.results}/records/{experiment}/{name}{AGAIN}.json" for name in names]

    def measured(self, experiment: str, repeats: int) -> list[str]:
        """Return all records of these repeats, second ones included."""
        return self.first_records(experiment, repeats) + self.second_records(experiment, repeats)

    def records_of(self, wildcards: Any) -> list[str]:
        """Return all records of an experiment."""
        return self.measured(wildcards.experiment, self.of_experiment(wildcards.experiment))
