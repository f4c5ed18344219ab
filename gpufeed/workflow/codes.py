"""The code that a job runs, as a digest: an edit of it runs the job again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpufeed.core.cells import Cell
from gpufeed.core.config import PACKAGE, ROOT
from gpufeed.core.plan_decoding import STRIP_SETS
from gpufeed.core.references import code_of, is_reference
from gpufeed.core.registry import DECODERS, LOADERS, modules_of
from gpufeed.core.source_digest import MEASURING, REPORTING, SourceDigests
from gpufeed.workflow.run import Run

KEPT = Path(".snakemake/gpufeed_sources.json")  # in the folder of the run, as all that Snakemake keeps


class Codes:
    """The digests of the jobs of a run.

    A job's code is that of its script and of what this imports in the layers that measure, or report. So
    gpufeed/job.py, the wrapper around all scripts, does not count, and core only where it computes
    (gpufeed.core.source_digest). What a script takes from the registry by name is named here.
    """

    def __init__(self, run: Run):
        self.run, self.sources = run, SourceDigests(known=KEPT)

    def of(self, script: str, files: tuple[str, ...] = (), **names: str | list[str]) -> str:
        """Return the digest of the code behind a script of the workflow.

        files: patterns of other files of the package. names: kind -> what the script takes from the registry,
        such as decoder="pillow".
        """
        modules, references = set(), []
        for kind, given in names.items():
            for name in [given] if isinstance(given, str) else given:
                references += [name] * is_reference(name)
                if kind == "decoder" and name in STRIP_SETS and name not in DECODERS:
                    continue  # no decoder of files: the scripts import what joins and decodes strips
                modules |= modules_of(kind, name)
        ours = self.sources.of(script_file(script), *sorted(modules), rooms=MEASURING, files=files)
        return "-".join([ours, *code_of(references).values()])

    def of_training(self, script: str) -> Callable[[Any], str]:
        """Return what gives the digest for the wildcards of a cell that a script trains or evaluates."""

        def code(wildcards: Any) -> str:
            cell = self.run.cell_of(wildcards)
            # images to evaluate are never augmented
            augments = ["none", cell.augment]
            return self.of(
                script,
                loader=cell.loader,
                decoder=self.decoders_of(cell),
                augment=augments,
                model=cell.model,
                trainer=cell.trainer,
            )

        return code

    def decoders_of(self, cell: Cell) -> list[str]:
        """Return who may decode in the workers of a cell: with tuned settings any that its loader has."""
        choice = list(LOADERS[cell.loader].decoders)
        return choice if cell.settings else [cell.decoder] * bool(choice)

    def of_report(self, script: str) -> str:
        """Return the digest of the code behind a script that makes tables, figures or the page."""
        return self.sources.of(script_file(script), rooms=REPORTING, files=("report/templates/*",))


def script_file(script: str) -> str:
    """Return the file of a script, which is called as its rule, as beside the package."""
    return str((ROOT / f"workflow/scripts/{script}.py").relative_to(PACKAGE.parent))
