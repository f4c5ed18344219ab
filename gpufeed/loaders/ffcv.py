"""FFCV as its documentation recommends it for data that fit into memory: one mapped file, read by threads.

libjpeg-turbo decodes, called by functions that Numba compiles when the loader opens. `workers` are FFCV's
threads, 0 for one a core, and at most Numba's, one a core; `prefetch_factor` is the number of prefetched
batches. Reading, decoding and batching are FFCV's. Order and copy are those of the other loaders: with FFCV's
own copy its threads may overwrite memory that is still being copied.

With a recipe, FFCV's decoders crop and resize, and its transform flips. It draws its own windows: Numba draws
them in each thread, from random states that the system seeds and that FFCV's seed does not reach.
"""

import gc
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib.metadata import version

import numpy as np
import torch

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window
from gpufeed.core.errors import GpufeedError, Skip, import_or_skip
from gpufeed.decoders.base import DecodeCounts, Tolerance
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders.base import STUCK_S, Batch, LoadRequest, refuse_transform, require_store, send, upload
from gpufeed.loaders.prefetch import END_S, POLL_S, PrefetchLoader
from gpufeed.stores.ffcv_store import JPEG, TOLERANCE, BetonInfo, open_beton, rewritten

# OpenCV's INTER_AREA against the reference's antialiased triangle. Of 800 photographs in evaluation, the 714
# that are reduced differ by at most 58, 4.2 in the mean over an image; the 86 that are enlarged by 168 and
# 7.0. The mean over all is 1.2. These figures include decoding.
RESAMPLING = Tolerance(176, 6.0)
WAITING = 3  # prefetched batches, the default of FFCV's Loader
NAME = "ffcv"
INSTALL = (
    "install OpenCV 4's and libjpeg-turbo's headers (Debian: libopencv-dev libturbojpeg0-dev pkg-config), "
    "then pip install --no-deps ffcv"
)


class Turbo:
    """FFCV's decoder as the equivalence check needs to know it."""

    name = NAME
    tolerance = TOLERANCE

    def version(self) -> str:
        return f"{NAME} {version(NAME)}"


class FfcvLoader(PrefetchLoader):
    """The batches of FFCV's Loader, copied ahead on a side stream.

    Images that the .beton file holds as pixels were decoded by Pillow when it was built, and count as
    Pillow's. A file with FFCV's own settings stores some as pixels by design; there they do not. The
    equivalence check verifies the bytes of the file once; opening it does not.
    """

    no_decoding = "FFCV reads and decodes an image in one compiled function."
    resampling = RESAMPLING
    no_transfer = "FFCV reuses its memory: batches that stay on the host have to be copied, too."

    def __init__(self, request: LoadRequest):
        super().__init__(request)
        require_store(NAME, request)
        refuse_transform(NAME, request, "FFCV runs what Numba compiles")
        self.library = Turbo()
        self.decode_counts = DecodeCounts(NAME)
        self.loader = None
        self.info: BetonInfo | None = None
        self.jpegs = np.empty(0, dtype=bool)  # by sample id

    def open(self) -> None:
        super().open()
        r = self.request
        with torch_threads_kept():
            import_or_skip("Loader ffcv", "ffcv", "ffcv", INSTALL)
            self.info = open_beton(r.beton, r.manifest)
            self.decode_counts.images_from = self.info.in_words
            self.loader = new_loader(r)
            self.jpegs = self.loader.reader.metadata["f0"]["mode"] == JPEG
            with closing(made(self.loader, self.split_ids[:1])) as first:  # compiles what it runs
                next(first)
        check_layer(self.loader.num_workers)
        gc.collect()  # compiling leaves reference cycles, which hold the mapped file

    def close(self) -> None:
        super().close()
        self.loader = None

    def files(self) -> list[str]:
        self.loader.memory_manager.context.mmap = None  # it is mapped again for the next epoch
        return [os.fspath(self.request.beton)]

    def source(self, order: np.ndarray, stopping: threading.Event) -> Iterator[Batch]:
        r = self.request
        ids, start = send(order, r.device), 0
        with closing(made(self.loader, order)) as batches:
            for images, labels in batches:
                images, transfer = upload(self._kept(images), r.device)
                labels, _ = upload(self._kept(labels.flatten()), r.device)
                part = slice(start, start + len(images))
                self._count(order[part])
                start = part.stop
                try:
                    yield Batch(images, labels, ids[part], 0.0, transfer)
                finally:
                    self._copied()

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of FFCV's memory if the device is the CPU; for a GPU the upload is the copy."""
        return tensor.clone() if self.request.device.type == "cpu" else tensor

    def _copied(self) -> None:
        """Wait for the copies, since FFCV reuses this batch's memory from the next batch on."""
        if self.stream is not None:
            self.stream.synchronize()

    def _count(self, ids: np.ndarray) -> None:
        jpegs = int(self.jpegs[ids].sum())
        self.decode_counts.add(NAME, jpegs)
        if not self._rewritten:
            self.decode_counts.add("pillow", len(ids) - jpegs)

    @property
    def _rewritten(self) -> bool:
        """Return whether the file was written with the settings of FFCV's writer."""
        return self.info is not None and self.info.max_resolution is not None

    def reference_cut(
        self, recipe: RandomResizedCrop, sample_id: int, epoch: int, image: np.ndarray
    ) -> tuple[np.ndarray, Window]:
        if self._rewritten:
            mode, height, width, data = rewritten(sample_id, image)
            pixels = np.frombuffer(data, np.uint8)
            image = rgb(data) if mode == JPEG else pixels.reshape(height, width, 3)
        if recipe.training:
            return super().reference_cut(recipe, sample_id, epoch, image)
        height, width = image.shape[:2]
        side = int(recipe.size / recipe.short_side * min(height, width))
        top, left = (height - side) // 2, (width - side) // 2
        return image, Window(top, left, side, side, recipe.size, recipe.size, 0, 0, False)


