"""The base class of loaders; tests/unit/loaders/test_loader_contract.py checks its contract for each of them.

The order of an epoch is a function of (seed, epoch) alone, the same on every device.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from gpufeed.augment.random_resized_crop import RandomResizedCrop, Window
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import LOADERS, fetch
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import DecodeCounts, Tolerance
from gpufeed.system.random_draws import BITS, MASK, fold
from gpufeed.system.timing import Mark, Span

ORDER_TAG = 0x0E70C0DE  # keeps the draws of an order apart from those of augments


def permutation(n: int, seed: int, epoch: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return a random order of 0..n-1, int64 (n,), made on the device without waiting for it.

    Every number draws a key of 63 bits from (seed, epoch, itself), and they are sorted by their keys. The
    sort is stable, so that equal keys give the same order everywhere. A seed may have 64 bits.
    """
    state = fold(fold(fold(fold(0, ORDER_TAG), seed & MASK), (seed >> BITS) & MASK), epoch & MASK)
    numbers = torch.arange(n, device=device)
    high, low = (fold(fold(state, half), numbers) for half in range(2))
    return torch.sort((high << (BITS - 1)) | (low >> 1), stable=True).indices


def epoch_order(
    ids: np.ndarray, seed: int, epoch: int, shuffle: bool, rank: int, world_size: int
) -> np.ndarray:
    """Return the sample ids of one rank in the order of one epoch, int64: a function of (seed, epoch) alone.

    Ranks take every world_size-th id of one common permutation, so that their shares are disjoint, complete
    together, and differ by at most one sample.
    """
    if shuffle:
        ids = ids[permutation(len(ids), seed, epoch).numpy()]
    return ids[rank::world_size]


# A worker that returns nothing for so long counts as stuck (mostly a dead network mount).
STUCK_S = 300


@dataclass(frozen=True)
class LoadRequest:
    """All settings of a loader; paths and numbers only, so that it can be sent to worker processes."""

    manifest: Manifest
    split: str
    batch_size: int
    device: torch.device
    seed: int = 0
    shuffle: bool = True
    cache: Path | None = None  # decoded uint8 cache, for loaders that read one
    strips: Path | None = None  # strips.bin of a strip set, for the loader that reads one
    shards: Path | None = None  # shards.json of a shard set, for the loader that reads one
    beton: Path | None = None  # .beton file, for the loader that reads one
    # the library of gpufeed.native, for a loader that decodes by it; None: search for it
    extension: Path | None = None
    sample_transform: Callable[[torch.Tensor, int, int], torch.Tensor] | None = None
    # ^ augment `cpu`: (uint8 (H, W, C), sample id, epoch) -> float32 (C, H, W), run in the process that
    # decodes samples, or augment `dali`, which DALI's loaders build into their pipeline
    recipe: RandomResizedCrop | None = None  # None: the sample is the whole image
    decoder: str = "pillow"  # of the DataLoader's worker processes
    hw_decoder_load: float | None = None  # share of the files for JPEG engines; None: by their size
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of a user's loader
    decoded: np.ndarray | None = None
    # ^ uint8 (n, H, W, 3): images to use, in turn, instead of decoding files, to time a loader without its
    # decoder; files are still read
    workers: int = 0
    threads: int = 1  # cores that a loader may use for its own threads or those of its library
    prefetch_factor: int | None = None
    ahead: int = 0  # batches that the loader makes at once at the beginning, which are warm-up
    pin_memory: bool = True
    persistent_workers: bool = False
    rank: int = 0
    world_size: int = 1
    ungathered: bool = False  # whether the training step takes rows of a store in place of images

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that a loader yields."""
        return self.manifest.image_size() if self.recipe is None else (self.recipe.size, self.recipe.size)


@dataclass(frozen=True)
class DeferredGather:
    """A batch that is not gathered yet: a training step may take it in place of the images store[rows].

    A kernel that reads the pixels from the store itself saves writing the batch to memory and reading it
    again.

    store: uint8 (M, H, W, 3), the same for all batches of a loader; rows: int64 (N,), of 0..M-1. Both on the
    device.
    """

    store: torch.Tensor
    rows: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the gathered batch, (N, H, W, 3)."""
        return torch.Size((len(self.rows), *self.store.shape[1:]))

    @property
    def device(self) -> torch.device:
        return self.store.device

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "DeferredGather":
        """Return some of the rows."""
        return DeferredGather(self.store, self.rows[part])

    def gathered(self) -> torch.Tensor:
        """Return the images, uint8 (N, H, W, 3), in new memory."""
        return self.store.index_select(0, self.rows)

    def clone(self) -> "DeferredGather":
        """Return a copy with its own row numbers and the same store."""
        return DeferredGather(self.store, self.rows.clone())

    def copy_(self, other: "DeferredGather", non_blocking: bool = False) -> None:
        """Copy the other's row numbers in place; the store must be the same."""
        self.rows.copy_(other.rows, non_blocking=non_blocking)


