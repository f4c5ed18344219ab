"""Verdicts on loaders: their names, their settings, and which cells wait for which."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.core.equivalence_verdict import loader_settings, variant
from gpufeed.core.errors import GpufeedError
from gpufeed.core.references import is_reference, short
from gpufeed.core.registry import LOADERS, is_made
from gpufeed.workflow.run import Run

REFERENCE = "pillow"  # decodes the cache that every loader is compared with


def gate_name(cell: Cell) -> str:
    """Return the unique name of the verdict on a cell's loader with the cell's settings."""
    return f"{cell.dataset}/{short(cell.loader)}/{variant(loader_settings(cell), cell.device)}"


def waits(cell: Cell) -> bool:
    """Return whether a cell waits for a verdict; ceilings do not."""
    return not LOADERS[cell.loader].ceiling


class Gates:
    """The verdicts of a run."""

    def __init__(self, run: Run):
        self.run = run

    def path(self, name: str) -> str:
        """Return the path of the verdict of that name."""
        return f"{self.run.results}/gate/{name}.json"

    def attempt_of(self, wildcards: Any) -> int:
        """Return the attempt that a verdict comes from."""
        return self.run.attempt_at(self.path(f"{wildcards.dataset}/{wildcards.loader}/{wildcards.variant}"))

    @cached_property
    def judged(self) -> dict[str, dict[str, Any]]:
        """Verdicts that cells wait for: name -> settings. Cached, since jobs ask for them often."""
        cells = (cell for own in self.run.plan.cells.values() for cell in own.values())
        return {gate_name(cell): loader_settings(cell) for cell in cells}

    @cached_property
    def loaders(self) -> dict[str, str]:
        """Name in paths -> loader, for registered loaders and the references of this run."""
        cells = (cell for own in self.run.plan.cells.values() for cell in own.values())
        return {name: name for name in LOADERS} | {short(cell.loader): cell.loader for cell in cells}

    def loader_of(self, wildcards: Any) -> str:
        """Return the loader that a verdict is on."""
        return self.loaders[wildcards.loader]

    def settings_judged(self, wildcards: Any) -> dict[str, Any]:
        """Return the settings behind a verdict's name; raise GpufeedError if no cell has them."""
        if found := self.judged.get(f"{wildcards.dataset}/{wildcards.loader}/{wildcards.variant}"):
            return found
        raise GpufeedError(
            f"no cell with {wildcards.loader} on {wildcards.dataset} and settings {wildcards.variant}",
            "settings of a planned cell",
            "use an experiment as target: snakemake then finds its equivalence checks",
        )

    def decoders_of(self, wildcards: Any) -> list[str]:
        """Return the decoder in the workers of a verdict's loader; none if that has no choice."""
        choice = LOADERS[self.loader_of(wildcards)].decoders
        return [self.settings_judged(wildcards).get("decoder", choice[0])] if choice else []

    def reference_of(self, wildcards: Any) -> str | list[str]:
        """Return the cache that a loader is compared with; [] if a recipe or a Dataset makes its samples."""
        return self.reference(wildcards.dataset, "recipe" in self.settings_judged(wildcards))

    def reference_of_cell(self, wildcards: Any) -> str | list[str]:
        """Return the reference for the loader of a cell with tuned settings."""
        cell = self.run.cell_of(wildcards)
        return self.reference(cell.dataset, bool(cell.hyper.get("recipe")))

    def reference(self, dataset: str, recipe: bool) -> str | list[str]:
        """Return the reference of a dataset. recipe: whether a recipe makes the samples."""
        source = self.run.config["sources"][dataset]
        draws = is_reference(source["layout"]) and is_made(source)
        return [] if recipe or draws else f"{self.run.config['data']}/{dataset}/cache/{REFERENCE}.npy"

    def tuning_of(self, experiment: str, cell: str) -> str:
        """Return the tuning of a cell."""
        return f"{self.run.results}/tuned/{experiment}/{cell}.json"

    def tuned_verdict_of(self, experiment: str, cell: str) -> str:
        """Return the verdict on a cell's loader with its tuned settings."""
        return f"{self.run.results}/tuned/{experiment}/verdicts/{cell}.json"

    def tuned_in(self, experiment: str) -> list[str]:
        """Return the cells of an experiment whose settings are tuned."""
        return [name for name, cell in self.run.plan.cells[experiment].items() if cell.settings]

    def of_cell(self, wildcards: Any) -> str | list[str]:
        """Return the verdict that a cell waits for; [] for ceilings."""
        cell = self.run.cell_of(wildcards)
        return self.path(gate_name(cell)) if waits(cell) else []

    def names(self, experiment: str, cells: Iterable[str] | None = None) -> list[str]:
        """Return the names of the verdicts that cells of an experiment wait for. cells: ids; None for all."""
        ours = self.run.plan.cells[experiment]
        return sorted({gate_name(ours[name]) for name in cells or ours if waits(ours[name])})
