"""Our augments in fastai: which batches they run on, and what they leave alone."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from fastai.vision.all import (
    SGD,
    Callback,
    CancelFitException,
    CategoryBlock,
    ClassificationInterpretation,
    CrossEntropyLossFlat,
    DataBlock,
    DataLoaders,
    ImageBlock,
    IntToFloatTensor,
    Learner,
    Normalize,
    PILImage,
    TensorImage,
    TensorMask,
    TfmdDL,
    load_learner,
)
from fasttransform import Transform
from image_fixtures import MEAN, STD, pixels, request, write_dataset, write_strips
from torch import nn

from gpufeed.augment.base import Normalise
from gpufeed.augment.fastai_transform import EVALUATION, TRAINING, GPUPipelineTransform, Pixels
from gpufeed.augment.reference import TorchAugment
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load
from gpufeed.loaders.dataloader import SyncLoader
from gpufeed.training.engines.fastai_data import LoaderDL, data_loaders

CPU = torch.device("cpu")
AUGMENT = TorchAugment(MEAN, STD, 3, {"crop_padding": 2, "brightness": 0.4, "salt_pepper": 0.1})
NORMALISE = Normalise(MEAN, STD, 3, {})


@pytest.fixture
def manifest(tmp_path):
    return write_dataset(tmp_path / "tiny")


@pytest.fixture
def device():
    return CPU


@pytest.fixture
def dls(manifest, device):
    return made_of(*(SyncLoader(request(manifest, None, split=s, device=device)) for s in ("train", "test")))


def made_of(train, test, augment=AUGMENT) -> DataLoaders:
    """As a user makes them."""
    told = {"evaluation": test, "evaluation_length": len(test), "normalise": NORMALISE}
    return data_loaders(train, len(train), augment, train.request.device, **told)


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


FLIPPED = TorchAugment(MEAN, STD, 3, {"crop_padding": 0, "flip_probability": 1.0})


def original(sample_id: int) -> torch.Tensor:
    """A sample's pixels as fastai has them, float (3, 8, 8), 0..1."""
    return torch.from_numpy(pixels(sample_id, 8)).permute(2, 0, 1) / 255


class Seen(nn.Module):
    """Keeps what it got, (images, labels) of training and of evaluation."""

    def __init__(self):
        super().__init__()
        self.bias, self.got = nn.Parameter(torch.zeros(5)), {True: [], False: []}

    def forward(self, images):
        self.got[self.training].append(images.detach().as_subclass(torch.Tensor).clone())
        return self.bias.expand(len(images), 5)

    def images(self, training: bool) -> torch.Tensor:
        return torch.cat(self.got[training])


def ordinary(manifest, device, *batch_tfms):
    """A Learner as fastai's tutorials make it, but that it holds out each fourth id."""
    label = dict(zip(manifest.paths(), manifest.labels().tolist(), strict=True))
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock(vocab=list(range(5)))),
        splitter=lambda paths: tuple(
            [i for i, p in enumerate(paths) if (int(p.stem) % 4 == 0) == held] for held in (0, 1)
        ),
        get_y=label.get,
        batch_tfms=list(batch_tfms),
    )
    dls = block.dataloaders(list(label), bs=4, num_workers=0, device=device)
    return Learner(dls, Seen().to(device), loss_func=CrossEntropyLossFlat(), opt_func=SGD)