@dataclass
class Batch:
    """One batch on the device.

    images: uint8 (N, H, W, 3), or with a sample transform float32 (N, 3, H, W);
    labels, ids: int64 (N,). load_ms: how long the host waited for the samples, on its clock.
    transfer: the host-to-device copy on the device's clock, None where nothing was copied.
    """

    images: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor
    load_ms: float
    transfer: Span | None = None

    @property
    def source(self) -> torch.Tensor | DeferredGather:
        """The input of a training step: the images, or their rows in a store."""
        return self.images

    def first(self, n: int) -> "Batch":
        """Return the first n samples, in the same memory."""
        return Batch(self.images[:n], self.labels[:n], self.ids[:n], self.load_ms)

    def clone(self) -> "Batch":
        """Return a copy in its own memory, since loaders reuse theirs."""
        return Batch(self.images.clone(), self.labels.clone(), self.ids.clone(), 0.0)


class NoStage(Exception):
    """A stage of a loader's work that cannot be left out; the message is a sentence that says why."""


class Loader(ABC):
    """Iterating once is one epoch: every sample once, in `order`, the last batch smaller if need be.

    Setup (opening caches, starting workers) happens in `open`, which `with` calls, so that it is never timed
    as loading. `state_dict` names the next batch; `load_state_dict` resumes there.

    resampling: how far the samples of a recipe may be from the reference's, beyond the decoder's tolerance;
    the default is for libraries that round once where Pillow rounds twice. promises_order: whether `order` is
    known before an epoch. decode_counts: its images by decoder, if the decoder may leave some to another
    one; else None. keeps_on: whether an open loader works on between epochs, so that an epoch begins with
    finished batches. works_ahead: whether batches are made while the host is in a training step. own_order:
    why its order differs from `epoch_order`, as a sentence; None if it does not. It is still a function of
    (seed, epoch), and a rank has the samples that `epoch_order` gives it. own_windows: why its library draws
    windows by another rule, as a sentence; None if by ours. no_decoding, no_transfer: why that stage cannot
    be left out, as a sentence; None if it can.
    """

    decode_counts: DecodeCounts | None = None
    keeps_on: bool = False
    promises_order: bool = True
    own_windows: ClassVar[str | None] = None
    resampling: Tolerance = Tolerance(2, 0.5)
    own_order: ClassVar[str | None] = None
    no_decoding: ClassVar[str | None] = "This loader has no decoder that could be left out."
    no_transfer: ClassVar[str | None] = None

    def __init__(self, request: LoadRequest):
        self.request = request
        self.epoch = 0
        self.next_batch = 0
        self.split_ids = request.manifest.ids(request.split)
        if len(self.split_ids) < request.world_size:
            raise GpufeedError(
                f"{len(self.split_ids)} samples in split {request.split!r} for {request.world_size} ranks",
                "at least one sample a rank",
                "use fewer devices or a larger dataset",
            )

    @property
    def works_ahead(self) -> bool:
        return self.request.workers > 0

    def open(self) -> None:  # noqa: B027 (most loaders need nothing here)
        """Set up what an epoch needs; called once, before the first epoch."""

    def close(self) -> None:  # noqa: B027
        """Release what `open` has set up; safe to call twice and after an error."""

    @abstractmethod
    def epoch_batches(self, done: int) -> Iterator[Batch]:
        """Yield the batches of the current epoch after the first `done`, request.batch_size samples each.

        A caller that ends the epoch early closes this generator.
        """

    def example(self) -> DeferredGather | None:
        """Return a sample batch of an open loader whose steps gather the images; None for other loaders."""
        return None

    def order(self) -> np.ndarray:
        """Return the sample ids of the current epoch on this rank, int64."""
        r = self.request
        return epoch_order(self.split_ids, r.seed, self.epoch, r.shuffle, r.rank, r.world_size)

    def reference_cut(
        self, recipe: RandomResizedCrop, sample_id: int, epoch: int, image: np.ndarray
    ) -> tuple[np.ndarray, Window]:
        """Return the image and the window from which the reference makes a sample, given a file's pixels.

        They differ from the file's and the recipe's if a library stores smaller images or has its own rule
        for the centre crop of evaluation.
        """
        return image, recipe.window(sample_id, epoch, *image.shape[:2])

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-self.share // self.request.batch_size)

    @property
    def share(self) -> int:
        """Number of samples in an epoch on this rank."""
        return len(self.split_ids[self.request.rank :: self.request.world_size])

    def __iter__(self) -> Iterator[Batch]:
        total = len(self)
        # closed here explicitly: in CPython 3.12.3 a generator without `with` or `try` that is closed by its
        # last reference keeps its frame alive, and with it all that it iterates over
        with closing(self.epoch_batches(self.next_batch)) as batches:
            for batch in batches:
                # before the yield: code after a generator's last yield may never run
                self.next_batch += 1
                if self.next_batch == total:
                    self.epoch, self.next_batch = self.epoch + 1, 0
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "next_batch": self.next_batch, "seed": self.request.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume where `state` was taken; raise ValueError if it was taken with another seed."""
        if state["seed"] != self.request.seed:
            raise ValueError(f"found seed {state['seed']} in the state; expected {self.request.seed}")
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]

    def files(self) -> list[str]:
        """Return every file that an epoch of an open loader reads.

        It is called between epochs. Afterwards the loader has no page of them mapped, and at most a small
        part of the next epoch read ahead.
        """
        return []

    def files_of_split(self) -> list[str]:
        """Return the image files of the split, for all ranks; [] if no file holds the images."""
        if self.request.manifest.made:
            return []
        paths = self.request.manifest.paths()
        return [os.fspath(paths[sample_id]) for sample_id in self.split_ids.tolist()]

    @classmethod
    def without_decoding(cls, request: LoadRequest, pixels: Callable[[], np.ndarray]) -> "Loader":
        """Return a loader that reads the same files but uses the pixels of `pixels()` (LoadRequest.decoded).

        Raises NoStage for a loader whose decoding cannot be left out.
        """
        if cls.no_decoding is not None:
            raise NoStage(cls.no_decoding)
        return cls(replace(request, decoded=pixels()), **request.options)

    @classmethod
    def without_transfer(cls, request: LoadRequest) -> "Loader":
        """Return a loader whose batches stay in the host's memory; raise NoStage if it copies none."""
        if request.device.type == "cpu":
            raise NoStage("The device is the CPU, so that nothing is copied.")
        if cls.no_transfer is not None:
            raise NoStage(cls.no_transfer)
        return cls(replace(request, device=torch.device("cpu")), **request.options)

    def __enter__(self) -> "Loader":
        self.open()
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def make_loader(name: str, request: LoadRequest) -> Loader:
    """Return the loader `name`, registered or a reference, not open yet; raise as `fetch` does."""
    return fetch("loader", name)(request, **request.options)


