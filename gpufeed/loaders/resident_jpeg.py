"""The coded JPEGs of the whole split on the device, decoded there in every epoch by our own kernels.

A call decodes images of one kind. An epoch is split into rounds of batches, whose images are decoded
together.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from gpufeed.decoders.base import DecodeCounts
from gpufeed.loaders.base import Batch, Loader, LoadRequest, epoch_order, refuse_transform, send
from gpufeed.loaders.coded_store import CodedStore, filled
from gpufeed.loaders.cuda_jpeg import OwnKernels, require_extension
from gpufeed.loaders.prefetch import hand_over
from gpufeed.loaders.streaming import check_size

NOWHERE = (0, -1)  # start and end for no image


@dataclass(frozen=True)
class RoundPlan:
    """The plan of an epoch on the host: n samples in rounds of `size`, the last one smaller.

    order, rows, kinds: sample ids, rows of the store and their kinds, int64 (n,). usual: the kind of most
    images, which each round decodes in one call. others: places in `order` of images of other kinds, int64
    (m,), by round and then by kind; counts: their numbers, int64 (rounds, kinds).
    """

    size: int
    order: np.ndarray
    rows: np.ndarray
    kinds: np.ndarray
    usual: int
    others: np.ndarray
    counts: np.ndarray


def plan_rounds(order: np.ndarray, rows: np.ndarray, store: CodedStore, size: int) -> RoundPlan:
    """Return the plan of samples in this order, int64 (n,). rows: their rows in the store."""
    kinds, every, rounds = store.kinds[rows], store.pixels + 1, -(-len(order) // size)
    usual = int(np.bincount(store.kinds).argmax())
    others = np.flatnonzero(kinds != usual)
    parts = others // size * every + kinds[others]
    counts = np.bincount(parts, minlength=rounds * every).reshape(rounds, every)
    return RoundPlan(size, order, rows, kinds, usual, others[np.argsort(parts, kind="stable")], counts)


class EpochRounds:
    """A plan on the device, and the decoding of its rounds, queued on the current stream without waits.

    labels, ids: int64 (n,), in the order of the epoch.
    """

    def __init__(self, plan: RoundPlan, labels: np.ndarray, store: CodedStore):
        """Copy the plan to the device. labels: by sample id, int64."""
        self.plan, self.store, device = plan, store, store.data.device
        self.ids, self.labels = send(plan.order, device), send(labels[plan.order], device)
        rows, others = send(plan.rows, device), send(plan.others, device)
        self.starts, self.ends = store.starts[rows], store.ends[rows]
        self.places, self.others = others % plan.size, (self.starts[others], self.ends[others])
        for bounds, nowhere in zip((self.starts, self.ends), NOWHERE, strict=True):
            bounds.index_fill_(0, others, nowhere)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.ids, self.labels, self.starts, self.ends, self.places, *self.others

    def round(self, number: int) -> torch.Tensor:
        """Decode a round; return its images, uint8 (n, H, W, 3), in new memory."""
        plan, store = self.plan, self.store
        here = slice(number * plan.size, (number + 1) * plan.size)
        images = store.images(plan.usual, self.starts[here], self.ends[here])
        begin = int(plan.counts[:number].sum())
        for kind, count in enumerate(plan.counts[number].tolist()):
            if count:
                part = slice(begin, begin := begin + count)
                found = store.images(kind, *(bounds[part] for bounds in self.others))
                images.index_copy_(0, self.places[part], found)
        return images


# Pixels of a round of batches: 10,922 images of 64 x 64. A call takes at least as long as the codes of one
# image, so that a small batch alone would be slow. Two or three rounds are alive at once.
ROUND_BYTES = 2**27
STREAMS = 2  # alternate, so that a round's rare kinds overlap the next round

Decoded = tuple[
    torch.Tensor, "torch.cuda.Event | None"
]  # images of a round, and on CUDA the event of their end


class ResidentJpegLoader(Loader):
    """A loader that reads each file once, in `open`, and decodes batches ahead, on CUDA on side streams.

    The host derives a round's plan from the order, so that it never waits for the device in an epoch;
    meanwhile a thread makes the order of the next one. `open` decodes every image and raises if one cannot be
    decoded; so the faults of later calls are ignored.
    """

    no_decoding = "The coded images lie on the device, where reading and decoding them are one."
    no_transfer = "The coded images were copied to the device before the first epoch."
    decoder = OwnKernels()

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        check_size("resident_jpeg", request)
        refuse_transform("resident_jpeg", request, "it decodes whole batches")
        batch_bytes = request.batch_size * int(np.prod(request.manifest.image_size())) * 3
        self.round = max(1, ROUND_BYTES // batch_bytes) * request.batch_size
        self.labels = request.manifest.labels()
        self.decode_counts = DecodeCounts(self.decoder.name)
        self.streams: list[torch.cuda.Stream | None] = [None]
        self.store: CodedStore | None = None
        self.thread: ThreadPoolExecutor | None = None
        self.planned: tuple[int, Future[RoundPlan]] | None = None  # of which epoch

    def open(self) -> None:
        """Fill the store; raise Skip without the extension, and errors as `filled` does."""
        device = self.request.device
        require_extension("resident_jpeg", self.request)
        self.store = filled(self.request)
        self.thread = ThreadPoolExecutor(1, "gpufeed-order")
        if device.type == "cuda":
            self.streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]
            share(self.store.tensors, torch.cuda.current_stream(device), self.streams)

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown(cancel_futures=True)
        self.thread = self.store = self.planned = None

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        size, begin = self.request.batch_size, time.perf_counter()
        first, *others = self.streams
        with on(first):
            epoch = EpochRounds(self._plan_of(self.epoch, done), self.labels, self.store)
        share(epoch.tensors, first, others)
        rounds = len(epoch.plan.counts)
        following = self._decoded(epoch, 0)
        for number in range(rounds):
            (images, ready), start = following, number * self.round
            if number + 1 < rounds:
                following = self._decoded(epoch, number + 1)
            parts = (images, *(part[start : start + self.round] for part in (epoch.labels, epoch.ids)))
            for own in zip(*(part.split(size) for part in parts), strict=True):
                batch = Batch(*own, load_ms=(time.perf_counter() - begin) * 1e3)
                if ready is not None:
                    hand_over(batch, ready, torch.cuda.current_stream(self.request.device))
                yield batch
                begin = time.perf_counter()

    def _decoded(self, epoch: EpochRounds, number: int) -> Decoded:
        """Queue the decoding of a round on its stream."""
        stream = self.streams[number % len(self.streams)]
        with on(stream):
            images = epoch.round(number)
        here = slice(number * self.round, (number + 1) * self.round)
        kept = int((epoch.plan.kinds[here] == self.store.pixels).sum())
        self.decode_counts.add(self.decoder.name, len(images) - kept)
        self.decode_counts.add("pillow", kept)
        return images, None if stream is None else stream.record_event()

    def _plan_of(self, epoch: int, done: int) -> RoundPlan:
        """Return the plan of an epoch after its first `done` batches; have the thread plan the next epoch."""
        before, self.planned = self.planned, (epoch + 1, self.thread.submit(self._plan, epoch + 1, 0))
        if before is not None and before[0] == epoch and done == 0:
            return before[1].result()
        return self._plan(epoch, done)

    def _plan(self, epoch: int, done: int) -> RoundPlan:
        r = self.request
        order = epoch_order(self.split_ids, r.seed, epoch, r.shuffle, r.rank, r.world_size)
        order = order[done * r.batch_size :]
        return plan_rounds(order, np.searchsorted(self.split_ids, order), self.store, self.round)


def on(stream: "torch.cuda.Stream | None") -> AbstractContextManager:
    """Return a context in which a stream is the current one; None changes nothing."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def share(tensors: tuple[torch.Tensor, ...], made_on: "torch.cuda.Stream", users: list) -> None:
    """Let streams use another stream's tensors: they wait for it, and keep the memory until they end."""
    for stream in users:
        stream.wait_stream(made_on)
        for tensor in tensors:
            tensor.record_stream(stream)