@pytest.mark.parametrize("normalise", [False, True])
def test_an_ordinary_learner_augments_what_it_trains_on_and_nothing_else(manifest, device, normalise):
    transform = GPUPipelineTransform(augment=FLIPPED)
    after = [Normalize.from_stats(MEAN, STD, cuda=device.type == "cuda")] if normalise else []
    learner = ordinary(manifest, device, transform, *after)
    labels = []
    learner.loss_func = lambda found, right: (
        labels.append(right.cpu().as_subclass(torch.Tensor)) or nn.functional.cross_entropy(found, right)
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(2)
    assert transform.batches == 2 * 5  # 21 images for training, the last one dropped
    assert [type(tfm) for tfm in learner.dls.after_batch.fs] == [
        IntToFloatTensor,
        GPUPipelineTransform,
        *[type(tfm) for tfm in after],
    ]
    mean, std = (
        torch.tensor(v).view(3, 1, 1) if normalise else torch.tensor(u) for v, u in ((MEAN, 0.0), (STD, 1.0))
    )
    assert learner.model.images(True).device.type == device.type
    found = {training: learner.model.images(training).cpu() * std + mean for training in (True, False)}
    assert [len(found[True]), len(found[False])] == [2 * 20, 2 * 8]
    for training, images in found.items():
        ids = (images[:, 0, 0, 0] * 255).round().long().tolist()
        assert all((sample_id % 4 == 0) != training for sample_id in ids)
        for sample_id, image in zip(ids, images, strict=True):
            right = original(sample_id).flip(2) if training else original(sample_id)
            assert torch.allclose(image, right, atol=1e-6)
    of_training = torch.cat([labels[i] for i in (*range(5), *range(7, 12))])
    ids = (found[True][:, 0, 0, 0] * 255).round().long()
    assert torch.equal(of_training, ids * 7 % 5)


def test_draws_of_an_ordinary_learner_differ_from_batch_to_batch_and_come_again(manifest):
    jittered = TorchAugment(MEAN, STD, 3, {"brightness": 0.4})
    batch = TensorImage(torch.stack([original(i) for i in range(4)])), torch.zeros(4)
    first, again = GPUPipelineTransform(augment=jittered), GPUPipelineTransform(augment=jittered)
    one, two = (first(batch, split_idx=TRAINING)[0] for _ in range(2))
    assert not torch.equal(one, two)
    assert torch.equal(one, again(batch, split_idx=TRAINING)[0])
    whole = TensorImage(batch[0].mul(255).to(torch.uint8))  # where nothing has made floats of them
    assert torch.equal(two, again((whole, batch[1]), split_idx=TRAINING)[0])


def test_the_summary_of_a_data_block_goes_through(manifest, capsys):
    """It calls each transform by itself, without a split."""
    transform = GPUPipelineTransform(augment=FLIPPED)
    blocks = ImageBlock, CategoryBlock(vocab=["png"])
    block = DataBlock(blocks=blocks, get_y=lambda path: path.suffix[1:], batch_tfms=[transform])
    block.summary(manifest.paths(), bs=4)
    assert "Applying batch_tfms to the batch built" in capsys.readouterr().out
    assert transform.batches == 0


class Plain(torch.utils.data.Dataset):
    """Samples without fastai's types; split_idx, if it has one."""

    def __init__(self, split_idx=None, image=torch.Tensor):
        self.image = image
        if split_idx is not None:
            self.split_idx = split_idx

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(3, 8, 8).as_subclass(self.image), index % 5


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        (Plain(split_idx=TRAINING), "Tensor, Tensor, in which GPUPipelineTransform finds no images"),
        (Plain(image=TensorImage), "a dataset without `split_idx`"),
        (Plain(), "a dataset without `split_idx`"),
    ],
)
def test_a_batch_that_fastai_would_pass_by_is_an_error_at_once(dataset, found):
    train = TfmdDL(dataset, bs=4, num_workers=0, after_batch=[GPUPipelineTransform(augment=AUGMENT)])
    learner = Learner(DataLoaders(train, train), Seen(), loss_func=CrossEntropyLossFlat())
    with pytest.raises(GpufeedError, match=found), learner.no_bar(), learner.no_logging():
        learner.fit(1)


