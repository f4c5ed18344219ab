"""SPDL with threads or processes that each read and decode whole batches by FFmpeg.

`workers` are its threads, 0 for one a core; `prefetch_factor` is the size of its output queue in batches.
They are threads of the training process (spdl_pipeline.py), or with `persistent_workers` of a process that
stays for all epochs (spdl_process.py), which SPDL's documentation recommends for production. In loader
spdl_processes they are processes (spdl_processes.py), which it recommends if threads wait for the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpufeed.decoders.base import DecodeCounts, Tolerance
from gpufeed.loaders.base import Batch, LoadRequest, send, upload
from gpufeed.loaders.prefetch import PrefetchLoader
from gpufeed.loaders.spdl_batches import NAME, BatchMaker, Ffmpeg

if TYPE_CHECKING:
    from gpufeed.loaders.spdl_pipeline import Threads
    from gpufeed.loaders.spdl_process import OwnProcess
    from gpufeed.loaders.spdl_processes import Processes


class SpdlLoader(PrefetchLoader):
    """The batches of an SPDL pipeline, copied ahead on a side stream as in its documentation.

    Pillow decodes files that FFmpeg refuses, which `decode_counts` credits to Pillow.
    """

    no_decoding = None
    # FFmpeg's scaler rounds its weights: on PNG files up to 13 from Pillow, and at most 0.5 in the mean
    resampling = Tolerance(16, 1.0)

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        self.maker = BatchMaker(request)
        self.labels = request.manifest.labels()
        self.pipeline: Threads | OwnProcess | Processes | None = None
        self.decode_counts = DecodeCounts(NAME)

    @property
    def library(self) -> Ffmpeg | None:
        """The decoder, once the loader is open."""
        return self.maker.library

    def open(self) -> None:
        super().open()
        self.maker.open()
        self.pipeline = self._pipeline()
        self.pipeline.open()

    def _pipeline(self) -> Threads | OwnProcess | Processes:
        # imported here, as these modules import SPDL, which a node may lack
        if self.request.persistent_workers:
            from gpufeed.loaders.spdl_process import OwnProcess

            return OwnProcess(self.request, self.share)
        from gpufeed.loaders.spdl_pipeline import Threads

        return Threads(self.maker)

    def close(self) -> None:
        super().close()
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None:
            pipeline.close()

    def files(self) -> list[str]:
        return self.files_of_split()

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        return self._made(order, self.epoch)

    def _made(self, order: np.ndarray, epoch: int) -> Iterator[Batch]:
        r = self.request
        ids, labels = send(order, r.device), send(self.labels[order], r.device)
        start = 0
        for made in self.pipeline.run(order, epoch):
            self.decode_counts.add(NAME, len(made.images) - made.left)
            self.decode_counts.add("pillow", made.left)
            images, transfer = upload(made.images, r.device)
            end = start + len(images)
            yield Batch(images, labels[start:end], ids[start:end], 0.0, transfer)
            start = end


class SpdlProcessesLoader(SpdlLoader):
    """The same with `workers` processes, which stay for all epochs, in place of threads."""

    def _pipeline(self) -> Processes:
        from gpufeed.loaders.spdl_processes import Processes

        return Processes(self.request, self.share)
