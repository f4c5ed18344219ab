"""DALI reads, decodes and augments planned batches in order.

It gets the files of a batch when the batch begins, reads them on its own threads and works ahead, also across
epochs. A separate pipeline reads the files: in a pipeline, operators of DALI's CPU backend run one at a time
(OperatorConcurrency, DALI 2.4), so that a single one would not decode while it opens files.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from gpufeed.augment.dali import DaliAugment, DaliCrops
from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.dali_pipeline import DecodePipeline, copy_output

if TYPE_CHECKING:
    from nvidia.dali.tensors import TensorListCPU

NAMES = "names"
OTHER_SIZES = "images of other sizes than the manifest says"


@dataclass(frozen=True, eq=False)
class Planned:
    """A batch to make. ids: int64 (n,), its samples."""

    epoch: int
    ids: np.ndarray

    def same(self, other: "Planned") -> bool:
        return self.epoch == other.epoch and np.array_equal(self.ids, other.ids)


class FilePipeline:
    """A pipeline that reads the bytes of one batch of files after the other, while others decode.

    A quarter of the threads read: of 16, from the page cache, four yielded a fifth more images than all, with
    less CPU time for each (docs/lab/loaders.md). On storage that takes 2 ms to open a file, 16 yield three
    times as many; DALI's own reader has one thread.
    """

    def __init__(self, paths: list[str], batch_size: int, threads: int, sizes: np.ndarray | None = None):
        """Build the pipeline. paths: of all files, by sample id. batch_size: of the largest batch.

        threads: that decode. sizes: int64 (N, 2), height and width that each file must have; None: any.
        """
        self.sizes = sizes
        # padded with zeros to one length; DALI stops at the first zero
        self.names = np.array([os.fsencode(path) for path in paths])
        self.batch: Planned | None = None  # begun and not taken yet
        self.pipeline = Pipeline(
            batch_size=batch_size,
            num_threads=min(threads, max(2, threads // 4)),
            device_id=None,
            prefetch_queue_depth=1,  # the first call begins as many
            exec_dynamic=True,  # the default; the decoding pipeline reads outputs after their release
        )
        with self.pipeline:
            names = fn.external_source(name=NAMES, device="cpu", dtype=types.UINT8, ndim=1)
            # mapping each small file into memory takes twice as long as reading it
            files = fn.io.file.read(names, dont_use_mmap=True)
            shapes = [] if sizes is None else [fn.peek_image_shape(files, adjust_orientation=False)]
            self.pipeline.set_outputs(files, *shapes)
        self.pipeline.build()

    def begin(self, batch: "Planned") -> None:
        """Start reading the files of a batch; the batch before must have been taken."""
        self.pipeline.feed_input(NAMES, self.names[batch.ids].view(np.uint8).reshape(len(batch.ids), -1))
        self.pipeline.schedule_run()
        self.batch = batch

    def take(self) -> "tuple[Planned, TensorListCPU]":
        """Return the batch that was begun and the bytes of its files, uint8 (bytes,), valid while referenced.

        Raises RuntimeError for a file that cannot be read or has another size; then there is no next batch.
        """
        read, *shapes = self.pipeline.share_outputs()  # waits without the GIL
        self.pipeline.release_outputs()
        batch, self.batch = self.batch, None
        for found in shapes:
            if not np.array_equal(np.array(found.as_tensor())[:, :2], self.sizes[batch.ids]):
                raise RuntimeError(OTHER_SIZES)
        return batch, read


DEPTH = 3  # batches that DALI makes ahead, while it reads the files of one more
FILES, IDS = "files", "ids"  # the inputs of a batch, beside its drawn values


class ReadingPipeline:
    """A pipeline that reads, decodes and augments the batches given to `follow`.

    It decodes DEPTH batches ahead and reads one more, but none beyond the limit of `allow`. Its threads end
    when it is garbage-collected.
    """

    def __init__(
        self,
        decoder: DecodePipeline,
        paths: list[str],
        batch_size: int,
        device: torch.device,
        work: DaliAugment | DaliCrops | None = None,
    ):
        """Build the pipeline. decoder: its threads, options, device decode. paths: of all files, by id.

        batch_size: of the largest batch. device: where DALI copies batches to. work: what follows decoding.
        """
        self.decoder, self.batch_size, self.work = decoder, batch_size, work
        self.paths = paths
        self.on_cuda = device.type == "cuda"
        self.device_id = device.index
        if self.on_cuda and device.index is None:  # now, since `_build` may run in another thread later
            self.device_id = torch.cuda.current_device()
        self.planned: Iterator[Planned] | None = None
        self.given, self.allowed = 0, None
        self.lock = threading.Lock()  # two iterations at once get wrong_ids instead of mixed batches
        self._build()

    def _build(self) -> None:
        self.begun: deque[Planned] = deque()  # batches in the decoding pipeline
        # their bytes, which it does not copy, and those of one batch more
        self.read: deque[TensorListCPU] = deque(maxlen=DEPTH + 1)
        self.stopped_by: str | None = None  # the error that prevents the batch after them, as text
        self.started = False
        sizes = self.work.sizes if isinstance(self.work, DaliCrops) else None
        self.files = FilePipeline(self.paths, self.batch_size, self.decoder.threads, sizes)
        self.pipeline = Pipeline(
            batch_size=self.batch_size,
            num_threads=self.decoder.threads,
            device_id=self.device_id,
            prefetch_queue_depth=DEPTH,
            exec_dynamic=True,  # the default; `_run` needs outputs that outlive their release
        )
        with self.pipeline:
            files = fn.external_source(name=FILES, device="cpu", dtype=types.UINT8, ndim=1, no_copy=True)
            ids = fn.external_source(name=IDS, device="cpu", dtype=types.INT64, ndim=0)
            output = self.decoder.output(files, self.work)
            # DALI's copy may overlap its next batches
            self.pipeline.set_outputs(output.gpu() if self.on_cuda else output, ids)
        self.pipeline.build()

    def follow(self, planned: Iterator[Planned]) -> None:
        """Set the batches to make from now on, endlessly; discard other batches that DALI has begun."""
        with self.lock:
            begun = [*self.begun, *([self.files.batch] if self.files.batch else [])]
            first = list(islice(planned, len(begun)))
            if self.stopped_by is not None or not all(map(Planned.same, begun, first)):
                self._throw_away()
                planned = chain(first, planned)
            self.planned = planned

    def allow(self, batches: int) -> None:
        """Limit the batches to begin, from now on: so many more than have been delivered."""
        self.allowed = self.given + batches

    def coming(self) -> np.ndarray:
        """Return the samples of the next batch, int64 (n,), empty if it must not be begun.

        Raises RuntimeError if one of its files cannot be read.
        """
        self._work_ahead()
        if self.stopped_by is not None and not self.begun:
            raise RuntimeError(self.stopped_by)
        return self.begun[0].ids if self.begun else np.empty(0, np.int64)

    def fill(
        self, ids: np.ndarray, out: torch.Tensor, shapes: Sequence[tuple[int, ...]] | None = None
    ) -> bool:
        """Copy the next batch to `out`, contiguous (n, ...) on the requested device.

        shapes: as in copy_output. Return False if the images have another shape. ids: int64 (n,), the
        expected samples. Raises GpufeedError if others come next, and RuntimeError for a file that DALI
        refuses; then there is no next batch.
        """
        with self.lock:
            if not np.array_equal(self.coming(), ids):
                raise wrong_ids(self.coming(), ids)
            output, read = self._run()
            found = np.array(read.as_tensor()).ravel()
            if not np.array_equal(found, ids):
                raise wrong_ids(found, ids)
            return copy_output(output, out, shapes)

    def _run(self) -> "tuple[object, TensorListCPU]":
        """Return the next batch's images and ids, int64, which DALI keeps while they are referenced.

        Also waits for the files of a later batch, if they are not read yet.
        """
        found = self.pipeline.share_outputs()  # waits without the GIL
        self.pipeline.release_outputs()
        self.begun.popleft()
        self.given += 1
        self._work_ahead()
        return found

    def _work_ahead(self) -> None:
        """Have DALI begin batches until DEPTH are in flight and one more is read, if `allow` allows it."""
        if self.planned is None or self.stopped_by is not None:
            return
        try:
            while len(self.begun) < DEPTH and self._may_begin():
                # the first call begins DEPTH batches; a bad file in one of them stops all of them
                fed = [self._feed() for _ in range(1 if self.started else DEPTH)]
                self.pipeline.schedule_run()
                self.started = True
                self.begun += fed
            if self.files.batch is None and self._may_begin():
                self.files.begin(next(self.planned))
        except BaseException as error:  # after any error inputs may be out of step
            self.stopped_by = str(error) or repr(error)
            if not isinstance(error, RuntimeError):  # DALI's error is raised with its batch
                raise

    def _may_begin(self) -> bool:
        """Return whether the decoding pipeline may begin one more batch."""
        return self.allowed is None or self.given + len(self.begun) < self.allowed

    def _feed(self) -> Planned:
        """Wait for the next batch's files and feed them to the decoding pipeline."""
        if self.files.batch is None:
            self.files.begin(next(self.planned))
        batch, files = self.files.take()
        self.read.append(files)
        inputs = {
            FILES: files,
            IDS: np.ascontiguousarray(batch.ids),
            **(self.work.values(batch.ids, batch.epoch) if self.work is not None else {}),
        }
        for name, values in inputs.items():  # DALI copies all but the files
            self.pipeline.feed_input(name, values)
        return batch

    def _throw_away(self) -> None:
        """Discard all batches that DALI has begun."""
        if self.stopped_by is not None:
            self._build()
        try:
            while self.begun:
                self.pipeline.share_outputs()
                self.begun.popleft()
                self.pipeline.release_outputs()
            if self.files.batch is not None:
                self.files.take()
        # DALI refuses a file of a discarded batch; or an earlier call was interrupted
        except (RuntimeError, StopIteration):
            self._build()


def wrong_ids(found: np.ndarray, expected: np.ndarray) -> GpufeedError:
    """Return the error for a batch of other samples than the expected ones; both int64 (n,)."""
    return GpufeedError(
        f"samples {found[:8].tolist()}... from DALI's reader",
        f"samples {expected[:8].tolist()}..., as in the epoch's order",
        "iterate over a loader once at a time; if you do, use another loader and report this as a bug",
    )
