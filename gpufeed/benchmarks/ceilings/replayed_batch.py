"""The input of the compute-only ceiling: a batch of the cell's own loader, kept on the device."""

from collections.abc import Iterator

from gpufeed.loaders.base import Batch, Loader, LoadRequest
from gpufeed.loaders.replay import repeated


class Replayed(Loader):
    """Yields the batch as often as an epoch has batches, the last time cut to the size of the last one."""

    def __init__(self, request: LoadRequest, batch: Batch):
        """batch: a clone of the first batch of an epoch."""
        super().__init__(request)
        self.batch = batch

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        size = self.request.batch_size
        return repeated(self.batch, self.share - done * size, size)