def require_store(loader: str, request: LoadRequest) -> None:
    """Raise GpufeedError for a request without the store that a registered loader reads."""
    store = LOADERS[loader].reads
    if getattr(request, store) is None:
        raise GpufeedError(
            f"no {store} for the loader {loader}",
            f"the {store} of its dataset",
            f"build it with the rule build_{store}",
        )


def refuse_transform(loader: str, request: LoadRequest, because: str) -> None:
    """Raise GpufeedError for a request with a transform of single samples. because: why it is impossible."""
    if request.sample_transform is not None:
        raise GpufeedError(
            f"a transform for each sample in loader {loader}",
            f"none: {because}",
            "use augment none or torch",
        )


class OrderedLoader(Loader):
    """A loader that gets the order of an epoch on the host."""

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        return self.batches(self.order()[done * self.request.batch_size :])

    @abstractmethod
    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        """Yield the batches of `order` (sample ids, int64), request.batch_size at a time."""


def send(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy an int64 array to the device; on CUDA the host does not wait."""
    tensor = torch.from_numpy(values.copy())
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def empty_batch(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, request: LoadRequest
) -> torch.Tensor:
    """Return memory for a batch, pinned if it is on the host, will be copied to CUDA, and pin_memory is set.

    torch reuses pinned memory only when the queued copies that read it are done.
    """
    pin = device.type == "cpu" and request.device.type == "cuda" and request.pin_memory
    return torch.empty(shape, dtype=dtype, device=device, pin_memory=pin)


def upload(images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Span | None]:
    """Queue the copy of a host batch on the current stream; return it and the copy's span (None on CPU)."""
    if device.type == "cpu":
        return images, None
    start = Mark(device)
    images = images.to(device, non_blocking=device.type == "cuda")
    return images, Span(start, Mark(device))
