"""The DALI pipeline behind dali_cpu and dali_gpu: encoded files in, one list of images out."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_void_p
from typing import Protocol

import numpy as np
import torch
from nvidia.dali import fn, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import feed_ndarray

from gpufeed.decoders.image_transfer import split

# otherwise nvJPEG before 13.2 prints two lines for each image of subsampled chroma that it decodes in part
os.environ.setdefault("DALI_NVIMGCODEC_LOG_LEVEL", "1")
MOST_FILES = 1024  # in one run: 1024 images of 224 x 224 pixels are 154 MB


class Work(Protocol):
    """What a pipeline does to decoded images. inputs: names of its inputs, each a value for every file."""

    inputs: tuple[str, ...]

    def part(self, values: Mapping[str, DataNode]) -> dict[str, DataNode]:
        """Return `start` and `shape` (rows, columns) of the part of each image to decode; {}: all of it."""

    def graph(self, images: DataNode, values: Mapping[str, DataNode]) -> DataNode:
        """Return the node of the processed images. values: the nodes of `inputs`."""


class DecodePipeline:
    """A pipeline run with at most MOST_FILES files at a time. It is rebuilt after a file that DALI refuses.

    cuts_on_gpu: whether the GPU's decoder can decode a part of an image. With interpolated chroma nvJPEG can
    from version 13.2 on; before, images of subsampled chroma go to the CPU.
    """

    cuts_on_gpu = False

    def __init__(
        self,
        device_id: int | None,
        threads: int,
        work: Work | None = None,
        resize: tuple[int, int] | None = None,
        **decoder_options,
    ):
        """Build the pipeline. device_id: None for the CPU alone, which needs no driver.

        work: what follows decoding. resize: (height, width) to which decoded images are resized; None keeps
        their size. decoder_options: of fn.decoders.image.
        """
        self.device_id, self.threads, self.options = device_id, threads, decoder_options
        self.work, self.resize = work, resize
        self.pipeline = self._build()

    def _build(self) -> Pipeline:
        pipeline = Pipeline(
            batch_size=MOST_FILES,
            num_threads=self.threads,
            device_id=self.device_id,
            prefetch_queue_depth=1,  # each run is fed and awaited; a deeper queue would only use memory
        )
        with pipeline:
            files = fn.external_source(name="files", device="cpu", dtype=types.UINT8, ndim=1)
            pipeline.set_outputs(self.output(files, self.work))
        pipeline.build()
        return pipeline

    def output(self, files: DataNode, work: Work | None) -> DataNode:
        """Return the output node for encoded files, in a pipeline on this one's device."""
        values = {name: fn.external_source(name=name, device="cpu") for name in work.inputs} if work else {}
        images = self.images(files, work.part(values) if work else {})
        return images if work is None else work.graph(images, values)

    @property
    def decoding(self) -> dict[str, object]:
        """Options of fn.decoders.image and its like."""
        return {"output_type": types.RGB, "adjust_orientation": False, **self.options}

    def images(self, files: DataNode, part: Mapping[str, DataNode] | None = None) -> DataNode:
        """Return the node that decodes encoded files to uint8 (H, W, 3), in a pipeline on this one's device.

        part: from Work.part.
        """
        if part and (self.device_id is None or self.cuts_on_gpu):
            # skips rows and columns outside the part: a fifth less CPU time on photographs, the same pixels
            images = fn.decoders.image_slice(files, axes=[0, 1], **part, **self.decoding)
        else:
            images = fn.decoders.image(files, **self.decoding)
            images = fn.slice(images, axes=[0, 1], **part) if part else images
        return images if self.resize is None else stretched(images, self.resize)

    def decode(self, files: list[bytes], device: torch.device) -> list[torch.Tensor]:
        """Return all images on `device`, which is the pipeline's; raise RuntimeError for a bad file."""
        return [image for _, output in self.runs(files) for image in copied(output, device)]

    def runs(
        self, files: list[bytes], values: Mapping[str, np.ndarray] | None = None
    ) -> Iterator[tuple[slice, object]]:
        """Yield the places of some files and their TensorList, which is valid until the next one.

        values: an array (n, ...) for each input of `work`. Raises RuntimeError for a file that DALI refuses.
        """
        for start in range(0, len(files), MOST_FILES):
            places = slice(start, min(start + MOST_FILES, len(files)))
            yield places, self._run(files[places], {name: v[places] for name, v in (values or {}).items()})

    def _run(self, files: list[bytes], values: Mapping[str, np.ndarray]) -> object:
        try:
            self.pipeline.feed_input("files", [np.frombuffer(data, np.uint8) for data in files])
            for name, numbers in values.items():
                self.pipeline.feed_input(name, numbers)
            (output,) = self.pipeline.run()
        except RuntimeError:
            self.pipeline = self._build()  # 3 ms
            raise
        return output

    def fill(
        self, files: list[bytes], out: torch.Tensor, values: Mapping[str, np.ndarray] | None = None
    ) -> bool:
        """Write the outputs of all files to `out`, contiguous, (n, ...) on the pipeline's device.

        Return False if their shapes differ from its rows. Raises RuntimeError for a file that DALI refuses.
        """
        return all(copy_output(output, out[places]) for places, output in self.runs(files, values))


def stretched(images: DataNode, size: tuple[int, int] | DataNode) -> DataNode:
    """Resize uint8 images (H, W, 3) to (height, width), bilinear with antialiasing.

    size: of all, or float32 (2,) of each. Of DALI's filters this is nearest to decoders/pillow.py
    (docs/lab/pixels.md).
    """
    size = size if isinstance(size, DataNode) else list(size)
    return fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=True)


def copied(output, device: torch.device) -> list[torch.Tensor]:
    """Copy the images of a TensorList, uint8 (H, W, 3) each, to views of one flat tensor on `device`."""
    shapes = output.shape()
    flat = torch.empty(sum(map(math.prod, shapes)), dtype=torch.uint8, device=device)
    copy_output(output, flat, shapes)
    return list(split(flat, shapes))


def copy_output(output, out: torch.Tensor, shapes: Sequence[tuple[int, ...]] | None = None) -> bool:
    """Copy a TensorList of n images to `out`, contiguous, (n, ...) on its device.

    shapes: of each image, if they differ; `out` is then flat uint8. Return False if the images have other
    shapes than these, or than the rows of `out`.
    """
    stream = torch.cuda.current_stream(out.device) if out.device.type == "cuda" else None
    if shapes is not None:
        if output.shape() != list(map(tuple, shapes)) or output.dtype != types.UINT8:
            return False
        on = {} if stream is None else {"cuda_stream": c_void_p(stream.cuda_stream), "non_blocking": True}
        output.copy_to_external(c_void_p(out.data_ptr()), **on)
    elif not output.is_dense_tensor() or output[0].shape() != list(out.shape[1:]):
        return False
    else:
        feed_ndarray(output.as_tensor(), out, cuda_stream=stream)
    if stream is not None:
        stream.synchronize()  # sync point: DALI reuses its memory in a later run
    return True
