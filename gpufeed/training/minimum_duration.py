"""A measured run goes on until its steady state is long enough; its model stays that of the planned run.

Short runs differ by what happens to fall into them: a second of steady state is no measurement of a loader.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from gpufeed.system.timing import throughput, warmup
from gpufeed.training.engines.base import TrainJob
from gpufeed.training.ranks import gathered, steps_in_epoch


class Longer:
    """Asked at the end of a run whether it goes on; `planned` tells whether it has not gone on yet.

    Further steps train at the schedule's last rate, and the model gets its weights back after them. These lie
    in the host's memory meanwhile, so that the peak of the device's is that of the run as planned.
    """

    def __init__(self, job: TrainJob, least_s: float):
        """least_s: seconds that the steps after warm-up take together at least; 0 for a run as planned."""
        self.job, self.least_s = job, least_s
        self.kept: dict[str, torch.Tensor] | None = None

    @property
    def planned(self) -> bool:
        return self.kept is None

    def steps(self, rows: Sequence[Mapping], epochs: Sequence[Mapping]) -> int:
        """How many steps are still to be made; 0 if it has been long enough. Every rank must ask.

        rows: of all steps so far. epochs: their entries, or {"steps": ...} of one that is not over. Whole
        epochs, but for a run of `steps`, which may end anywhere.
        """
        if not self.least_s:
            return 0
        in_epoch = steps_in_epoch(self.job.loader)
        left_out = warmup(epochs, in_epoch)["steps"]
        steady_s = min(gathered(throughput(rows[left_out:])["seconds"], self.job.loader.request.world_size))
        if steady_s >= self.least_s:
            return 0
        if self.planned:
            self._keep()
        missing = (self.least_s - steady_s) * (len(rows) - left_out) / max(steady_s, 1e-6)
        # never more than ten times as long at once: a first guess from a few steps may be far off
        missing = max(1, min(math.ceil(missing), 10 * len(rows)))
        return missing if self.job.steps is not None else math.ceil(missing / in_epoch) * in_epoch

    def _keep(self) -> None:
        self.kept = {
            name: tensor.to("cpu", copy=True) for name, tensor in self.job.model.state_dict().items()
        }

    @torch.no_grad()
    def put_back(self) -> None:
        """Gives the model the weights of the run as planned, in place: a graph reads these tensors."""
        if self.kept is not None:
            for name, tensor in self.job.model.state_dict().items():
                tensor.copy_(self.kept[name])