def test_labels_that_would_have_to_move_and_gray_images_are_errors():
    transform = GPUPipelineTransform(augment=AUGMENT)
    images = TensorImage(torch.rand(2, 3, 8, 8))
    with pytest.raises(GpufeedError, match="TensorImage, TensorMask in GPUPipelineTransform"):
        transform((images, TensorMask(torch.zeros(2, 8, 8))), split_idx=TRAINING)
    with pytest.raises(GpufeedError, match=r"shape \(2, 1, 8, 8\)"):
        transform((images[:, :1], torch.zeros(2)), split_idx=TRAINING)


class Right(nn.Module):
    """Reads the sample's id from its normalised pixels and is sure of its class; wrong for ids of `wrong`."""

    def __init__(self, wrong=()):
        super().__init__()
        self.scale, self.wrong = nn.Parameter(torch.ones(())), wrong

    def ids(self, images):
        return ((images[:, 0].mean((1, 2)) * STD[0] + MEAN[0]) * 255).round().long()

    def forward(self, images):
        labels = [0 if i in self.wrong else i * 7 % 5 for i in self.ids(images).tolist()]
        return nn.functional.one_hot(torch.tensor(labels, device=images.device), 5) * self.scale * 9


def learner_of(dls, wrong=()) -> Learner:
    return Learner(dls, Right(wrong).to(dls.device), opt_func=SGD)


def test_dls_tell_classes_files_and_loss(dls, manifest):
    assert (list(dls.vocab), dls.c) == ([f"class {label}" for label in range(5)], 5)
    assert (len(dls.train_ds), len(dls.valid_ds), len(dls.train), len(dls.valid)) == (23, 6, 5, 2)
    ids = manifest.ids("test")
    assert [item.path for item in dls.valid.items] == [manifest.paths()[i] for i in ids]
    assert [item.label for item in dls.valid.items] == manifest.labels()[ids].tolist()
    assert isinstance(learner_of(dls).loss_func, CrossEntropyLossFlat)


@pytest.mark.parametrize(("ds_idx", "split"), [(0, "train"), (1, "test")])
@pytest.mark.parametrize("name", ["dataloader_sync", "strips"])
def test_predictions_are_in_the_order_of_the_items(manifest, device, name, ds_idx, split):
    """Though training batches are shuffled, and strips have an order of their own."""
    told = {"strips": write_strips(manifest), "device": device}
    loaders = [load("loader", name)(request(manifest, None, split=s, **told)) for s in ("train", "test")]
    with loaders[0] as train, loaders[1] as test:
        learner = learner_of(made := made_of(train, test, NORMALISE))
        with learner.no_bar():
            found, labels, decoded, losses = learner.get_preds(ds_idx, with_decoded=True, with_loss=True)
    right = torch.from_numpy(manifest.labels()[manifest.ids(split)])
    assert torch.equal(labels, right)
    assert torch.equal(decoded, right)
    assert torch.equal(found.argmax(1), right)
    assert losses.shape == right.shape
    assert [item.label for item in made[ds_idx].items] == right.tolist()


def test_showing_takes_no_batch_from_the_epoch_that_follows(dls, manifest, monkeypatch):
    shown = []
    monkeypatch.setattr(TensorImage, "show", lambda self, ctx=None, **more: shown.append(self) or ctx)
    titles = []
    monkeypatch.setattr(
        "fastai.data.transforms.Category.show", lambda self, ctx=None, **more: titles.append(self) or ctx
    )
    dls.valid.show_batch(max_n=4)
    ids = [(image[0, 0, 0] * 255).round().int().item() for image in shown]
    assert len(ids) == len(set(ids) & set(manifest.ids("test").tolist())) == 4
    assert all(torch.allclose(image, original(i), atol=1e-6) for i, image in zip(ids, shown, strict=True))
    assert titles == [f"class {i * 7 % 5}" for i in ids]
    dls.show_batch(max_n=3)
    assert len(shown) == 7
    learner_of(dls).show_results(max_n=2)
    assert titles[-4:] == [f"class {i * 7 % 5}" for i in ids[:2]] * 2  # the labels, then what was predicted
    plt.close("all")
    assert [len(batch[1]) for batch in dls.train] == [5, 5, 5, 5, 3]
    assert (
        next(iter(dls.train))[1].tolist()
        == next(skipped(expected(manifest, "train", AUGMENT), 5))[1].tolist()
    )
    assert sum(len(batch[1]) for batch in dls.valid) == 6


