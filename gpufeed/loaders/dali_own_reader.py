"""DALI's own file reader and its own random windows, as in its documentation.

fn.readers.file gets the files of the coming epochs as one list, so that none of our code runs for a batch.
DALI's own shuffling costs nothing while reading, but is not used: no epoch's order would be known in advance.
Its generator keeps its state across epochs, so that training could not start with a later one either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from gpufeed.augment.random_resized_crop import TRIES
from gpufeed.decoders.dali_pipeline import copy_output, stretched
from gpufeed.loaders.dali_reader import DEPTH, Planned, wrong_ids

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

    from gpufeed.decoders.dali_pipeline import DecodePipeline
    from gpufeed.loaders.base import LoadRequest

LISTED, EPOCHS = 500_000, 200  # most files and epochs of a list, unless an epoch has more


class OwnReading:
    """The batches given to `follow`, by a pipeline that reads by itself; its interface is ReadingPipeline's.

    It builds a new pipeline at the end of its list, and if `follow` does not continue the list: DALI takes
    about 2 us for each file of the list.
    """

    def __init__(self, request: LoadRequest, decoder: DecodePipeline, paths: list[str], share: int):
        """Prepare to follow. paths: of all files, by sample id. share: samples in an epoch on this rank."""
        self.request, self.decoder, self.paths = request, decoder, paths
        self.batch_size = min(request.batch_size, share)
        epoch = -(-share // self.batch_size)
        self.most = max(epoch, min(LISTED // self.batch_size, EPOCHS * epoch))
        self.device_id = None
        if (device := self.request.device).type == "cuda":
            self.device_id = torch.cuda.current_device() if device.index is None else device.index
        self.planned: Iterator[Planned] = iter(())
        self.listed: deque[Planned] = deque()  # coming batches of the list

    def follow(self, planned: Iterator[Planned]) -> None:
        """Set the batches to make from now on, endlessly; equal first ones are taken to continue equally."""
        first = next(planned)
        if not self.listed or not self.listed[0].same(first):
            self.planned = chain([first], planned)
            self._build()

    def fill(self, ids: np.ndarray, out: torch.Tensor) -> bool:
        """Fill `out` as ReadingPipeline.fill does."""
        if not self.listed:
            self._build()
        images, places = self.pipeline.share_outputs()  # waits without the GIL
        self.pipeline.release_outputs()  # outputs with references stay alive
        self.pipeline.schedule_run()
        self.listed.popleft()
        found = self.ids[np.array(places.as_tensor()).ravel()[: len(ids)]]
        if not np.array_equal(found, ids):
            self.listed.clear()
            raise wrong_ids(found, ids)
        if len(out) == self.batch_size:
            return copy_output(images, out)
        whole = out.new_empty((self.batch_size, *out.shape[1:]))
        filled = copy_output(images, whole)
        out.copy_(whole[: len(out)])
        return filled

    def _build(self) -> None:
        """Build the pipeline, beginning with the next planned batch."""
        self.listed = deque(islice(self.planned, self.most))
        # a smaller last batch is padded by repeating it
        self.ids = ids = np.concatenate([np.resize(batch.ids, self.batch_size) for batch in self.listed])
        first = self.listed[0]
        seeds = np.random.SeedSequence([self.request.seed, first.epoch, int(first.ids[0])])
        self.pipeline = Pipeline(
            batch_size=self.batch_size,
            num_threads=self.decoder.threads,
            device_id=self.device_id,
            prefetch_queue_depth=DEPTH,
            exec_dynamic=True,  # outputs must outlive their release
            seed=int(seeds.generate_state(1)[0]),
        )
        with self.pipeline:
            files, places = fn.readers.file(
                files=[self.paths[i] for i in ids.tolist()],
                dont_use_mmap=True,  # as in FilePipeline
                prefetch_queue_depth=DEPTH,
            )
            images = self._samples(files)
            self.pipeline.set_outputs(images if self.device_id is None else images.gpu(), places)
        self.pipeline.build()
        self.pipeline.schedule_run()  # the first call begins DEPTH

    def _samples(self, files: DataNode) -> DataNode:
        """Return the node that makes images, or samples of the recipe, of encoded files."""
        recipe = self.request.recipe
        if recipe is None:
            return self.decoder.images(files)
        square = [recipe.size] * 2
        if recipe.training:
            rule = {"random_area": list(recipe.scale), "random_aspect_ratio": list(recipe.ratio)}
            images = fn.decoders.image_random_crop(files, num_attempts=TRIES, **rule, **self.decoder.decoding)
            flips = fn.random.coin_flip(probability=recipe.flip_probability)
            return fn.flip(stretched(images, square), horizontal=flips)
        sides = fn.peek_image_shape(files, adjust_orientation=False)[:2]
        sizes = sides * recipe.short_side // fn.reductions.min(sides)
        images = stretched(self.decoder.images(files), fn.cast(sizes, dtype=types.FLOAT))
        first = fn.cast((sizes - recipe.size) // 2, dtype=types.INT32)
        return fn.slice(images, start=first, shape=square, axes=[0, 1])
