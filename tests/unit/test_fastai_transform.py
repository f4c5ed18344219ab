"""Our augments in fastai: which batches they run on, and what they leave alone."""

import pytest
import torch
from fastai.torch_core import TensorImage
from fasttransform import Transform
from image_fixtures import MEAN, STD, request, write_dataset

from gpufeed.augment.fastai_transform import EVALUATION, TRAINING, GPUPipelineTransform, Pixels
from gpufeed.augment.plain import Normalise
from gpufeed.augment.reference import TorchAugment
from gpufeed.errors import GpufeedError
from gpufeed.loaders.dataloader import SyncLoader
from gpufeed.trainers.fastai_data import LoaderDL, data_loaders

CPU = torch.device("cpu")
AUGMENT = TorchAugment(MEAN, STD, 3, {"crop_padding": 2, "brightness": 0.4, "salt_pepper": 0.1})
NORMALISE = Normalise(MEAN, STD, 3, {})


@pytest.fixture
def manifest(tmp_path):
    return write_dataset(tmp_path / "tiny")


@pytest.fixture
def dls(manifest):
    train, test = (SyncLoader(request(manifest, None, split=split)) for split in ("train", "test"))
    return data_loaders(
        train, len(train), AUGMENT, CPU, evaluation=test, evaluation_length=len(test), normalise=NORMALISE
    )


def expected(manifest, split, augment):
    """(images, labels) of each batch, epoch after epoch, without fastai."""
    loader, epoch = SyncLoader(request(manifest, None, split=split)), 0
    while True:
        for batch in loader:
            yield augment(batch.images, batch.ids, epoch), batch.labels
        epoch += 1


def test_it_runs_on_every_training_batch_with_the_draws_of_its_samples(dls, manifest):
    right = expected(manifest, "train", AUGMENT)
    for _ in range(3):
        batches = list(dls.train)
        assert [len(labels) for _, labels in batches] == [5, 5, 5, 5, 3]
        for images, labels in batches:
            expected_images, expected_labels = next(right)
            assert type(images) is type(labels) is torch.Tensor
            assert torch.equal(images, expected_images)
            assert labels.dtype == torch.int64
            assert torch.equal(labels, expected_labels)
    assert dls.train.after_batch[0].batches == 15
    assert dls.valid.after_batch[0].batches == 0


def test_evaluation_is_normalised_only(dls, manifest):
    right = expected(manifest, "test", NORMALISE)
    batches = list(dls.valid) + list(dls.valid)
    assert len(batches) == 4
    for images, labels in batches:
        expected_images, expected_labels = next(right)
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)
    assert dls.train.after_batch[0].batches == 0


def test_a_transform_that_fastai_skips_is_an_error(dls):
    dls.train.dataset.split_idx = None  # as every dataset that does not set it
    with pytest.raises(GpufeedError, match="split_idx None that no batch transform took"):
        list(dls.train)
    assert dls.train.after_batch[0].batches == 0


class OfTensorImages(Transform):
    """As tutorials write it: fastai finds no method for our batches and goes on without it."""

    def encodes(self, x: TensorImage) -> torch.Tensor:
        raise AssertionError("fastai found a method")


@pytest.mark.parametrize(
    "wrong", [[OfTensorImages()], [GPUPipelineTransform(augment=AUGMENT, split_idx=EVALUATION)], []]
)
def test_so_is_one_of_another_type_or_split_or_none(manifest, wrong):
    loader = SyncLoader(request(manifest, None))
    with pytest.raises(GpufeedError, match="split_idx 0 that no batch transform took"):
        list(LoaderDL(loader, len(loader), wrong, TRAINING, CPU))


def test_labels_that_look_like_pixels_are_left_alone():
    transform = GPUPipelineTransform(augment=AUGMENT)
    images, ids = torch.zeros((2, 8, 8, 3), dtype=torch.uint8), torch.arange(2)
    labels = torch.full((2, 8, 8, 3), 7, dtype=torch.uint8)
    found = transform((Pixels(images, ids, 0), labels), split_idx=TRAINING)
    assert found[0].shape == (2, 3, 8, 8)
    assert found[1] is labels
