"""webdataset as an endless stream of shards drawn with replacement, as its author recommends for training.

Every worker draws from all shards while the loader is open, so that none runs out of samples and no epoch has
a start-up. Each batch is made by one worker, and the DataLoader asks them in turn, so that each worker knows
the epoch of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import torch
from torch.utils.data import get_worker_info

from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.base import Batch
from gpufeed.loaders.samples import HostBatch, to_device
from gpufeed.loaders.webdataset import BUFFER, INITIAL, ShardReader, WebDatasetLoader, noted


class ResampledLoader(WebDatasetLoader):
    """A loader whose epoch has as many samples as the rank's share: some come twice, others not at all.

    Without shuffling, as in evaluation, every sample comes once, as in WebDatasetLoader. A stream is a
    function of seed, rank, workers, batch size and the batch at which it began. It cannot be resumed: after
    `load_state_dict` a new one begins, with new workers, at the epoch and batch of the state.
    """

    own_order = "A stream of shards and samples drawn with replacement has no order before it comes."
    running: Iterator[HostBatch] | None = None  # the stream, which lasts for all epochs

    @property
    def promises_order(self) -> bool:
        return not self.request.shuffle

    @property
    def keeps_on(self) -> bool:
        return self.request.shuffle

    def open(self) -> None:
        super().open()
        if self.request.shuffle:
            self.host.reader = StreamReader(self.plan, self.host.samples, self.host.turn)

    def close(self) -> None:
        super().close()
        self.running = None

    def order(self) -> np.ndarray:
        if self.promises_order:
            return super().order()
        raise GpufeedError(
            "the order of an epoch of webdataset_resampled",
            "a loader that has one: this stream is drawn with replacement",
            "use webdataset, or read the ids of the batches",
        )

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.running = None

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        if self.promises_order:
            yield from super().epoch_batches(done)
            return
        if self.running is None:
            self.host.close()
            self.running = self.host.start_at(done * self.request.batch_size, self.epoch)
        try:
            for batch in islice(self.running, len(self) - done):
                yield to_device(batch, self.request.device)
        except Exception:
            self.running = None
            raise


class StreamReader(ShardReader):
    """The dataset of a worker of the stream: its own batches, endlessly."""

    def __iter__(self) -> Iterator[list[torch.Tensor] | GpufeedError]:
        import webdataset as wds

        r, info, opened = self.plan.request, get_worker_info(), []
        epoch, skipped = self.turn.tolist()
        share = len(self.plan.split_ids[r.rank :: r.world_size])
        batches, began = -(-share // r.batch_size), skipped // r.batch_size
        place = [r.seed, r.rank, info.id, epoch, began]
        of_shards, of_samples = np.random.SeedSequence(place).generate_state(2).tolist()
        samples = iter(
            wds.DataPipeline(
                # by default the seed depends on the clock and the process
                wds.ResampledShards(
                    list(self.plan.shards), worker_seed=lambda: of_shards, deterministic=True
                ),
                lambda urls: noted(urls, opened),
                wds.tarfile_to_samples(),
                lambda found: self.checked(found, opened),
                wds.shuffle(BUFFER, initial=INITIAL, seed=of_samples),
            )
        )
        try:
            for number in count(epoch * batches + began + info.id, info.num_workers):
                own, in_epoch = divmod(number, batches)
                size = min(r.batch_size, share - in_epoch * r.batch_size)
                yield self.made(list(islice(samples, size)), own, None)
        except GpufeedError as error:  # as in ShardReader
            yield error
