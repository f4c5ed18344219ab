"""SPDL's pipeline in this process, anew for each epoch: MT in the words of its documentation."""

from collections.abc import Iterator

import numpy as np

from gpufeed.loaders.samples import STUCK_S
from gpufeed.loaders.spdl_batches import BatchMaker, Made, parts_of
from gpufeed.loaders.spdl_pipeline import described, stuck, threads_of


class Threads:
    """Batches made by threads of this process."""

    def __init__(self, maker: BatchMaker):
        self.maker = maker

    def open(self) -> None:
        """Nothing begins before an epoch."""

    def run(self, order: np.ndarray, epoch: int) -> Iterator[Made]:
        """The batches of `order` (sample ids, int64), by a pipeline that ends with this iterator.

        Raises what stopped a batch, and GpufeedError if none comes for STUCK_S.
        """
        request = self.maker.request
        threads, parts = threads_of(request), [*parts_of(order, epoch, request.batch_size)]
        pipeline = described(parts, self.maker).build(num_threads=threads)
        with pipeline.auto_stop():
            done = pipeline.get_iterator(timeout=STUCK_S)
            for _ in parts:
                try:
                    made = next(done)
                except TimeoutError as error:
                    raise stuck(STUCK_S, threads) from error
                if isinstance(made, Exception):
                    raise made
                yield made

    def close(self) -> None:
        """Nothing outlives an epoch."""
