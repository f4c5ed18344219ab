"""The DALI pipeline behind dali_cpu and dali_gpu: encoded files in, one list of images out."""

from collections.abc import Callable

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

MOST_FILES = 1024  # in one run: 1024 images of 224 x 224 pixels are 154 MB


class DecodePipeline:
    """Runs of at most MOST_FILES files. DALI gives up a pipeline in which one file cannot be decoded."""

    def __init__(self, device_id: int | None, threads: int, **decoder_options):
        """device_id: None for CPU alone, which needs no driver. decoder_options: of fn.decoders.image."""
        self.device_id, self.threads, self.options = device_id, threads, decoder_options
        self.pipeline = self._build()

    def _build(self) -> Pipeline:
        pipeline = Pipeline(
            batch_size=MOST_FILES,
            num_threads=self.threads,
            device_id=self.device_id,
            prefetch_queue_depth=1,  # each run is fed and awaited; a deeper queue would only take memory
        )
        with pipeline:
            files = fn.external_source(name="files", device="cpu", dtype=types.UINT8, ndim=1)
            pipeline.set_outputs(
                fn.decoders.image(files, output_type=types.RGB, adjust_orientation=False, **self.options)
            )
        pipeline.build()
        return pipeline

    def decode(self, files: list[bytes], unpack: Callable) -> list:
        """All images, as `unpack` makes them from each TensorList; raises RuntimeError for a bad file."""
        images: list = []
        for start in range(0, len(files), MOST_FILES):
            images += self._run(files[start : start + MOST_FILES], unpack)
        return images

    def _run(self, files: list[bytes], unpack: Callable) -> list:
        try:
            self.pipeline.feed_input("files", [np.frombuffer(data, np.uint8) for data in files])
            (output,) = self.pipeline.run()
        except RuntimeError:
            self.pipeline = self._build()  # 3 ms
            raise
        return unpack(output)
