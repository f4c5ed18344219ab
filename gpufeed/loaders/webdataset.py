"""webdataset as its documentation recommends it: tar shards read in sequence, by the DataLoader's workers.

Shards are shuffled and split among the workers. Each reads its own from end to end, shuffles within a buffer,
decodes and makes batches; the main process merges incomplete ones. Shuffling, splitting, reading and batching
are webdataset's own; decoding is that of the DataLoader's loaders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from gpufeed.core.errors import GpufeedError, import_or_skip
from gpufeed.loaders.base import (
    Batch,
    LoadRequest,
    OrderedLoader,
    empty_batch,
    epoch_order,
    require_store,
)
from gpufeed.loaders.samples import HostBatch, HostBatches, Samples, collate, copied
from gpufeed.stores.shards_store import Shard, ShardsInfo, open_shards

BUFFER, INITIAL = 1000, 100  # samples in webdataset's shuffle buffer, and before it yields the first
NONE = np.empty(0, dtype=np.int64)


class WebDatasetLoader(OrderedLoader):
    """A loader of shards: each epoch has all samples once; ranks read all shards and decode their share.

    The equivalence check verifies the bytes of the shards once; an epoch checks the names of samples.
    """

    no_decoding = None
    own_order = (
        f"webdataset shuffles whole shards, and samples among {BUFFER} that a worker has read: the order "
        "depends on the number of workers and on the batch size, too."
    )

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        require_store("webdataset", request)
        self.plan: Plan | None = None
        self.host: ShardBatches | None = None

    def open(self) -> None:
        import_or_skip("Loader webdataset", "webdataset", "webdataset")
        r = self.request
        opened = open_shards(r.shards, r.manifest)
        # absolute, since webdataset takes a part before a colon for the scheme of a URL
        shards = {os.fspath(opened.file(shard).absolute()): shard for shard in opened.of_split(r.split)}
        self.plan = Plan(shards, r, self.split_ids)
        self.host = ShardBatches(r, self.plan)

    def close(self) -> None:
        if self.host is not None:
            self.host.close()

    def order(self) -> np.ndarray:
        return self.plan.order(self.epoch)

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        # `order` is not needed here: it takes 3 us a sample, and the workers shuffle by themselves
        return self._batches(done * self.request.batch_size)

    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        """Yield the batches of the rest of the epoch. order: the rest of `order()`."""
        return self._batches(self.share - len(order))

    def _batches(self, skipped: int) -> Iterator[Batch]:
        r = self.request
        yield from copied(cut(self.host.start_at(skipped, self.epoch), r), r.device)

    def files(self) -> list[str]:
        return list(self.plan.shards)


@dataclass(frozen=True)
class Plan:
    """The order of samples. shards: of one split, by file; split_ids: int64 (n,)."""

    shards: dict[str, Shard]
    request: LoadRequest
    split_ids: np.ndarray

    def workers(self) -> int:
        """Return the number of processes that read: the workers, or 1, the main process."""
        return max(1, self.request.workers)

    def chunk(self) -> int:
        """Return the samples of a worker's chunk, which is a batch without those of other ranks."""
        return self.request.batch_size * self.request.world_size

    def share(self, epoch: int) -> np.ndarray:
        """Return the ids of this rank's samples, int64, the same as with any other loader."""
        r = self.request
        return epoch_order(self.split_ids, r.seed, epoch, r.shuffle, r.rank, r.world_size)

    def shuffles(self, epoch: int, worker: int) -> tuple[Callable, Callable]:
        """Return webdataset's shuffles of shards and samples, as functions on iterators, for one worker."""
        from webdataset.filters import detshuffle

        if not self.request.shuffle:
            return iter, iter
        # webdataset adds the epoch to the seed, so that repeats with neighbouring seeds would share epochs
        seeds = np.random.SeedSequence([self.request.seed, epoch]).generate_state(1 + self.workers())
        of_shards = detshuffle(len(self.shards), len(self.shards), seed=int(seeds[0]))
        of_samples = detshuffle(BUFFER, INITIAL, seed=int(seeds[1 + worker]))
        return of_shards.run, of_samples.run

    def order(self, epoch: int) -> np.ndarray:
        """Return the ids of this rank in order, int64, by doing with ids alone what the workers do."""
        turns = [self._chunks(epoch, worker) for worker in range(self.workers())]
        rows = []
        while turns:  # the DataLoader asks its workers in turn and skips those that have ended
            found = [next(turn, None) for turn in turns]
            rows += [row for row in found if row is not None]
            turns = [turn for turn, row in zip(turns, found, strict=True) if row is not None]
        order = np.concatenate([NONE, *rows])
        if self.request.world_size == 1:
            return order
        return order[np.isin(order, self.share(epoch))]

    def _chunks(self, epoch: int, worker: int) -> Iterator[list[int]]:
        """Yield the ids of each chunk of one worker, including those of other ranks."""
        shuffle_shards, shuffle_samples = self.shuffles(epoch, worker)
        own = islice(shuffle_shards(iter(self.shards.values())), worker, None, self.workers())
        ids = shuffle_samples(chain.from_iterable(shard.ids for shard in own))
        while chunk := list(islice(ids, self.chunk())):
            yield chunk

    def wanted(self, epoch: int, skipped: int) -> np.ndarray | None:
        """Return which sample ids this rank still needs, bool (largest id + 1,); None: all of the split."""
        if not skipped and self.request.world_size == 1:
            return None
        wanted = np.zeros(int(self.split_ids.max()) + 1, dtype=bool)
        wanted[self.order(epoch)[skipped:] if skipped else self.share(epoch)] = True
        return wanted


