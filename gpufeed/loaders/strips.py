"""Strips decoded in every epoch, window by window, each window in one call on the device."""

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from gpufeed.loaders.base import Batch, LoadRequest, epoch_order, refuse_transform, require_store, send
from gpufeed.loaders.prefetch import PrefetchLoader
from gpufeed.stores.strip_backends.base import StripBackend
from gpufeed.stores.strips_reader import StripReader, Unit

# Decoded pixels of a window: 87,000 images of 64 x 64. Two are alive at once, three while a batch spans two.
WINDOW_BYTES = 2**30


class StripsLoader(PrefetchLoader):
    """A loader of strips; every epoch is a permutation of all samples.

    A split whose pixels fit a window of WINDOW_BYTES is decoded at the start of the epoch, and its order is
    that of every other loader. For a larger one, each epoch shuffles the strips, splits them into windows,
    and shuffles the samples within each. So two samples of one strip are never further apart than a window.
    Without shuffling, a split of several windows comes strip by strip. With several ranks, each rank decodes
    all strips of every window and keeps its share of the samples. With shuffling, as in training, an epoch's
    first window is decoded while the last one of the epoch before is in use; an evaluation has one epoch
    only.

    The equivalence check verifies the bytes of the strip set once; opening it does not.
    """

    no_decoding = "Strips are read and decoded in one pass over the file that holds them."
    no_transfer = "Strips are decoded where they are needed: no pixels are copied."

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        require_store("strips", request)
        refuse_transform("strips", request, "strips decode on the device")
        self.labels = request.manifest.labels()
        self.reader: StripReader | None = None
        self.decoding: torch.cuda.Stream | None = None  # for decoding; batches are gathered on `stream`
        self.units: list[Unit] = []
        self.pool: ThreadPoolExecutor | None = None
        self.ahead_of: Future[Begun] | None = None  # the start of the next epoch

    def open(self) -> None:
        super().open()
        r = self.request
        if r.device.type == "cuda":
            # one for all epochs: torch's allocator reuses freed memory only on the stream that used it
            self.decoding = torch.cuda.Stream(r.device)
        self.reader = StripReader(r.manifest, r.strips, r.device, r.threads, verify=False)
        self.units = self.reader.units(r.split)
        self.decode_counts = self.reader.decode_counts
        self.pool = ThreadPoolExecutor(1, "gpufeed-strips")

    @property
    def keeps_on(self) -> bool:
        return self.request.shuffle

    def close(self) -> None:
        super().close()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = self.ahead_of = None
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def files(self) -> list[str]:
        """Return the file of strips and the left-over files; unmap the former, so it can be evicted.

        The window decoded ahead is dropped.
        """
        self.drop()
        self.reader.let_go()
        paths = self.reader.files  # by sample id; empty if all are in strips
        alone = [unit.ids for unit in self.units if unit.strip is None]
        return [os.fspath(self.request.strips), *(os.fspath(paths[i]) for ids in alone for i in ids.tolist())]

    @property
    def decoder(self) -> StripBackend:
        """The decoder of an open loader's strips: its name, version and tolerance."""
        return self.reader.backend

    def drop(self) -> None:
        """Drop the window decoded ahead, and wait until nothing is being decoded."""
        if self.ahead_of is not None:
            self.ahead_of.cancel()
            self.ahead_of = None
        self.pool.submit(int).result()

    def windows(self, epoch: int) -> list[list[Unit]]:
        """Return the units of each window of an epoch, a function of (seed, epoch)."""
        units = self.units
        if self.request.shuffle:
            units = [units[i] for i in self._generator(epoch).permutation(len(units))]
        most = self._most_images()
        windows: list[list[Unit]] = [[]]
        held = 0
        for unit in units:
            if windows[-1] and held + len(unit.ids) > most:
                windows.append([])
                held = 0
            windows[-1].append(unit)
            held += len(unit.ids)
        return windows

    def order(self) -> np.ndarray:
        return self.order_of(self.epoch)

    def order_of(self, epoch: int) -> np.ndarray:
        """Return what `order` does for any epoch."""
        r = self.request
        if len(self.split_ids) * self._image_bytes() <= WINDOW_BYTES:
            return epoch_order(self.split_ids, r.seed, epoch, r.shuffle, r.rank, r.world_size)
        parts = [np.concatenate([unit.ids for unit in units]) for units in self.windows(epoch)]
        if r.shuffle:
            parts = [self._generator(epoch, place).permutation(ids) for place, ids in enumerate(parts, 1)]
        return np.concatenate(parts)[r.rank :: r.world_size]

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        return self._batches(order, self.epoch)

    def _batches(self, order: np.ndarray, epoch: int) -> Iterator[Batch]:
        """Yield the batches of the epoch; a batch may span two segments."""
        size, total, live = self.request.batch_size, len(order), []
        decoded = self._decoded(order, epoch)
        for start in range(0, total, size):
            end = min(start + size, total)
            while not live or live[-1].end < end:
                live.append(next(decoded))
            live = [window for window in live if window.end > start]
            yield joined([window.cut(max(start, window.start), min(end, window.end)) for window in live])

    def _segments(self, order: np.ndarray, epoch: int) -> list["Segment"]:
        """Split the order, or the rest of it, at the ends of its windows; return each part with its units."""
        windows = self.windows(epoch)
        window_of = np.full(len(self.labels), -1)
        for place, units in enumerate(windows):
            for unit in units:
                window_of[unit.ids] = place
        places = window_of[order]
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        segments = []
        for start, end in itertools.pairwise([*starts.tolist(), len(order)]):
            ids = order[start:end]
            units = [unit for unit in windows[places[start]] if np.isin(unit.ids, ids).any()]
            segments.append(Segment(start, end, ids, units))
        return segments

    def _decoded(self, order: np.ndarray, epoch: int) -> Iterator["Window"]:
        """Yield the windows of an epoch or its rest; decode the next one, or the next epoch's, meanwhile."""
        segments, first = self._begun(order, epoch)
        waiting: Future | None = None
        for following in [*segments[1:], None]:
            (window, done), first = first or waiting.result(), None
            waiting = None if following is None else self.pool.submit(self._decode, following)
            if following is None and self.keeps_on:
                self.ahead_of = self.pool.submit(self._begin, epoch + 1)
            if done is not None:
                current = torch.cuda.current_stream(self.request.device)
                current.wait_event(done)
                for tensor in (window.images, window.rows, window.labels, window.ids):
                    tensor.record_stream(current)  # allocated on the decoding stream, used on this one
            yield window

    def _begun(self, order: np.ndarray, epoch: int) -> tuple[list["Segment"], "Decoded"]:
        """Return the segments of an epoch or its rest, and the first window, which may be decoded already."""
        ahead, self.ahead_of = self.ahead_of, None
        # an error ahead may be about an epoch that is not needed: decoding again raises it if it is
        if ahead is not None and ahead.exception() is None and np.array_equal(ahead.result().order, order):
            begun = ahead.result()
        else:
            begun = self.pool.submit(self._begin, epoch, order).result()
        return begun.segments, begun.first

    def _begin(self, epoch: int, order: np.ndarray | None = None) -> "Begun":
        """Plan an epoch and decode its first window. order: None for the whole epoch."""
        order = self.order_of(epoch) if order is None else order
        segments = self._segments(order, epoch)
        return Begun(order, segments, self._decode(segments[0]))

    def _decode(self, segment: "Segment") -> "Decoded":
        """Decode a segment's units; runs in its own thread."""
        device, stream = self.request.device, self.decoding
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            found, images = self.reader.read(segment.units)
            sorter = np.argsort(found)
            rows = sorter[np.searchsorted(found, segment.ids, sorter=sorter)]
            columns = (rows, self.labels[segment.ids], segment.ids)
            window = Window(segment.start, segment.end, images, *(send(values, device) for values in columns))
            return window, None if stream is None else stream.record_event()

    def _most_images(self) -> int:
        """Return the number of images of a window: as few windows as WINDOW_BYTES allows, of similar size."""
        most, images = max(1, WINDOW_BYTES // self._image_bytes()), len(self.split_ids)
        even = -(-images // -(-images // most))
        return min(most, even + max(len(unit.ids) for unit in self.units))

    def _image_bytes(self) -> int:
        height, width = self.request.manifest.image_size()
        return height * width * 3

    def _generator(self, epoch: int, window: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.request.seed, epoch, window])


@dataclass(frozen=True)
class Segment:
    """A part of the epoch's order, order[start:end], and the units that hold its samples."""

    start: int
    end: int
    ids: np.ndarray  # int64 (end - start,)
    units: list[Unit]


@dataclass(frozen=True)
class Window:
    """A decoded segment on the device.

    images: uint8 (n, H, W, 3) as decoded; rows, labels, ids: int64 (end - start,), in the order of the epoch.
    rows: indices into `images`.
    """

    start: int
    end: int
    images: torch.Tensor
    rows: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor

    def cut(self, start: int, end: int) -> Batch:
        """Return the samples order[start:end] of the epoch, which are in this window."""
        here = slice(start - self.start, end - self.start)
        return Batch(self.images.index_select(0, self.rows[here]), self.labels[here], self.ids[here], 0.0)


# a window, and on CUDA the event after which it is ready
Decoded = tuple[Window, torch.cuda.Event | None]


@dataclass(frozen=True)
class Begun:
    """An epoch, or its rest, whose first window is decoded. order: int64 (n,)."""

    order: np.ndarray
    segments: list[Segment]
    first: Decoded


def joined(pieces: list[Batch]) -> Batch:
    """Concatenate parts of a batch."""
    if len(pieces) == 1:
        return pieces[0]
    parts = zip(*((piece.images, piece.labels, piece.ids) for piece in pieces), strict=True)
    return Batch(*(torch.cat(part) for part in parts), load_ms=0.0)
