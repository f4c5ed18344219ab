"""Copies on a side stream: while the device computes on batch N, a thread copies batch N+1."""

import threading
from collections.abc import Iterator

import numpy as np

from gpufeed.loaders.base import Batch, LoadRequest
from gpufeed.loaders.prefetch import PrefetchLoader
from gpufeed.loaders.samples import HostBatches, copied, worker_error


class OverlapLoader(PrefetchLoader):
    """Host batches of the DataLoader, with or without workers, copied ahead by one thread.

    With pin_memory (the default) copies overlap the compute; without it CUDA stages them through its own
    buffer, and only the thread waits.
    """

    no_decoding = None

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.host = HostBatches(request)

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        # Workers are started here, not in the thread: forking while another thread holds locks can hang them.
        host = self.host.start(order, self.epoch, stopping)
        return copied(host, self.request.device)

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        try:
            yield from super().batches(order)
        except RuntimeError as error:  # raised in the main thread by the signal of a dead worker
            raise worker_error(error, self.request.workers) from error

    def files(self) -> list[str]:
        return self.files_of_split()

    def close(self) -> None:
        super().close()
        self.host.close()
