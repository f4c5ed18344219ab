"""Any of our loaders as fastai DataLoaders."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import torch
from fastai.data.core import DataLoaders, TfmdDL

from gpufeed.augment.fastai_transform import EVALUATION, TRAINING, GPUPipelineTransform, Pixels
from gpufeed.errors import GpufeedError
from gpufeed.loaders.base import Batch
from gpufeed.trainers.base import DeviceAugment


class Split:
    """What fastai asks of a dataset: which of its data this is, and how many parts of a batch are input."""

    n_inp = 1

    def __init__(self, split_idx: int, batches: int):
        self.split_idx, self.batches = split_idx, batches

    def __len__(self) -> int:
        return self.batches


class LoaderDL(TfmdDL):
    """(images, labels) of each batch of a loader, through fastai's batch transforms.

    Only a dataset's `split_idx` lets a transform run that is meant for training alone: without it fastai
    skips the transform and says nothing. A batch that no transform took is an error here.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        length: int,
        batch_tfms: list,
        split_idx: int,
        device: torch.device,
        arrived: Callable[[Batch], None] = lambda batch: None,
    ):
        """batches: an open loader; iterating it once is an epoch, of `length` batches.

        arrived: called with each batch before its transforms.
        """
        super().__init__(
            Split(split_idx, length), bs=None, num_workers=0, after_batch=batch_tfms, device=device
        )
        # its own generator: torch draws a seed an epoch, and the model's must not depend on it
        self.fake_l.generator = torch.Generator().manual_seed(0)
        self.batches, self.arrived = batches, arrived
        self.epochs, self.running = itertools.count(), None

    def create_batches(self, samples: Iterator) -> Iterator[tuple[Pixels, torch.Tensor]]:
        epoch = next(self.epochs)
        if not len(self.dataset):
            return
        with closing(iter(self.batches)) as self.running:
            for batch in self.running:
                self.arrived(batch)
                yield Pixels(batch.images, batch.ids, epoch), batch.labels

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in super().__iter__():
            if isinstance(images, Pixels):
                raise GpufeedError(
                    f"a batch of split_idx {self.dataset.split_idx} that no batch transform took",
                    "a GPUPipelineTransform for it",
                    "give batch_tfms one with this split_idx",
                )
            yield images, labels

    def close(self) -> None:
        """Ends an epoch before its end; safe to call twice."""
        if self.running is not None:
            self.running.close()
        self.running = None


def data_loaders(
    training: Iterable[Batch],
    length: int,
    augment: DeviceAugment,
    device: torch.device,
    arrived: Callable[[Batch], None] = lambda batch: None,
    evaluation: Iterable[Batch] = (),
    evaluation_length: int = 0,
    normalise: DeviceAugment | None = None,
) -> DataLoaders:
    """fastai DataLoaders over two open loaders: `augment` runs in training, `normalise` in evaluation.

    length, evaluation_length: batches of each. Without `evaluation` the second one is empty.
    """
    train_tfms = [GPUPipelineTransform(augment=augment)]
    evaluation_tfms = [GPUPipelineTransform(augment=normalise, split_idx=EVALUATION)] if normalise else []
    return DataLoaders(
        LoaderDL(training, length, train_tfms, TRAINING, device, arrived),
        LoaderDL(evaluation, evaluation_length, evaluation_tfms, EVALUATION, device),
        device=device,
    )
