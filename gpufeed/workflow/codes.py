"""The digest of the code that a job runs: an edit of that code runs the job again."""

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

KEPT = Path(".snakemake/gpufeed_sources.json")  # the cache, in the folder of the run


class Codes:
    """The digests of the jobs of a run.

    A job's code is its script and what that imports, from the layers that measure or report. So
    gpufeed/job.py, the wrapper around all scripts, does not count, and core only where it computes
    (gpufeed.core.source_digest). The rules name what a script takes from the registry.
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
                    continue  # not in the registry: the scripts import it
                modules |= modules_of(kind, name)
        ours = self.sources.of(script_file(script), *sorted(modules), rooms=MEASURING, files=files)
        return "-".join([ours, *code_of(references).values()])

    def of_training(self, script: str) -> Callable[[Any], str]:
        """Return a function of the wildcards: the digest for a script that trains or evaluates a cell."""

        def code(wildcards: Any) -> str:
            cell = self.run.cell_of(wildcards)
            return self.of(
                script,
                loader=cell.loader,
                decoder=self.decoders_of(cell),
                augment=["none", cell.augment],  # evaluation images are not augmented
                model=cell.model,
                trainer=cell.trainer,
            )

        return code

    def decoders_of(self, cell: Cell) -> list[str]:
        """Return the decoders that the workers of a cell may use; with tuned settings, all of its loader."""
        choice = list(LOADERS[cell.loader].decoders)
        return choice if cell.settings else [cell.decoder] * bool(choice)

    def of_report(self, script: str) -> str:
        """Return the digest of the code behind a script that makes tables, figures or the page."""
        return self.sources.of(script_file(script), rooms=REPORTING, files=("report/templates/*",))


def script_file(script: str) -> str:
    """Return the file of a script, which has the name of its rule; relative to the package's folder."""
    return str((ROOT / f"workflow/scripts/{script}.py").relative_to(PACKAGE.parent))
