"""DALI reads files in a pipeline of its own, beside the one that decodes.

Operators of DALI's CPU backend take turns in a pipeline (OperatorConcurrency, DALI 2.4): in the one that
decodes, nothing is decoded while files are opened and read. A quarter of the threads read: of 16, from the
page cache, four gave a fifth more images than all, with less CPU for each (docs/performance.md). On storage
that takes 2 ms to open a file 16 give three times as many; DALI's own reader has one thread.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

if TYPE_CHECKING:
    from nvidia.dali.tensors import TensorListCPU

NAMES = "names"


@dataclass(frozen=True, eq=False)
class Planned:
    """A batch that is to come. ids: int64 (n,), its samples."""

    epoch: int
    ids: np.ndarray

    def same(self, other: "Planned") -> bool:
        return self.epoch == other.epoch and np.array_equal(self.ids, other.ids)


class FilePipeline:
    """The bytes of one batch of files after the other, read while others are at work."""

    def __init__(self, paths: list[str], batch_size: int, threads: int):
        """paths: of all files, by sample id. batch_size: of the largest batch. threads: that decode."""
        # bytes of one length: shorter ones end in zeros, where DALI sees their end
        self.names = np.array([os.fsencode(path) for path in paths])
        self.batch: Planned | None = None  # begun and not taken yet
        self.pipeline = Pipeline(
            batch_size=batch_size,
            num_threads=min(threads, max(2, threads // 4)),
            device_id=None,
            prefetch_queue_depth=1,  # the first call begins as many
        )
        with self.pipeline:
            names = fn.external_source(name=NAMES, device="cpu", dtype=types.UINT8, ndim=1)
            # mapping each small file into memory takes twice as long as reading it
            self.pipeline.set_outputs(fn.io.file.read(names, dont_use_mmap=True))
        self.pipeline.build()

    def begin(self, batch: "Planned") -> None:
        """Has the files of a batch read; the one before must have been taken."""
        self.pipeline.feed_input(NAMES, self.names[batch.ids].view(np.uint8).reshape(len(batch.ids), -1))
        self.pipeline.schedule_run()
        self.batch = batch

    def take(self) -> "tuple[Planned, TensorListCPU]":
        """What was begun, and the bytes of its files, uint8 (bytes,) each, valid until the next `begin`.

        Raises RuntimeError for a file that cannot be read, after which there is no next batch.
        """
        (read,) = self.pipeline.share_outputs()  # waits, without the interpreter's lock
        self.pipeline.release_outputs()
        batch, self.batch = self.batch, None
        return batch, read
