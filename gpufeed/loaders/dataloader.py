"""torch's DataLoader, as most training scripts use it: without worker processes, and with them."""

from collections.abc import Iterator

import numpy as np

from gpufeed.loaders.base import Batch, LoadRequest, OrderedLoader
from gpufeed.loaders.samples import HostBatches, copied


class SyncLoader(OrderedLoader):
    """Each batch is read, decoded and copied on request."""

    no_decoding = None

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.host = HostBatches(request)

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        yield from copied(self.host.start(order, self.epoch), self.request.device)

    def files(self) -> list[str]:
        return self.files_of_split()

    def close(self) -> None:
        self.host.close()


class WorkersLoader(SyncLoader):
    """The same with worker processes that decode ahead.

    The workers start with the first batch of an epoch (of the first epoch, if they are persistent), as in a
    training script. The wait for that batch therefore includes their start.
    """
