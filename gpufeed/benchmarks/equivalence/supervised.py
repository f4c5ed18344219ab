"""The gate in a process of its own, so that a loader which hangs or dies is a verdict too.

Nothing here needs torch: the child is forked before anything is set up, and loads it alone.
"""

import logging
import multiprocessing
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from gpufeed.benchmarks.equivalence.equivalence_task import Task, task_of
from gpufeed.core.document import now
from gpufeed.core.equivalence_verdict import Verdict
from gpufeed.core.errors import GpufeedError
from gpufeed.system.processes import exit_words, forked_child

# Without a batch for so long a loader hangs. Twice what the DataLoader's own watch allows its workers
# (loaders/samples.py), which therefore speaks first; no limit on a whole epoch, which may take hours.
SILENT_S = 600

log = logging.getLogger("gpufeed")


def watched(
    task: Task,
    planned_on: str,
    attempt: int = 1,
    silent_s: float = SILENT_S,
    begun: Callable[[], None] = lambda: None,
) -> Verdict:
    """The verdict on `task`, whatever its loader does.

    A loader that gives no batch for `silent_s` seconds, or whose process dies, has failed. Raises
    GpufeedError if manifest or reference cannot be used, for which no loader is to blame.

    begun: called once the child runs, for what starts threads: none may be there when it is forked.
    """
    started_at = now()
    heard = Heard()
    with forked_child(partial(run, task), "gpufeed-gate", begun) as (receiver, child):
        heard.listen(receiver, child, silent_s)
    return Verdict(
        dataset=task.dataset,
        loader=task.loader,
        settings=task.settings,
        attempt=attempt,
        planned_on=planned_on,
        started_at=started_at,
        finished_at=now(),
        **heard.facts(),
    )


def run(task: Task, sender: Connection) -> None:
    """The child: judges and tells the parent."""

    def tell(what: str, value: Any) -> None:
        sender.send((what, value))

    try:
        from gpufeed.benchmarks.equivalence.judge import judge

        judge(task, tell)
    except GpufeedError as error:
        tell("error", error)
    except Exception:
        tell("broken", traceback.format_exc())
    else:
        tell("end", None)


class Heard:
    """What the child has said."""

    def __init__(self):
        self.known: dict[str, Any] = {}
        self.doing = "starting"

    def listen(self, receiver: Connection, child: multiprocessing.Process, silent_s: float) -> None:
        """Until the child has judged, hangs or dies; raises the error that it ran into."""
        while True:
            ready = wait([receiver, child.sentinel], silent_s)
            if not ready:
                return self.give_up(f"nothing came for {silent_s:g} s while {self.doing}")
            try:
                what, value = receiver.recv() if receiver.poll() else ("died", None)
            except EOFError:
                what, value = "died", None
            if what == "end":
                return None
            if what == "died":
                return self.give_up(f"its process died ({exit_words(child)}) while {self.doing}")
            self.hear(what, value)

    def hear(self, what: str, value: Any) -> None:
        if what == "error":
            raise value
        if what == "broken":
            raise RuntimeError(f"the gate itself broke\n{value}")
        if what == "alive":
            self.doing = value
        else:
            self.known |= value

    def give_up(self, reason: str) -> None:
        """Fails the loader for what it did not do."""
        log.error("given up: %s", reason)
        self.known |= {"status": "failed", "sentence": f"{reason}."}

    def facts(self) -> dict[str, Any]:
        """The fields of the verdict that the child found out; the environment, whatever happened to it."""
        if "environment" not in self.known:
            import torch

            from gpufeed.system.environment import environment

            self.known["environment"] = environment(torch.device("cpu"))
        return self.known


def for_job(job: Any, task_of: Callable[[Any], Task] = task_of) -> None:
    """Do the work of rule gate, or of gate_tuned with its own task_of; job: a gpufeed.job.Job.

    No thread may run when the gate forks: what ends this process with Snakemake is asked while it waits for a
    GPU, and watched from then on.
    """
    task = task_of(job)
    job.take_gpus(1, job.params.device)
    verdict = watched(task, job.planned_on, job.params.attempt, begun=job.watch)
    job.keep(verdict, job.output.verdict, what=f"gate {task.loader} on {task.dataset}")
