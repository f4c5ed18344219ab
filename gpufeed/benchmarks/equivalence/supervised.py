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
    with forked_child(partial(run, task), "gpufeed-gate", begun) as (receiver, child):
        facts = reported(receiver, child, silent_s)
    if "environment" not in facts:  # the child ended before it had one
        import torch

        from gpufeed.system.environment import environment

        facts["environment"] = environment(torch.device("cpu"))
    return Verdict(
        dataset=task.dataset,
        loader=task.loader,
        settings=task.settings,
        attempt=attempt,
        planned_on=planned_on,
        started_at=started_at,
        finished_at=now(),
        **facts,
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


def reported(receiver: Connection, child: multiprocessing.Process, silent_s: float) -> dict[str, Any]:
    """Return the fields of the verdict that the child reports, until it has judged, hangs or dies.

    A loader whose child hangs or dies has failed. Raises the error that the child ran into.
    """
    facts: dict[str, Any] = {}
    doing, reason = "starting", ""
    while not reason:
        if not wait([receiver, child.sentinel], silent_s):
            reason = f"nothing came for {silent_s:g} s while {doing}"
            break
        try:
            what, value = receiver.recv() if receiver.poll() else ("died", None)
        except EOFError:
            what, value = "died", None
        if what == "end":
            return facts
        if what == "error":
            raise value
        if what == "broken":
            raise RuntimeError(f"the equivalence check itself broke\n{value}")
        if what == "died":
            reason = f"its process died ({exit_words(child)}) while {doing}"
        elif what == "alive":
            doing = value
        else:
            facts |= value
    log.error("given up: %s", reason)
    return facts | {"status": "failed", "sentence": f"{reason}."}


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