class ShardBatches(HostBatches):
    """Chunks of samples in host memory, as the workers make them."""

    def __init__(self, request: LoadRequest, plan: Plan):
        super().__init__(request)
        # shared memory, from which persistent workers read where an epoch begins
        self.turn = torch.zeros(2, dtype=torch.int64).share_memory_()
        self.reader = ShardReader(plan, self.samples, self.turn)

    def reading(self) -> dict[str, Any]:
        return {"dataset": self.reader, "batch_size": None, "collate_fn": as_it_is}

    def start_at(self, skipped: int, epoch: int) -> Iterator[HostBatch]:
        """Return the chunks of an epoch without its first `skipped` samples."""
        self.turn.copy_(torch.tensor([epoch, skipped]))
        return self.start(NONE, epoch)


class ShardReader(IterableDataset):
    """The dataset of a worker: [images, labels, ids] of each chunk, or the GpufeedError that ended it.

    A chunk holds only wanted samples, perhaps none, so that workers keep their turns in the epoch.
    """

    def __init__(self, plan: Plan, samples: Samples, turn: torch.Tensor):
        """Set the plan. turn: int64 (2,), the epoch and the number of samples to skip, read at its start."""
        self.plan, self.samples, self.turn = plan, samples, turn

    def __iter__(self) -> Iterator[list[torch.Tensor] | GpufeedError]:
        import webdataset as wds

        epoch, skipped = self.turn.tolist()
        info = get_worker_info()
        shuffle_shards, shuffle_samples = self.plan.shuffles(epoch, info.id if info else 0)
        wanted, opened = self.plan.wanted(epoch, skipped), []
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(list(self.plan.shards)),
            shuffle_shards,
            wds.split_by_worker,
            lambda urls: noted(urls, opened),
            wds.tarfile_to_samples(),
            lambda found: self.checked(found, opened),
            shuffle_samples,
            wds.batched(self.plan.chunk(), collation_fn=None, partial=True),
        )
        try:
            for chunk in pipeline:
                yield self.made(chunk, epoch, wanted)
        except GpufeedError as error:  # DataLoader rebuilds an exception of a worker from a single string
            yield error

    def made(
        self, chunk: list[tuple[int, bytes]], epoch: int, wanted: np.ndarray | None
    ) -> list[torch.Tensor] | GpufeedError:
        """Return the wanted samples of a chunk, decoded."""
        own = [(i, data) for i, data in chunk if wanted is None or wanted[i]]
        if not own:
            return [torch.empty(0), *(torch.empty(0, dtype=torch.int64) for _ in range(2))]
        return collate([self.samples.made(i, epoch, data) for i, data in own])

    def checked(self, found: Iterable[dict], opened: list[str]) -> Iterator[tuple[int, bytes]]:
        """Yield (sample id, file) of each sample in the shards; raise GpufeedError if the index differs.

        tarfile raises no error for a tar file that is cut off or damaged between two members.
        """
        promised = ((url, i) for url in opened for i in self.plan.shards[url].ids)
        try:
            for sample in found:
                url, sample_id = next(promised, (sample["__url__"], -1))
                if (url, f"{sample_id:09d}") != (sample["__url__"], sample["__key__"]):
                    raise wrong(url, f"sample {sample['__key__']}", f"sample {sample_id:09d}")
                yield sample_id, next(data for key, data in sample.items() if not key.startswith("__"))
        except GpufeedError:
            raise
        except Exception as error:  # gopen and tarfile raise many kinds for a missing or damaged file
            said = str(error.args[0] if error.args else error)
            raise wrong(opened[-1], said, "a complete tar file") from error
        for url, sample_id in promised:
            raise wrong(url, f"it ends before sample {sample_id:09d}", "all samples of the index")