@contextmanager
def torch_threads_kept():
    """Restore the number of torch's threads, which FFCV changes, even when it is imported."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def new_loader(request: LoadRequest):
    """Return FFCV's Loader with pipelines of images and labels, both in host memory."""
    import numba
    from ffcv.fields.decoders import IntDecoder
    from ffcv.loader import Loader
    from ffcv.transforms import ToTensor

    return Loader(
        os.fspath(request.beton),
        batch_size=request.batch_size,
        num_workers=min(request.workers or request.threads, numba.config.NUMBA_NUM_THREADS),
        os_cache=True,
        seed=0,  # unused, as orders are given; without it FFCV draws from NumPy's global generator
        pipelines={"image": [*operations(request), ToTensor()], "label": [IntDecoder(), ToTensor()]},
        drop_last=False,
        batches_ahead=request.prefetch_factor or WAITING,
    )


def operations(request: LoadRequest) -> list:
    """Return FFCV's operations that make a sample of a stored image."""
    from ffcv.fields import rgb_image
    from ffcv.transforms import RandomHorizontalFlip

    if (recipe := request.recipe) is None:
        request.manifest.image_size()  # raises for several sizes, of which FFCV cannot make batches
        return [rgb_image.SimpleRGBImageDecoder()]
    sides = recipe.size, recipe.size
    if not recipe.training:
        return [rgb_image.CenterCropRGBImageDecoder(sides, recipe.size / recipe.short_side)]
    bounds = (tuple(map(float, pair)) for pair in (recipe.scale, recipe.ratio))
    crop = rgb_image.RandomResizedCropRGBImageDecoder(sides, *bounds)
    return [crop, RandomHorizontalFlip(recipe.flip_probability)]


def check_layer(threads: int) -> None:
    """Raise Skip if Numba's threading layer, which is known once it has run, allows one caller only.

    A second caller, such as another loader in the process, would abort the process.
    """
    import numba

    if threads > 1 and numba.threading_layer() == "workqueue":
        raise Skip(
            f"Loader {NAME} needs Numba's threading layer tbb or omp, and this node has only workqueue: "
            "install libgomp (Debian: libgomp1) or the package tbb."
        )


def made(loader, order: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches of an order: images, uint8 (n, H, W, 3), and labels, int64 (n, 1), in FFCV's memory.

    FFCV reuses that memory when the next one is requested. Its thread ends with this iterator.
    """
    # FFCV compiles for the order's memory layout, and a rank's share of a permutation is not contiguous
    epoch = epoch_thread()(loader, np.ascontiguousarray(order))
    try:
        for _ in range(0, len(order), loader.batch_size):
            try:
                found = epoch.output_queue.get(timeout=STUCK_S)
            except queue.Empty as error:
                raise stuck(loader.num_workers) from error
            if isinstance(found, BaseException):
                raise found
            yield found[1]  # found[0] is its slot
    finally:
        end(epoch)


@cache
def epoch_thread() -> type:
    """Return a class of FFCV's thread that also passes on errors; FFCV's own leaves its consumer waiting."""
    from ffcv.loader.epoch_iterator import EpochIterator

    class EpochThread(EpochIterator):
        def run(self):
            try:
                super().run()
            except BaseException as error:
                self.output_queue.put(error)

    return EpochThread


def end(epoch) -> None:
    """End FFCV's thread, which otherwise stays in mid-epoch or waits for room in its queue."""
    epoch.close()
    epoch.iter_ixes = iter(())
    latest = time.monotonic() + END_S
    while epoch.is_alive() and time.monotonic() < latest:
        with suppress(queue.Empty):
            epoch.output_queue.get(timeout=POLL_S)


def stuck(threads: int) -> GpufeedError:
    """Return the error for no batch within STUCK_S."""
    return GpufeedError(
        f"no batch from FFCV for {STUCK_S} s",
        f"{threads} threads at work",
        "look for a dead network mount, a disk that hangs, and at the load of the node",
    )
