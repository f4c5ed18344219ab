"""Reads whole files into one buffer, by threads of the extension that do not hold the GIL."""

import errno
import os
from collections.abc import Sequence

import torch

SLACK = 1.25  # buffer size relative to what is needed, so that it rarely grows
# as csrc/read_files.cpp
OTHER_CODES = {
    -1: (errno.EINVAL, "it is no regular file"),
    -2: (errno.ESTALE, "its size changed while it was read"),
}


class FileBuffer:
    """Memory that is reused from call to call, and grows as needed. For one thread at a time.

    threads: the most that read. pinned: page-locked memory, for asynchronous copies to CUDA.
    """

    def __init__(self, threads: int = 4, pinned: bool = False):
        self.threads, self.pinned = threads, pinned
        self.memory = torch.empty(0, dtype=torch.uint8)

    def read(self, paths: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (data uint8 (bytes,), offsets int64 (N + 1,)): file i is data[offsets[i] : offsets[i + 1]].

        paths: any bytes, as from os.fsencode. Both results are valid until the next call. Raises OSError for
        the first file that cannot be read, changes its size meanwhile, or exceeds 2 GiB.
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
