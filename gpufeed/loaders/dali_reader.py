"""DALI's own reader over a list of files that is laid out in the order in which the loader promises them.

So DALI reads, decodes and works ahead without the interpreter, across the ends of epochs too, and yet order,
ranks and state are the loader's. DALI's own shuffling and sharding stay out of it.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline

from gpufeed.augment.dali import DaliAugment
from gpufeed.data.disk import enough_disk
from gpufeed.decode.dali_pipeline import DecodePipeline, copy_output
from gpufeed.errors import GpufeedError

if TYPE_CHECKING:
    from nvidia.dali.tensors import TensorListCPU

DEPTH = 2  # batches that DALI makes ahead
LOST = -1  # no batch's number


@dataclass(frozen=True)
class Stretch:
    """An epoch, or its rest. ids: int64 (n,), the samples in their order, at least one."""

    epoch: int
    ids: np.ndarray

    def rows(self, batch_size: int) -> np.ndarray:
        """Whole batches, int64 (batches, batch_size): the last sample again and again fills the last one."""
        return np.pad(self.ids, (0, -len(self.ids) % batch_size), mode="edge").reshape(-1, batch_size)


class ReadingPipeline:
    """Reads, decodes and augments the batches of some stretches, one behind the other, then all over again.

    It works DEPTH batches ahead, but not beyond the last one that it may begin: `allow`. Its threads end
    with it, once nothing refers to it any more.
    """

    def __init__(
        self,
        decoder: DecodePipeline,
        paths: list[str],
        stretches: list[Stretch],
        batch_size: int,
        augment: DaliAugment | None = None,
    ):
        """decoder: whose device, threads and options these are. paths: of all files, by sample id."""
        self.batch_size = batch_size
        rows = [stretch.rows(batch_size) for stretch in stretches]
        self.ids = np.concatenate(rows)  # int64 (batches, batch_size)
        epochs = np.repeat([stretch.epoch for stretch in stretches], [len(part) for part in rows])
        starts = np.cumsum([0, *(len(part) for part in rows[:-1])])
        self.starts = dict(zip(starts.tolist(), stretches, strict=True))
        self.next = 0  # the batch that comes next
        self.scheduled = self.given = 0  # batches so far
        self.allowed = len(self.ids)
        self.pipeline = self._build(decoder, paths, epochs, augment)

    def _build(
        self, decoder: DecodePipeline, paths: list[str], epochs: np.ndarray, augment: DaliAugment | None
    ) -> Pipeline:
        pipeline = Pipeline(
            batch_size=self.batch_size,
            num_threads=decoder.threads,
            device_id=decoder.device_id,
            prefetch_queue_depth=DEPTH,
            exec_dynamic=True,  # the default; `_run` needs outputs that outlast their release
        )
        with listed(paths, self.ids.ravel()) as file_list:
            with pipeline:
                files, ids = fn.readers.file(
                    file_list=file_list,
                    dont_use_mmap=True,  # one thread reads: 95k files of 2 kB per second, 59k if it maps them
                )
                output = decoder.images(files)
                if augment is not None:
                    output = augment.graph(output, drawn(augment, self.ids, epochs))
                pipeline.set_outputs(output, ids)
            pipeline.build()  # reads the list, with the interpreter's lock held
        return pipeline

    def allow(self, batches: int) -> None:
        """So many more batches than have been given may be begun, from now on."""
        self.allowed = self.given + batches

    def continues(self, epoch: int, ids: np.ndarray) -> bool:
        """Whether just these batches come next."""
        stretch = self.starts.get(self.next) if self.given < self.allowed else None
        return stretch is not None and stretch.epoch == epoch and np.array_equal(stretch.ids, ids)

    def fill(self, ids: np.ndarray, out: torch.Tensor) -> bool:
        """The next batch in the first rows of `out`, contiguous (batch_size, ...) on the pipeline's device.

        False if the images have another shape. ids: int64 (n,), what the loader promises; raises
        GpufeedError if DALI has read other files, and RuntimeError for what DALI refuses. After any of
        these there is no next batch.
        """
        place, self.next = self.next, LOST
        if place == LOST or self.given >= self.allowed:
            raise wrong_ids(np.empty(0, np.int64), ids)
        output, read = self._run()
        found = np.array(read.as_tensor()).ravel()[: len(ids)]
        if not np.array_equal(found, ids):
            raise wrong_ids(found, ids)
        if not copy_output(output, out):
            return False
        self.next = (place + 1) % len(self.ids)
        return True

    def _run(self) -> "tuple[object, TensorListCPU]":
        """The next batch's images and their ids, int32, kept by DALI as long as they are referred to."""
        self._work_ahead()
        found = self.pipeline.share_outputs()  # waits, without the interpreter's lock
        self.pipeline.release_outputs()
        self.given += 1
        self._work_ahead()
        return found

    def _work_ahead(self) -> None:
        """Has DALI begin batches until DEPTH are under way, but none behind the last one."""
        while self.scheduled < min(self.given + DEPTH, self.allowed):
            self.scheduled += 1 if self.scheduled else DEPTH  # the first call begins DEPTH
            self.pipeline.schedule_run()


@contextmanager
def listed(paths: list[str], ids: np.ndarray) -> Iterator[str]:
    """A temporary list of files, `path label` a line, the label being the sample id; ids: int64 (n,).

    For 400,000 samples DALI takes 0.16 s to get it, and 0.62 s for lists of Python.
    """
    here = os.getcwd()  # DALI takes relative paths for those beside the list
    lines = [f"{os.path.join(here, path)} {sample_id}\n" for sample_id, path in enumerate(paths)]
    with (
        enough_disk(Path(tempfile.gettempdir())),
        tempfile.NamedTemporaryFile("w", prefix="gpufeed-", suffix=".txt", newline="\n") as file,
    ):
        file.write("".join(map(lines.__getitem__, ids.tolist())))
        file.flush()
        yield file.name


def drawn(augment: DaliAugment, ids: np.ndarray, epochs: np.ndarray) -> dict[str, DataNode]:
    """The nodes that bring what the augment draws for each batch; ids: int64 (batches, batch_size)."""
    if not augment.inputs:
        return {}

    def values(batch: int) -> list[np.ndarray]:
        found = augment.values(ids[batch], int(epochs[batch]))
        return [found[name] for name in augment.inputs]

    source: Callable[[int], list[np.ndarray]] = values  # DALI numbers the batches from 0
    nodes = fn.external_source(
        source=source, num_outputs=len(augment.inputs), device="cpu", dtype=types.FLOAT, ndim=0
    )
    return dict(zip(augment.inputs, nodes, strict=True))


def wrong_ids(found: np.ndarray, expected: np.ndarray) -> GpufeedError:
    """The error for a batch of other samples than the promised ones; both int64 (n,)."""
    return GpufeedError(
        f"samples {found[:8].tolist()}... from DALI's reader",
        f"samples {expected[:8].tolist()}..., as the epoch's order has them",
        "iterate over a loader once at a time; if you do, use another loader and tell gpufeed's maintainers",
    )