class Cancelled(Callback):
    """Ends a fit in the midst of its first epoch, as lr_find does."""

    def after_batch(self):
        if self.training and self.iter == 1:
            raise CancelFitException


def test_an_epoch_that_was_ended_early_does_not_shorten_the_next(dls):
    learner = Learner(dls, Seen(), opt_func=SGD)
    with learner.no_bar(), learner.no_logging():
        learner.fit(1, cbs=Cancelled())
        assert len(learner.model.images(True)) == 10
        learner.fit(1)
    assert len(learner.model.images(True)) == 10 + 23
    assert [len(batch[1]) for batch in dls.train] == [5, 5, 5, 5, 3]


def skipped(batches, count):
    for _ in range(count):
        next(batches)
    return batches


def test_interpretation_finds_what_was_wrong(dls, manifest):
    ids = manifest.ids("test").tolist()
    wrong = next(i for i in ids if i * 7 % 5)
    learner = learner_of(dls, wrong=(wrong,))
    with learner.no_bar():
        found = ClassificationInterpretation.from_learner(learner)
        counts = found.confusion_matrix()
        losses, places = found.top_losses(1)
        inputs, _, targets, decoded, _ = found[places]
        found.plot_top_losses(1)
    plt.close("all")
    right = np.zeros((5, 5), int)
    for i in ids:
        right[i * 7 % 5, 0 if i == wrong else i * 7 % 5] += 1
    assert counts.tolist() == right.tolist()
    assert places.tolist() == [ids.index(wrong)]
    assert losses.item() > 1
    assert (targets.tolist(), decoded.tolist()) == ([wrong * 7 % 5], [0])
    assert learner.model.ids(inputs).tolist() == [wrong]


@pytest.mark.parametrize("kind", ["path", "bytes", "pil", "array", "larger"])
def test_what_was_exported_predicts_without_loader_and_data(dls, manifest, tmp_path, kind):
    learner = learner_of(dls)
    learner.path = tmp_path
    learner.export("model.pkl")
    assert len(learner.dls.train_ds) == 23  # as before
    sample_id = 17
    path = tmp_path / "mine.png"
    path.write_bytes(manifest.paths()[sample_id].read_bytes())
    image = PILImage.create(path)
    items = {
        "path": path,
        "bytes": path.read_bytes(),
        "pil": image,
        "array": np.array(image),
        "larger": image.resize((32, 24)),
    }
    with pytest.warns(UserWarning, match="insecure pickle"):
        loaded = load_learner(tmp_path / "model.pkl")
    with loaded.no_bar():
        name, label, scores = loaded.predict(items[kind])
    assert (name, int(label)) == (f"class {sample_id * 7 % 5}", sample_id * 7 % 5)
    assert scores.argmax() == label
    assert loaded.dls.vocab[int(label)] == name


def test_images_that_cannot_be_predicted_are_named(dls, tmp_path):
    learner = learner_of(dls)
    (tmp_path / "bad.png").write_bytes(b"no image")
    with learner.no_bar():
        for item, found in (
            (tmp_path / "bad.png", "bad.png"),
            (tmp_path / "gone.png", "gone.png"),
            (np.zeros((8, 8)), "float64"),
            (5, "5: .*int"),
            (b"no image", "the bytes of a file"),
        ):
            with pytest.raises(GpufeedError, match=found):
                learner.predict(item)


def test_without_an_evaluation_loader_predictions_say_what_is_missing(manifest):
    train = SyncLoader(request(manifest, None))
    learner = learner_of(data_loaders(train, len(train), AUGMENT, CPU))
    with pytest.raises(GpufeedError, match="no loader of ours for split_idx 1"):
        learner.get_preds()
