"""The bytes of a batch's files, read by a thread of its own while the batch before is decoded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.file_bytes import read_file


@dataclass(frozen=True)
class FileBatch:
    """The encoded files of one batch and their sample ids, int64 (n,)."""

    ids: np.ndarray
    encoded: list[bytes]


class FileReader:
    """Reads the files of a manifest by sample id, with no more system calls than they need."""

    def __init__(self, manifest: Manifest):
        self.paths = [os.fspath(path) for path in manifest.paths()]

    def batches(self, order: np.ndarray, batch_size: int) -> Iterator[FileBatch]:
        """The files of `order` (sample ids, int64), batch by batch; raises GpufeedError naming a bad one."""
        for start in range(0, len(order), batch_size):
            ids = order[start : start + batch_size]
            yield FileBatch(ids, [self.read(sample_id) for sample_id in ids.tolist()])

    def read(self, sample_id: int) -> bytes:
        """The whole file of one sample; raises GpufeedError if it cannot be read."""
        return read_file(self.paths[sample_id])
