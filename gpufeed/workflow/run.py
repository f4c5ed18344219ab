"""The run that is planned: its config, its cells, and the paths of its files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import Cell
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import expanded
from gpufeed.core.plan_advice import settings as advice
from gpufeed.core.registry import STORES, takes_extension
from gpufeed.core.retry_policy import attempt, planning_node
from gpufeed.core.run_part import chosen
from gpufeed.core.vit_options import BY_EXTENSION


@dataclass(frozen=True, eq=False)
class Run:
    """What all rules share.

    config: checked, with the folders settled. plans: returns whether this is the user's snakemake, and not
    one that it runs a job with, and whether that will run jobs.
    """

    config: Mapping[str, Any]
    plan: Plan
    plans: Callable[[], tuple[bool, bool]] = lambda: (True, False)
    asked: set[str] = field(default_factory=set)  # documents whose attempt was asked for

    @cached_property
    def results(self) -> str:
        return self.config["results"]

    @cached_property
    def data(self) -> str:
        return self.config["data"]

    @cached_property
    def folders(self) -> dict[str, str]:
        """Return dataset -> a folder of the user's own that its images come from."""
        sources = self.config["sources"].items()
        return {name: str(expanded(one["folder"]).absolute()) for name, one in sources if "folder" in one}

    @cached_property
    def cells(self) -> dict[str, dict[str, Cell]]:
        """Experiment -> id -> cell, for the cells that this run measures."""
        return chosen(self.config, self.plan)

    @cached_property
    def advised(self) -> dict[str, dict[str, Any] | None]:
        """Experiment -> its settings of `advice`, None without them."""
        return {name: advice(self.config, self.plan, name) for name in self.plan.cells}

    @cached_property
    def partial(self) -> bool:
        """Whether this run measures only one block, or selected cells."""
        return self.config["block"] is not None or bool(self.config["only"])

    @cached_property
    def packed(self) -> bool:
        """Whether each prepared dataset is one archive."""
        return self.config["data_form"] == "packed"

    @cached_property
    def gpu_jobs(self) -> int:
        """The GPUs that a job requests if it runs on the config's device."""
        return int(self.config["device"] in ("auto", "cuda"))

    @cached_property
    def extension(self) -> str:
        """The library of our C++ and CUDA kernels."""
        return f"{self.results}/extension/gpufeed_ops.so"

    @cached_property
    def about_extension(self) -> str:
        """The description of that library."""
        return f"{self.results}/extension/gpufeed_ops.json"

    @cached_property
    def built(self) -> dict[str, str]:
        """Store -> its file in the folder of a dataset."""
        return {
            name: store.file.format(decoder=self.config["cache_decoder"]) for name, store in STORES.items()
        }

    def manifest_of(self, dataset: str) -> str:
        """Return the manifest of a dataset."""
        return f"{self.data}/{dataset}/manifest.parquet"

    def files_of(self, dataset: str) -> list[str]:
        """Return the archive that a job waits for if it reads the files of a packed dataset; else []."""
        return [f"{self.data}/{dataset}/images.tar"] if self.packed else []

    def cell_of(self, wildcards: Any) -> Cell:
        """Return the planned cell behind a path; raise GpufeedError if the config no longer has it."""
        try:
            return self.plan.cells[wildcards.experiment][wildcards.cell]
        except KeyError:
            raise GpufeedError(
                f"no cell {wildcards.cell} in experiment {wildcards.experiment}",
                "a cell of the present config",
                "use the experiment as target: snakemake then finds its cells",
            ) from None

    def identity_of(self, wildcards: Any) -> dict[str, Any]:
        """Return what the cell's digest covers, so that a job's params change only with its cell id."""
        return self.cell_of(wildcards).identity()

    def attempt_at(self, path: str, device: str | None = None) -> int:
        """Return the attempt that a document comes from. device: if it is not the config's.

        It takes no `output`, since Snakemake would then not compare its value.
        """
        first, keep = path not in self.asked and self.plans()[0], self.plans()[1]
        self.asked.add(path)
        return attempt(path, planning_node(), device or self.config["device"], first, keep)

    def extension_of(self, wildcards: Any) -> str | list[str]:
        """Return the library for a cell whose model's activation is a kernel of ours."""
        activation = self.cell_of(wildcards).hyper["model"].get("activation")
        return self.extension if activation in BY_EXTENSION else []

    def extension_of_decoder(self, wildcards: Any) -> str | list[str]:
        """Return the library for a job whose decoder uses it."""
        return self.extension if takes_extension(wildcards.decoder) else []
