"""The compute-only ceiling: one batch that is already on the device, again and again."""

from collections.abc import Iterator

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import Batch, Loader, LoadRequest, epoch_order
from gpufeed.loaders.samples import HostBatch, Samples, collate, to_device


class ReplayLoader(Loader):
    """A loader that decodes the first batch of epoch 0 in `open`, and yields it for each batch of an epoch.

    The last batch is cut to its size, so that an epoch has as many images as with any other loader.
    """

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.samples = Samples(request)
        self.batch: Batch | None = None

    def open(self) -> None:
        r = self.request
        first = epoch_order(self.split_ids, r.seed, 0, r.shuffle, r.rank, r.world_size)[: r.batch_size]
        found = collate([self.samples[sample_id, 0] for sample_id in first.tolist()])
        if isinstance(found, GpufeedError):
            raise found
        self.batch = to_device(HostBatch(*found, load_ms=0.0), r.device)

    def close(self) -> None:
        self.batch = None

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        size = self.request.batch_size
        return repeated(self.batch, self.share - done * size, size)


def repeated(whole: Batch, samples: int, size: int) -> Iterator[Batch]:
    """Yield a batch of `size` repeatedly, the last time cut, until `samples` have been yielded."""
    for start in range(0, samples, size):
        yield whole.first(min(size, samples - start))
