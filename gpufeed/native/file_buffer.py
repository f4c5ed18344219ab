"""Whole files in one buffer, read by the extension's threads while others have the interpreter's lock."""

import errno
import os
from collections.abc import Sequence

import torch

SLACK = 1.25  # of a buffer's size over what was needed, so that it grows rarely
# as csrc/read_files.cpp
OTHER_CODES = {
    -1: (errno.EINVAL, "it is no regular file"),
    -2: (errno.ESTALE, "its size changed while it was read"),
}


class FileBuffer:
    """Memory for the files of one call after the other, which grows as needed. For one thread at a time.

    threads: at most so many read. pinned: page-locked memory, for copies to CUDA that nobody waits for.
    """

    def __init__(self, threads: int = 4, pinned: bool = False):
        self.threads, self.pinned = threads, pinned
        self.memory = torch.empty(0, dtype=torch.uint8)

    def read(self, paths: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (data uint8 (bytes,), offsets int64 (N + 1,)): file i is data[offsets[i] : offsets[i + 1]].

        paths: of any bytes, as os.fsencode gives them. Both are valid until the next call. Raises OSError for
        the first file that cannot be read; one whose size changes meanwhile is such a file, and one of more
        than 2 GiB.
        """
        names = torch.frombuffer(bytearray(b"".join(path + b"\0" for path in paths)), dtype=torch.uint8)
        while True:
            offsets, codes = torch.ops.gpufeed.read_files(names, self.memory, self.threads)
            if codes.any():
                place = int(codes.ne(0).to(torch.uint8).argmax())
                code = int(codes[place])
                number, reason = OTHER_CODES.get(code) or (code, os.strerror(code))
                raise OSError(number, reason, os.fsdecode(paths[place]))
            needed = int(offsets[-1])
            if needed <= len(self.memory):
                return self.memory[:needed], offsets
            self.memory = torch.empty(int(SLACK * needed), dtype=torch.uint8, pin_memory=self.pinned)
