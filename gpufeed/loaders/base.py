"""What a loader is: the contract that tests/unit/loaders/test_loader_contract.py holds every one to.

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
from gpufeed.decoders.base import Tally, Tolerance
from gpufeed.system.random_draws import BITS, MASK, fold
from gpufeed.system.timing import Mark, Span

ORDER_TAG = 0x0E70C0DE  # keeps the draws of an order apart from those of augments


def permutation(n: int, seed: int, epoch: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A random order of 0..n-1, int64 (n,), made on the device without waiting for it.

    Every number draws a key of 63 bits from (seed, epoch, itself), and they are sorted by their keys; the
    sort is stable, so that keys which meet give the same order everywhere. A seed may have 64 bits.
    """
    state = fold(fold(fold(fold(0, ORDER_TAG), seed & MASK), (seed >> BITS) & MASK), epoch & MASK)
    numbers = torch.arange(n, device=device)
    high, low = (fold(fold(state, half), numbers) for half in range(2))
    return torch.sort((high << (BITS - 1)) | (low >> 1), stable=True).indices


def epoch_order(
    ids: np.ndarray, seed: int, epoch: int, shuffle: bool, rank: int, world_size: int
) -> np.ndarray:
    """The sample ids of one rank in the order of one epoch, int64: a function of (seed, epoch) alone.

    Ranks take every world_size-th id of one common permutation, so that their shares are disjoint,
    whole and at most one sample apart.
    """
    if shuffle:
        ids = ids[permutation(len(ids), seed, epoch).numpy()]
    return ids[rank::world_size]


# A worker that gives nothing for so long is taken for stuck (a dead network mount, mostly).
STUCK_S = 300


@dataclass(frozen=True)
class LoadRequest:
    """Everything that a loader may know. Paths and numbers only, so that worker processes can have it."""

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
    # the library of gpufeed.native, for a loader that decodes by it; None: found
    extension: Path | None = None
    sample_transform: Callable[[torch.Tensor, int, int], torch.Tensor] | None = None
    # ^ augment `cpu`: (uint8 (H, W, C), sample id, epoch) -> float32 (C, H, W), run where samples are
    # decoded, or augment `dali`, which DALI's loaders build into their pipeline
    recipe: RandomResizedCrop | None = None  # what makes an image a sample; None: the sample is the image
    decoder: str = "pillow"  # of the DataLoader's worker processes
    hw_decoder_load: float | None = None  # share of the files for JPEG engines; None: by their size
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of a loader of one's own
    decoded: np.ndarray | None = None
    # ^ uint8 (n, H, W, 3): images that come in place of decoded files, in turn, to time a loader without
    # its decoder; files are read as ever
    workers: int = 0
    threads: int = 1  # cores that a loader may use for threads of its own or of its library
    prefetch_factor: int | None = None
    ahead: int = 0  # batches that the loader makes at a time in the beginning, which are warm-up
    pin_memory: bool = True
    persistent_workers: bool = False
    rank: int = 0
    world_size: int = 1
    ungathered: bool = False  # whether the training step takes rows of a store in place of images

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of what a loader yields."""
        return self.manifest.image_size() if self.recipe is None else (self.recipe.size, self.recipe.size)


@dataclass(frozen=True)
class Rows:
    """Stands for store[rows] where a training step takes images: a batch that is not gathered yet.

    A kernel that reads its pixels from there itself spares the batch one way into memory and out again.

    store: uint8 (M, H, W, 3), the same for all batches of a loader; rows: int64 (N,), of 0..M-1. Both on the
    device.
    """

    store: torch.Tensor
    rows: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the gathered batch: (N, H, W, 3)."""
        return torch.Size((len(self.rows), *self.store.shape[1:]))

    @property
    def device(self) -> torch.device:
        return self.store.device

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "Rows":
        """Of some of the rows."""
        return Rows(self.store, self.rows[part])

    def gathered(self) -> torch.Tensor:
        """uint8 (N, H, W, 3), in memory of its own."""
        return self.store.index_select(0, self.rows)

    def clone(self) -> "Rows":
        """With row numbers in memory of their own; the store is the same."""
        return Rows(self.store, self.rows.clone())

    def copy_(self, other: "Rows", non_blocking: bool = False) -> None:
        """Takes the other's row numbers, in place; the store must be the same."""
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
    def source(self) -> torch.Tensor | Rows:
        """What a training step takes: the images, or where they are."""
        return self.images

    def first(self, n: int) -> "Batch":
        """Its first n samples, in the same memory."""
        return Batch(self.images[:n], self.labels[:n], self.ids[:n], self.load_ms)

    def clone(self) -> "Batch":
        """In memory of its own, for good: loaders use theirs again."""
        return Batch(self.images.clone(), self.labels.clone(), self.ids.clone(), 0.0)


class NoStage(Exception):
    """A stage of a loader's work that cannot be taken out; the message is a sentence that says why."""


