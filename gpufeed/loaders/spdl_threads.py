"""SPDL's pipeline in this process, anew for each epoch: MT in the words of its documentation."""

from collections.abc import Iterator

import numpy as np

from gpufeed.loaders.spdl_batches import BatchMaker, Made, parts_of
from gpufeed.loaders.spdl_pipeline import made_here, threads_of


class Threads:
    """Batches made by threads of this process."""

    def __init__(self, maker: BatchMaker):
        self.maker = maker

    def open(self) -> None:
        """Nothing begins before an epoch."""

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """The batches of `order` (sample ids, int64); raises as `made_here`."""
        request = self.maker.request
        parts, threads = [*parts_of(order, epoch, request.batch_size)], threads_of(request)
        return made_here(parts, self.maker.attempt, threads, request, threads)

    def close(self) -> None:
        """Nothing outlives an epoch."""
