"""The bytes of a batch's files, read by a thread of its own while the batch before is decoded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpufeed.data.manifest import Manifest
from gpufeed.decode.base import bad_file

PIECE = 64 * 2**10  # bytes asked for at first: most small images come whole


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
        try:
            return read_file(self.paths[sample_id])
        except OSError as error:
            raise bad_file(self.paths[sample_id], error.strerror or str(error)) from error


def read_file(path: str) -> bytes:
    """A whole file by open, read and close: Path.read_bytes makes a file object and asks for the size too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, PIECE)
        if len(data) < PIECE:  # a regular file gives less than was asked for at its end only
            return data
        pieces = [data]
        while data := os.read(descriptor, os.fstat(descriptor).st_size):
            pieces.append(data)
        return b"".join(pieces)
    finally:
        os.close(descriptor)
