"""DALI in the sweep of decoders: its own reader reads the files, as in DALI's loaders."""

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import torch

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.encoded_file import read_file
from gpufeed.decoders.parallel import SLOTS, CallBulk, Files
from gpufeed.loaders.dali import what_dali_says
from gpufeed.loaders.dali_reader import DEPTH, Planned, ReadingPipeline


class DaliBulk(CallBulk):
    """DALI reads and decodes; if it does not take every file, it is fed bytes like other decoders.

    A run continues where the previous one ended, and reads nothing before it begins.
    """

    def __init__(self, decoder: str, cores: int, device: torch.device):
        super().__init__(decoder, cores, device)
        self.reading: ReadingPipeline | None = None

    def open(self, files: Files) -> None:
        super().open(files)
        self.reading = None
        pairs = zip(files.paths, files.shapes, strict=True)
        if all(self.decoder.takes_all([read_file(path)], shape[:2]) for path, shape in pairs):
            whole = -(-len(files.paths) // files.batch_size) * files.batch_size
            batches = (np.arange(whole) % len(files.paths)).reshape(-1, files.batch_size)
            self.reading = ReadingPipeline(self.decoder.pipeline, files.paths, files.batch_size, self.device)
            self.reading.follow(Planned(0, ids) for ids in cycle(batches))
            # the first call always starts DEPTH batches: take them, so that later runs find none ready
            for _ in self._read_by_dali(DEPTH):
                pass

    def run(self, images: int) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        if self.reading is None:
            return super().run(images)
        return self._read_by_dali(-(-images // self.files.batch_size))

    def _read_by_dali(self, batches: int) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        self.reading.allow(batches)
        on_cuda = self.device.type == "cuda"  # DALI then delivers to the GPU
        for number in range(batches):
            try:
                ids = self.reading.coming()
                size = int(self.files.bounds(ids)[-1])
                if on_cuda:
                    flat = torch.empty(size, dtype=torch.uint8, device=self.device)
                else:
                    flat = self.slots.free(number % SLOTS)
                filled = self.reading.fill(ids, flat, [self.files.shapes[i] for i in ids])
            except RuntimeError as error:
                raise self.changed(what_dali_says(error)) from error
            if not filled:
                raise self.changed("images of other sizes")
            yield self.files.images(ids, flat if on_cuda else self.slots.deliver(number % SLOTS, size))

    def changed(self, found: str) -> GpufeedError:
        """Return the error for files that have changed since `open`; later runs are fed bytes."""
        self.reading = None
        return GpufeedError(
            f"{found}, from DALI's reader",
            "the images that were there when it began, in their sizes",
            "prepare the dataset again: its files have changed",
        )

    def close(self) -> None:
        self.reading = None
        super().close()
