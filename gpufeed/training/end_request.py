"""Whether a training has to end, known to all of its ranks after one and the same step.

SIGTERM comes to the ranks at different moments, and each may be at another step. They ask each other after
every few steps and read the answer that many steps later: it is there by then, so that a host waits only
where its device is further behind, which has work enough then.
"""

from collections.abc import Callable

import torch
from torch import distributed

from gpufeed.system import sigterm_handler

EVERY = 4  # steps from a question to its answer, so that the state is written after 8 steps at the latest


class Asked:
    """Of one run of a rank, or of the only process, which needs to ask nobody."""

    def __init__(self, device: torch.device, world_size: int):
        self.device, self.world_size, on_gpu = device, world_size, device.type == "cuda"
        self.answer = torch.zeros(
            (), dtype=torch.int32, pin_memory=on_gpu
        )  # 1 where any rank was asked to end
        self.wait: Callable[[], object] | None = None  # for the answer; None before the first question

    def after(self, step: int) -> bool:
        """Whether to end after so many steps of the run; every rank must ask after each of its steps."""
        if self.world_size == 1:
            return sigterm_handler.given()
        if step % EVERY:
            return False
        if self.wait is not None:
            self.wait()
        told = bool(self.answer)
        self._ask()
        return told

    def _ask(self) -> None:
        """Begins to find out; waits for nothing."""
        if self.device.type != "cuda":
            self.answer.fill_(sigterm_handler.given())
            self.wait = distributed.all_reduce(self.answer, distributed.ReduceOp.MAX, async_op=True).wait
            return
        given = torch.full((), sigterm_handler.given(), dtype=torch.int32, device=self.device)
        distributed.all_reduce(given, distributed.ReduceOp.MAX)  # the stream waits for it, and not the host
        self.answer.copy_(given, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self.wait = copied.synchronize
