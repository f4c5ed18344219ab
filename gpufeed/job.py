"""The wrapper around the work of every script of the workflow: `run(snakemake, work)`.

A script imports nothing else of gpufeed at its top. The imports of `work` may take seconds, and a job whose
Snakemake has ended should stop before them. Worker processes import the script again, and may not need them.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

    from gpufeed.datasets.manifest import Manifest
    from gpufeed.training.runtime_context import Stores

BEGAN_S = time.time()  # before the other imports, so that a record can separate these from the start


def run(snakemake: Any, work: Callable[["Job"], None], forks: bool = False, on_cores: bool = False) -> None:
    """Run the work of a job: it logs to its file, ends with its Snakemake, and fails with status 1.

    Ctrl-C ends it without a traceback. What `work` finds missing on this node is not a failure, but becomes
    the status of its document. forks: `work` forks a process, before which no thread may run, and then calls
    Job.watch itself. on_cores: `work` times a cell, and is pinned to its cores.
    """
    from gpufeed.system import parent_watchdog

    runs = parent_watchdog.snakemake_runs()
    if not forks:
        parent_watchdog.end_unless(runs)

    from gpufeed.system.job_log import job_log

    try:
        with job_log(snakemake.log[0]) as log:
            job = Job(snakemake, log, runs)
            if on_cores:
                job.pin_to_cores()
            work(job)
    except KeyboardInterrupt:  # Snakemake says that jobs were stopped
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(130)  # an interrupt's exit code in shells


class Job:
    """A job of the workflow; Snakemake's `input`, `output`, `params` and so on are attributes too.

    runs: returns whether Snakemake still runs.
    """

    def __init__(self, snakemake: Any, logger: "logging.Logger", runs: Callable[[], bool]):
        self.snakemake, self.logger, self.runs = snakemake, logger, runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.snakemake, name)

    @cached_property
    def cell(self) -> dict[str, Any]:
        """The planned cell, as Hydra would compose it."""
        from gpufeed.core.compose import planned_cell

        return planned_cell(self.snakemake)

    @cached_property
    def manifest(self) -> "Manifest":
        """The manifest of the job's dataset."""
        from gpufeed.datasets.manifest import Manifest

        return Manifest.read(self.input.manifest)

    @cached_property
    def stores(self) -> "Stores":
        """The stores that were built for the job's cell."""
        from gpufeed.training.runtime_context import Stores

        return Stores.of(self.input)

    @property
    def began_s(self) -> float:
        """time.time() when the script began."""
        return BEGAN_S

    @property
    def gate(self) -> str | None:
        """The verdict on the cell's loader; None for a ceiling."""
        return self.input.get("gate") or None

    @property
    def tuning(self) -> str | None:
        """The tuning of the cell; None if the cell has its settings."""
        return self.input.get("tuned") or None

    @property
    def planned_on(self) -> str:
        """The node that planned the job."""
        from gpufeed.core.retry_policy import planning_node

        return planning_node()

    @property
    def common_arguments(self) -> dict[str, Any]:
        """Arguments of every measurement: the planning node, the attempt, and threads of torch."""
        return {"planned_on": self.planned_on, "attempt": self.params.attempt, "threads": self.threads}

    @property
    def scratch(self) -> Path:
        """A folder that all nodes of a training see."""
        return Path(self.config["results"]) / "scratch"

    def watch(self) -> None:
        """End this process once its Snakemake has ended; for a job that forks, call this after the fork."""
        from gpufeed.system import parent_watchdog

        parent_watchdog.end_unless(self.runs)

    def take_gpus(self, count: int, device: str = "auto", share: bool = True) -> None:
        """Wait until this many GPUs are free, and take them until the job ends (system.gpu_locks.take).

        share: if several jobs run at once, pin this one to its share of the cores.
        """
        from gpufeed.system import gpu_locks

        cores, shares = (self.threads, self.resources.get("shares", 1)) if share else (0, 1)
        gpu_locks.take(count, device, cores, shares, self.runs)

    def pin_to_cores(self) -> None:
        """Pin this process and all that it starts to the `cores` of the cell, if it has any.

        Call this before an import that counts the cores, as torch does for its threads. GPUs are taken first,
        since a share of the cores comes with them.
        """
        from gpufeed.system.cores import pin_to

        if self.cell["cores"] is not None:
            self.take_gpus(self.cell["devices"], self.cell["device"])
            pin_to(min(self.cell["cores"], self.threads))  # with fewer the cell is skipped

    def load_extension(self) -> None:
        """Load the library of our kernels, if the job has it as input."""
        if self.input.get("extension"):
            from gpufeed import native  # with torch

            native.load(self.input.extension)

    def write_document(
        self,
        document: Any,
        path: str,
        write: Callable[[Any, str], None] | None = None,
        what: str = "",
        lines: Iterable[str] | None = None,
    ) -> None:
        """Record that the attempt has ended, then write its document, and print why it stopped, if it did.

        write: for a document of plain data, without a method `write`. what: the name of the work on stderr.
        lines: printed after that name, instead of the document's status and sentence, which our terminal
        output prints itself.
        """
        from gpufeed.core import retry_policy
        from gpufeed.workflow.terminal import ENDED, QUIET

        data = document if isinstance(document, Mapping) else vars(document)
        retry_policy.ended(path, data["attempt"])
        if write is None:
            document.write(path)
        else:
            write(document, path)
        if lines is not None:
            printed = [f"{what}: {line}" for line in lines]
        else:
            known = not data["sentence"] or (QUIET in os.environ and data["status"] in ENDED)
            printed = [] if known else [f"{what} {data['status']}: {data['sentence']}"]
        for line in printed:
            print(line, file=sys.stderr)

    def write_json(self, document: Any) -> None:
        """Write the only output of the job as JSON, whole or not at all."""
        from gpufeed.core.file_writes import write_whole

        write_whole(self.output[0], json.dumps(document, indent=1) + "\n")