def noted(urls: Iterable[dict], opened: list[str]) -> Iterator[dict]:
    """Yield the shards and append their URLs to `opened`."""
    for url in urls:
        opened.append(url["url"])
        yield url


def wrong(file: str, found: str, expected: str) -> GpufeedError:
    """Return the error for a shard that differs from the index."""
    return ShardsInfo.wrong(f"{file}: {found}", expected)


def as_it_is(chunk):
    """Return the chunk, which the worker has already collated."""
    return chunk


def cut(chunks: Iterator[HostBatch], request: LoadRequest) -> Iterator[HostBatch]:
    """Merge and split chunks into batches of the request's size, the last one smaller."""
    waiting: list[HostBatch] = []
    with closing(chunks):
        for chunk in chunks:
            waiting.append(chunk)
            while sum(len(part.ids) for part in waiting) >= request.batch_size:
                yield first(waiting, request)
    if sum(len(part.ids) for part in waiting):
        yield first(waiting, request)


def first(waiting: list[HostBatch], request: LoadRequest) -> HostBatch:
    """Take one batch, or all that there is, from the front of the waiting chunks.

    load_ms: the sum over all chunks since the batch before.
    """
    taken, missing = [], request.batch_size
    while waiting and missing:
        part = waiting.pop(0)
        taken.append(part)
        missing -= len(part.ids)
    load_ms = sum(part.load_ms for part in taken)
    if missing < 0:
        last, left = taken.pop(), missing
        taken.append(HostBatch(last.images[:left], last.labels[:left], last.ids[:left], 0.0))
        waiting.insert(0, HostBatch(last.images[left:], last.labels[left:], last.ids[left:], 0.0))
    whole = [part for part in taken if len(part.ids)]
    if len(whole) == 1:
        return HostBatch(whole[0].images, whole[0].labels, whole[0].ids, load_ms)
    columns = [[getattr(part, name) for part in whole] for name in ("images", "labels", "ids")]
    return HostBatch(*(joined(column, request) for column in columns), load_ms)


def joined(parts: list[torch.Tensor], request: LoadRequest) -> torch.Tensor:
    """Concatenate the parts in (pinned) host memory."""
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    return torch.cat(parts, out=empty_batch(shape, parts[0].dtype, torch.device("cpu"), request))
