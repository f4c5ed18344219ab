"""Runs the gate in its own process, so that a loader that hangs or dies gets a verdict too.

Nothing here needs torch: the child is forked first, and imports torch itself.
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

# A loader without a batch for this long hangs. It is twice the DataLoader's own limit (loaders/samples.py),
# which therefore reports first. A whole epoch has no limit, since it may take hours.
SILENT_S = 600

log = logging.getLogger("gpufeed")


def watched(
    task: Task,
    planned_on: str,
    attempt: int = 1,
    silent_s: float = SILENT_S,
    begun: Callable[[], None] = lambda: None,
) -> Verdict:
    """Return the verdict on `task`, whatever its loader does.

    A loader that yields no batch for `silent_s` seconds, or whose process dies, has failed. Raises
    GpufeedError if manifest or reference cannot be used, which is not the loader's fault.

    begun: called once the child runs, to start threads, of which none may exist at the fork.
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
    """Judge in the child process, and send the results to the parent."""

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
    """What the child has reported."""

    def __init__(self):
        self.known: dict[str, Any] = {}
        self.doing = "starting"

    def listen(self, receiver: Connection, child: multiprocessing.Process, silent_s: float) -> None:
        """Listen until the child has judged, hangs or dies; raise the error that it ran into."""
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
            raise RuntimeError(f"the equivalence check itself broke\n{value}")
        if what == "alive":
            self.doing = value
        else:
            self.known |= value

    def give_up(self, reason: str) -> None:
        """Fail the loader for this reason."""
        log.error("given up: %s", reason)
        self.known |= {"status": "failed", "sentence": f"{reason}."}

    def facts(self) -> dict[str, Any]:
        """Return the fields of the verdict from the child, always with an environment."""
        if "environment" not in self.known:
            import torch

            from gpufeed.system.environment import environment

            self.known["environment"] = environment(torch.device("cpu"))
        return self.known


def for_job(job: Any, task_of: Callable[[Any], Task] = task_of) -> None:
    """Run rule gate, or gate_tuned with its own task_of. job: a gpufeed.job.Job.

    No thread may run when the gate forks. So the parent watchdog is polled while waiting for a GPU, and
    becomes a thread afterwards.
    """
    task = task_of(job)
    job.take_gpus(1, job.params.device)
    verdict = watched(task, job.planned_on, job.params.attempt, begun=job.watch)
    job.write_document(
        verdict, job.output.verdict, what=f"equivalence check of {task.loader} on {task.dataset}"
    )
