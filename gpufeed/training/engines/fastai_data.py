"""Any of our loaders as fastai DataLoaders."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from fastai.data.core import DataLoaders, TfmdDL
from fastai.data.transforms import Category, CategoryMap
from fastai.losses import CrossEntropyLossFlat
from fastai.torch_core import TensorCategory, TensorImage, to_cpu
from PIL import Image

from gpufeed.augment.base import channels
from gpufeed.augment.fastai_transform import EVALUATION, TRAINING, GPUPipelineTransform, Pixels
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import DatasetInfo
from gpufeed.decoders.pillow import PillowDecoder, resized
from gpufeed.loaders.base import Batch, Loader
from gpufeed.training.engines.base import DeviceAugment

PICTURES_A_BATCH = 64  # for images outside of loaders


class Item(NamedTuple):
    """A sample of a dataset, as in `dls.items`."""

    path: Path
    label: int


class Split:
    """The attributes that fastai reads of a dataset, beside samples: its split, its classes, its files.

    n_inp: how many parts of a batch are input. loss_func: the default of a Learner.
    """

    n_inp = 1

    def __init__(self, split_idx: int, info: DatasetInfo | None, loader: Loader | None = None):
        """Set the attributes. info: of the dataset, None if unknown. loader: the source of its samples."""
        self.split_idx, self.info, self.loader = split_idx, info, loader
        if info is not None:
            self.vocab, self.c = CategoryMap(info.classes, sort=False), len(info.classes)
            self.loss_func = CrossEntropyLossFlat()

    def new_empty(self) -> "Split":
        """Return the split without samples, as in an exported Learner."""
        info = None if self.info is None else replace(self.info, resize=self.size)
        return Split(self.split_idx, info)

    def __len__(self) -> int:
        return 0 if self.loader is None else self.loader.share

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the model's input images."""
        return self.info.resize if self.loader is None else self.loader.request.image_size

    @property
    def items(self) -> list[Item]:
        """All samples of the split, by sample id."""
        if self.loader is None:
            return []
        manifest, ids = self.loader.request.manifest, self.loader.split_ids.tolist()
        paths, labels = manifest.paths(), manifest.labels().tolist()
        return [Item(paths[sample_id], labels[sample_id]) for sample_id in ids]

    def decode(self, sample: tuple, full: bool = True) -> tuple:
        """Return a sample of a decoded batch with the name of its class."""
        image, *labels = sample
        return image, *[Category(self.vocab[int(label)]) for label in labels]


def split_of(split_idx: int, batches: Iterable[Batch]) -> Split:
    """Return the Split of the dataset that batches come from."""
    if isinstance(batches, Loader):
        return Split(split_idx, batches.request.manifest.info, batches)
    return Split(split_idx, None)