class Loader(ABC):
    """Iterating once is one epoch: every sample once, in `order`, the last batch smaller if need be.

    Setting up (opening caches, starting workers) happens in `open`, which `with` calls, so that it is
    never timed as loading. `state_dict` names the next batch; `load_state_dict` goes on from there.

    resampling: how far the samples of a recipe may be from the reference's, beside what the decoder may;
    the default is for who rounds once where Pillow rounds twice. promises_order: whether `order` can be known
    before an epoch. tally: who decoded its images so far,
    where a decoder may leave some of them to another; else None. keeps_on: whether an open loader goes on
    working between epochs, so that an epoch begins with batches that are made already. works_ahead: whether
    batches are made while the host is in a training step. own_order: why its
    order is another than `epoch_order` whatever the split, as a sentence; None for the others. It is a
    function of (seed, epoch) too, and a rank has the samples that `epoch_order` gives it. own_windows: why
    the library that draws windows has another rule, as a sentence; None where it has ours. no_decoding,
    no_transfer: why that stage cannot be taken out, as a sentence; None where it can.
    """

    tally: Tally | None = None
    keeps_on: bool = False
    promises_order: bool = True
    own_windows: ClassVar[str | None] = None
    resampling: Tolerance = Tolerance(2, 0.5)
    own_order: ClassVar[str | None] = None
    no_decoding: ClassVar[str | None] = "This loader has no decoder that could be taken out."
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
        """Acquires what an epoch needs. Called once, before the first epoch."""

    def close(self) -> None:  # noqa: B027
        """Releases it; safe to call twice and after an error."""

    @abstractmethod
    def epoch_batches(self, done: int) -> Iterator[Batch]:
        """The batches of the present epoch but for the first `done`, request.batch_size samples each.

        A generator: whoever ends the epoch early closes it.
        """

    def example(self) -> Rows | None:
        """What stands for a first batch of an open loader whose steps gather by themselves; else None."""
        return None

    def order(self) -> np.ndarray:
        """Sample ids of the present epoch on this rank, int64."""
        r = self.request
        return epoch_order(self.split_ids, r.seed, self.epoch, r.shuffle, r.rank, r.world_size)

    def reference_cut(
        self, recipe: RandomResizedCrop, sample_id: int, epoch: int, image: np.ndarray
    ) -> tuple[np.ndarray, Window]:
        """Return the image that the reference's sample is cut out of, and the window, of a file's pixels.

        Others than the file's and the recipe's where a library stores smaller images, or has its own rule for
        the middle of an image in evaluation.
        """
        return image, recipe.window(sample_id, epoch, *image.shape[:2])

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-self.share // self.request.batch_size)

    @property
    def share(self) -> int:
        """Samples in an epoch, on this rank."""
        return len(self.split_ids[self.request.rank :: self.request.world_size])

    def __iter__(self) -> Iterator[Batch]:
        total = len(self)
        # closed here and not left to its last reference: closing a generator that has no `with` and no
        # `try` leaves its frame alive in CPython 3.12.3, and with it all that it iterates
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
        """Goes on where `state` was taken; raises ValueError if it was taken with another seed."""
        if state["seed"] != self.request.seed:
            raise ValueError(f"found seed {state['seed']} in the state; expected {self.request.seed}")
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]

    def files(self) -> list[str]:
        """Every file that an epoch of an open loader reads; empty where none is.

        Asked between epochs: no page of the files is held then, nor a large part of the next epoch.
        """
        return []

    def files_of_split(self) -> list[str]:
        """Return the image files of its split, those of other ranks too; [] if no file holds the images."""
        if self.request.manifest.made:
            return []
        paths = self.request.manifest.paths()
        return [os.fspath(paths[sample_id]) for sample_id in self.split_ids.tolist()]

    @classmethod
    def without_decoding(cls, request: LoadRequest, pixels: Callable[[], np.ndarray]) -> "Loader":
        """A loader that reads the same files and takes its pixels from `pixels()` (see LoadRequest.decoded).

        Raises NoStage for a loader that cannot be taken apart so.
        """
        if cls.no_decoding is not None:
            raise NoStage(cls.no_decoding)
        return cls(replace(request, decoded=pixels()), **request.options)

    @classmethod
    def without_transfer(cls, request: LoadRequest) -> "Loader":
        """A loader whose batches stay in the host's memory; raises NoStage where none are copied."""
        if request.device.type == "cpu":
            raise NoStage("The device is the CPU, to which nothing is copied.")
        if cls.no_transfer is not None:
            raise NoStage(cls.no_transfer)
        return cls(replace(request, device=torch.device("cpu")), **request.options)

    def __enter__(self) -> "Loader":
        self.open()
        return self

    def __exit__(self, *exc) -> None:
        self.close()


def make_loader(name: str, request: LoadRequest) -> Loader:
    """Return the loader `name`, registered or a reference, not open yet; raises as `fetch`."""
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
    """Raise GpufeedError for a request with a transform of single samples. because: why there are none."""
    if request.sample_transform is not None:
        raise GpufeedError(
            f"a transform for each sample in loader {loader}",
            f"none: {because}",
            "use augment none or torch",
        )


class OrderedLoader(Loader):
    """A loader that takes the order of an epoch from the host."""

    def epoch_batches(self, done: int) -> Iterator[Batch]:
        return self.batches(self.order()[done * self.request.batch_size :])

    @abstractmethod
    def batches(self, order: np.ndarray) -> Iterator[Batch]:
        """The batches of `order` (sample ids, int64), request.batch_size at a time; a generator."""


def send(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of an int64 array on the device, without a wait of the host on CUDA."""
    tensor = torch.from_numpy(values.copy())
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def empty_batch(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, request: LoadRequest
) -> torch.Tensor:
    """Memory for a batch; on the host pinned if it will go to CUDA, unless the request says otherwise.

    torch keeps such memory and gives it out again only when the queued copies that read it are done.
    """
    pin = device.type == "cpu" and request.device.type == "cuda" and request.pin_memory
    return torch.empty(shape, dtype=dtype, device=device, pin_memory=pin)


def upload(images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, Span | None]:
    """A host batch on the device, queued on the current stream, and the copy's span; None on the CPU."""
    if device.type == "cpu":
        return images, None
    start = Mark(device)
    images = images.to(device, non_blocking=device.type == "cuda")
    return images, Span(start, Mark(device))
