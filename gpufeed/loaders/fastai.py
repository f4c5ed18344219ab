"""fastai's own DataLoader, as in a fastai script: TfmdDL over our manifest, with or without workers."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from traceback import walk_tb

import numpy as np
import torch
from fastai.data.core import TfmdDL

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import STUCK_S, Batch, LoadRequest, OrderedLoader
from gpufeed.loaders.samples import (
    HostBatch,
    Samples,
    collate,
    end_workers,
    require_shared_memory,
    to_device,
    worker_error,
)
from gpufeed.system.processes import garbage_kept


class ManifestDL(TfmdDL):
    """Yields [images, labels, ids] of each batch in host memory, or the GpufeedError of a bad file.

    fastai restarts its workers each epoch, persistent or not.
    """

    def __init__(self, request: LoadRequest):
        super().__init__(
            Samples(request),
            bs=request.batch_size,
            num_workers=request.workers,
            pin_memory=request.pin_memory and request.device.type == "cuda",
            timeout=STUCK_S if request.workers else 0,
        )
        self.set(np.empty(0, dtype=np.int64), 0)
        if request.workers:
            self.fake_l.prefetch_factor = request.prefetch_factor or 2
        # its own generator: each epoch draws a seed, and the model's random numbers must not depend on it
        self.fake_l.generator = torch.Generator().manual_seed(request.seed)

    def set(self, order: np.ndarray, epoch: int) -> None:
        """Set the samples of the next epoch. order: sample ids, int64."""
        self.keys = [(sample_id, epoch) for sample_id in order.tolist()]

    def get_idxs(self) -> list[tuple[int, int]]:
        return self.keys

    def create_batch(self, samples: list) -> list[torch.Tensor] | GpufeedError:
        return collate(samples)

    def retain(self, batch, samples):
        """Return the batch unchanged; fastai would cast it to the type of a sample."""
        return batch


class FastaiLoader(OrderedLoader):
    """The batches of ManifestDL, copied on request."""

    no_decoding = None

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        require_shared_memory(request)
        self.source = ManifestDL(request)
        self.running: Iterator | None = None

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        self.source.set(order, self.epoch)
        self.close()
        running = self.running = iter(self.source)
        try:
            for host in self._host_batches(running):
                yield to_device(host, self.request.device)
        except Exception as error:
            end_workers_behind(error)
            raise
        finally:
            if self.running is running:
                self.close()

    def _host_batches(self, running: Iterator) -> Iterator[HostBatch]:
        starting = garbage_kept()  # fastai starts its workers with the first batch
        while True:
            begin = time.perf_counter()
            try:
                with starting:
                    found = next(running)
            except StopIteration:
                return
            except RuntimeError as error:
                raise worker_error(error, self.request.workers) from error
            if isinstance(found, GpufeedError):
                raise found
            starting = nullcontext()
            yield HostBatch(*found, load_ms=(time.perf_counter() - begin) * 1e3)

    def files(self) -> list[str]:
        return self.files_of_split()

    def close(self) -> None:
        """End the workers; safe to call twice."""
        if self.running is not None:
            self.running.close()
        self.running = None


def end_workers_behind(error: Exception) -> None:
    """End the workers of the torch iterator that raised an error, which fastai does not expose."""
    for frame, _ in walk_tb(error.__traceback__):
        end_workers(frame.f_locals.get("self"))