class Pictures:
    """Batches of images outside of loaders: files, their bytes, arrays or Pillow images, resized to one size.

    Labels are those of `Item`s; for others they are 0 and not yielded.
    """

    def __init__(self, items: Sequence, size: tuple[int, int], device: torch.device):
        self.items, self.size, self.device = items, size, device
        self.labelled = all(isinstance(item, Item) for item in items)

    def __len__(self) -> int:
        return -(-len(self.items) // PICTURES_A_BATCH)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.items), PICTURES_A_BATCH):
            items = self.items[start : start + PICTURES_A_BATCH]
            images = torch.from_numpy(np.stack([resized(picture(item), self.size) for item in items]))
            labels = torch.tensor([item.label if isinstance(item, Item) else 0 for item in items])
            ids = torch.arange(start, start + len(items))
            yield Batch(*(part.to(self.device) for part in (images, labels, ids)), load_ms=0.0)


def picture(item) -> np.ndarray:
    """Return an item of Pictures as uint8 (H, W, 3); raise GpufeedError if it is no image."""
    if isinstance(item, Image.Image):
        return np.asarray(item.convert("RGB"))
    if isinstance(item, torch.Tensor | np.ndarray):
        array = np.asarray(item.cpu() if isinstance(item, torch.Tensor) else item)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
            found = f"an array of {array.dtype} {array.shape}"
            raise GpufeedError(found, "uint8 (height, width, 3)", "convert it, or pass a path")
        return array
    if isinstance(item, bytes):
        name, data = "the bytes of a file", item
    else:
        try:
            name = Path(item.path if isinstance(item, Item) else item)
            data = name.read_bytes()
        except (OSError, TypeError) as error:
            raise no_image(item, error) from error
    decoded = PillowDecoder().decode([data])
    if decoded.images[0] is None:
        raise no_image(name, decoded.outcomes[0].reason)
    return decoded.images[0]


def no_image(found: object, reason: object) -> GpufeedError:
    return GpufeedError(
        f"{found}: {reason}",
        "the path or the bytes of an image that can be decoded, an array or a Pillow image",
        "leave it out",
    )


def ignored(batch: Batch) -> None:
    """Do nothing with a batch, the default of `arrived`."""


class LoaderDL(TfmdDL):
    """Yields (images, labels) of each batch of a loader, after fastai's batch transforms.

    A transform for training alone runs only if the dataset has a `split_idx`; otherwise fastai skips it
    silently. A batch that no transform has taken is an error here.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        length: int,
        batch_tfms: list,
        split_idx: int,
        device: torch.device,
        arrived: Callable[[Batch], None] = ignored,
        dataset: Split | None = None,
    ):
        """Wrap `batches`, an open loader; iterating over it once is an epoch, of `length` batches.

        arrived: called with each batch before its transforms. dataset: by default that of the loader.
        """
        super().__init__(
            split_of(split_idx, batches) if dataset is None else dataset,
            bs=None,
            n=length,
            num_workers=0,
            after_batch=batch_tfms,
            device=device,
        )
        # its own generator: torch draws a seed an epoch, and the model's random numbers must not depend on it
        self.fake_l.generator = torch.Generator().manual_seed(0)
        self.batches, self.arrived = batches, arrived
        self.epoch, self.running, self.places = 0, None, None

    def create_batches(self, samples: Iterator) -> Iterator[tuple]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        labelled = getattr(self.batches, "labelled", True)
        if self.places is not None:
            self.places.clear()
        if not self.n:
            return
        try:
            with closing(iter(self.batches)) as self.running:
                for batch in self.running:
                    self.arrived(batch)
                    if self.places is not None:
                        self.places += self.places_of(batch)
                    pixels = Pixels(batch.images, batch.ids, epoch)
                    yield (pixels, batch.labels) if labelled else (pixels,)
        finally:
            self.leave_whole()

    def leave_whole(self) -> None:
        """Start the loader's next epoch after one that ended early, as with lr_find.

        Otherwise it would resume the rest, unlike fastai's DataLoaders.
        """
        if isinstance(self.batches, Loader) and self.batches.next_batch:
            state = self.batches.state_dict()
            self.batches.load_state_dict({**state, "epoch": state["epoch"] + 1, "next_batch": 0})

    def __iter__(self) -> Iterator[tuple]:
        for batch in super().__iter__():
            if isinstance(batch[0], Pixels):
                raise GpufeedError(
                    f"a batch of split_idx {self.dataset.split_idx} that no batch transform took",
                    "a GPUPipelineTransform for it",
                    "add one with this split_idx to batch_tfms",
                )
            yield batch

    def get_idxs(self) -> list[int]:
        """Return an empty list, which a DataLoader made by `new(get_idxs=...)` fills as it goes.

        A Learner asks for the order before it predicts but uses it afterwards; only the loader knows it.
        """
        return []

    def places_of(self, batch: Batch) -> list[int]:
        """Return the indices of a batch's samples in `items`."""
        ids = batch.ids.cpu().numpy()
        if isinstance(self.batches, Loader):
            ids = np.searchsorted(self.batches.split_ids, ids)
        return ids.tolist()

    def new(
        self, dataset=None, cls=None, get_idxs: Callable[[], list[int]] | None = None, **kwargs
    ) -> "LoaderDL":
        """Return a DataLoader of the same batches, always in the loader's order, or of other images.

        dataset: a list of paths, files' bytes, arrays or Pillow images.
        """
        split, transforms = self.dataset.split_idx, list(self.after_batch.fs)
        if self.dataset.info is None and not isinstance(dataset, Split):
            found = f"no loader of ours for split_idx {split}"
            raise GpufeedError(found, "one whose dataset is known", "pass `evaluation` to data_loaders")
        if dataset is None or dataset is self.dataset:
            found = LoaderDL(self.batches, self.n, transforms, split, self.device, dataset=self.dataset)
        elif isinstance(dataset, Split):
            found = LoaderDL((), 0, transforms, split, self.device, dataset=dataset)
        else:
            pictures = Pictures(list(dataset), self.dataset.size, self.device)
            empty = self.dataset.new_empty()
            found = LoaderDL(pictures, len(pictures), transforms, split, self.device, dataset=empty)
        found.epoch = self.epoch
        found.places = get_idxs() if get_idxs is not None else None
        return found

    def one_batch(self) -> tuple:
        """Return the first batch of the next epoch without consuming it."""
        epoch, loader = self.epoch, self.batches if isinstance(self.batches, Loader) else None
        state = loader.state_dict() if loader is not None else None
        try:
            return super().one_batch()
        finally:
            self.close()
            self.epoch = epoch
            if loader is not None:
                loader.load_state_dict(state)

    def decode(self, batch: tuple) -> tuple:
        """Return a batch for display: images in 0..1 on the host, and labels of fastai's type."""
        import fastai.vision.data  # noqa: F401 - show_batch's grid for images

        images, *labels = to_cpu(batch)
        images = images.as_subclass(torch.Tensor).float()
        if (info := self.dataset.info) is not None:
            images = images.mul(channels(info.std, images.device)).add_(channels(info.mean, images.device))
        return TensorImage(images.clamp_(0, 1)), *[TensorCategory(label) for label in labels]

    def close(self) -> None:
        """End the running epoch early; safe to call twice."""
        if self.running is not None:
            self.running.close()
        self.running = None


def data_loaders(
    training: Iterable[Batch],
    length: int,
    augment: DeviceAugment,
    device: torch.device,
    arrived: Callable[[Batch], None] = ignored,
    evaluation: Iterable[Batch] = (),
    evaluation_length: int = 0,
    normalise: DeviceAugment | None = None,
) -> DataLoaders:
    """Return fastai DataLoaders over two open loaders; `augment` runs in training, `normalise` in evaluation.

    length, evaluation_length: batches of each. Without `evaluation` the second one is empty. A Learner can
    predict, show, interpret and be exported as with fastai's own; an exported one predicts without the data.
    """
    train_tfms = [GPUPipelineTransform(augment=augment)]
    evaluation_tfms = [GPUPipelineTransform(augment=normalise, split_idx=EVALUATION)] if normalise else []
    return DataLoaders(
        LoaderDL(training, length, train_tfms, TRAINING, device, arrived),
        LoaderDL(evaluation, evaluation_length, evaluation_tfms, EVALUATION, device),
        device=device,
    )
