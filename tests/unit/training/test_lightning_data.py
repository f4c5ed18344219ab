"""The data modules for a user's own script: three formats, Lightning's fit, resume, the shares of ranks."""

import hashlib
from typing import ClassVar

import numpy as np
import pytest
import torch
from data_fixtures import REPOSITORY, cifar_files, tiny_files, write_fashion, write_tar, write_zip
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import request, write_cache, write_dataset
from PIL import Image
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint

from gpufeed import CIFAR10DataModule, FashionMNISTDataModule, TinyImageNetDataModule
from gpufeed.augment.base import Normalise
from gpufeed.core.errors import GpufeedError
from gpufeed.loaders.resident import ResidentLoader
from gpufeed.training.distributed.launch_ranks import spread
from gpufeed.training.distributed.process_group import gathered
from gpufeed.training.distributed.rank_files import Call
from gpufeed.training.lightning_data import Batches, ImageDataModule, whole


def with_files(module, layout, files):
    """The data module with these files in place of the published ones."""
    rows = [{"name": one.name, "sha256": hashlib.sha256(one.read_bytes()).hexdigest()} for one in files]
    return type(module.__name__, (module,), {"source": {"layout": layout, "files": rows}})


FORMATS = {
    "tiny_imagenet": (
        TinyImageNetDataModule,
        lambda folder: [write_zip(folder / "tiny-imagenet-200.zip", tiny_files())],
        (2, (3, 8, 8), 4, [1, 0]),  # wnids.txt is not sorted: n02 is class 0
    ),
    "cifar10": (
        CIFAR10DataModule,
        lambda folder: [write_tar(folder / "cifar-10-python.tar.gz", cifar_files())],
        (2, (3, 32, 32), 20, [0, 1, 0, 1]),
    ),
    "fashion_mnist": (
        FashionMNISTDataModule,
        write_fashion,
        (10, (3, 6, 5), 20, list(range(10))),
    ),
}


@pytest.fixture(params=FORMATS)
def made(request, tmp_path):
    """(a data module of tiny files that lie beside its data_dir, what they hold)."""
    module, write, expected = FORMATS[request.param]
    return with_files(module, request.param, write(tmp_path)), tmp_path / "data", expected


def test_each_format_is_organised_and_comes_with_its_labels(made):
    module, folder, (classes, dims, train, held_out) = made
    dm = module(folder, batch_size=3, num_workers=0)
    with pytest.raises(GpufeedError, match=r"before setup\(\)"):
        dm.num_classes  # noqa: B018
    dm.prepare_data()
    dm.setup()
    assert (dm.num_classes, len(dm.classes), dm.dims) == (classes, classes, dims)
    split = dm.manifest.info.evaluation_split
    folders = sorted(path.name for path in (dm.manifest.root / "images" / split).iterdir())
    assert folders == sorted(dm.classes) or module.__name__.startswith("Fashion")
    seen = [labels for images, labels in dm.train_dataloader()]
    assert sorted(torch.cat(seen).tolist()) == sorted(dm.manifest.labels()[:train].tolist())
    images, labels = (torch.cat(part) for part in zip(*dm.val_dataloader(), strict=True))
    assert sorted(labels.tolist()) == sorted(held_out)
    info, ids = dm.manifest.info, dm.manifest.ids(split)
    assert labels.tolist() == dm.manifest.labels()[ids].tolist()
    for image, sample_id in zip(images, ids, strict=True):  # not augmented
        pixels = np.asarray(Image.open(dm.manifest.paths()[sample_id]).convert("RGB")) / 255
        expected = torch.from_numpy((pixels - np.array(info.mean)) / np.array(info.std)).permute(2, 0, 1)
        torch.testing.assert_close(image, expected.float(), rtol=1e-4, atol=1e-4)
    dm.teardown()


def test_files_that_are_not_the_published_ones_are_refused(tmp_path):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"not the published archive")
    module = with_files(
        TinyImageNetDataModule, "tiny_imagenet", [write_zip(tmp_path / "other.zip", tiny_files())]
    )
    module.source["files"][0]["name"] = "tiny-imagenet-200.zip"
    with pytest.raises(GpufeedError, match="sha256"):
        module(tmp_path / "data").prepare_data()


class Tiny(ImageDataModule):
    dataset = "toys"
    source: ClassVar = {
        "layout": "synthetic",
        "options": {"count": 61, "size": 16, "classes": 3, "evaluation_share": 0.2, "format": "png"},
    }


class Net(LightningModule):
    """A user's own module, which does not use gpufeed."""

    def __init__(self, classes=3):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(classes)
        )
        self.seen, self.told = [], []

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(images), labels)
        self.seen.append((self.current_epoch, images.double().sum().item(), labels.tolist()))
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.told.append(labels.tolist())
        self.log("val_acc", (self.net(images).argmax(1) == labels).float().mean())

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder, dm, epochs=2, ckpt_path=None, **trainer):
    """The module and the trainer of an ordinary user's fit."""
    seed_everything(0)
    module = Net()
    module.net(torch.zeros(1, 3, 16, 16))
    engine = Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"accelerator": "cpu", "enable_checkpointing": False, **trainer},
    )
    engine.fit(module, datamodule=dm, ckpt_path=ckpt_path)
    return module, engine


@pytest.mark.parametrize(
    ("loader", "augment"), [("resident", "torch"), ("dataloader_workers", "cpu"), ("dali_cpu", "dali")]
)
def test_a_fit_of_ones_own_sees_every_image_once_an_epoch(tmp_path, loader, augment):
    if loader == "dali_cpu":
        pytest.importorskip("nvidia.dali")
    dm = Tiny(tmp_path / "data", batch_size=7, num_workers=1, loader=loader, augment=augment)
    module, engine = fit(tmp_path, dm)
    labels = sorted(dm.manifest.labels()[dm.manifest.ids("train")].tolist())
    first, second = ([row for row in module.seen if row[0] == epoch] for epoch in (0, 1))
    for rows in (first, second):
        assert sorted(label for _, _, batch in rows for label in batch) == labels
    assert [row[1:] for row in first] != [row[1:] for row in second]  # another order, other crops
    held_out = dm.manifest.labels()[dm.manifest.ids("test")].tolist()
    told = [label for batch in module.told for label in batch]
    assert told == held_out + held_out * 2  # after the two batches, here all, of the sanity check
    assert dm._opened == {}
    engine.test(module, datamodule=dm, verbose=False)
    assert [label for batch in module.told for label in batch][len(told) :] == held_out


class Reusing(ResidentLoader):
    """One whose batches lie in the same memory, one after the other."""

    def epoch_batches(self, done):
        for batch in super().epoch_batches(done):
            for name in ("images", "labels"):
                own = vars(self).setdefault(f"own_{name}", getattr(batch, name).clone())
                own[: len(batch.labels)] = getattr(batch, name)
                setattr(batch, name, own[: len(batch.labels)])
            yield batch


@pytest.mark.parametrize("augment", [None, Normalise((0, 0, 0), (1, 1, 1), 0, {})])
def test_batches_are_the_callers_to_keep(tmp_path, augment):
    manifest = write_dataset(tmp_path)
    own = request(manifest, write_cache(manifest), batch_size=5)
    with ResidentLoader(own) as plain, Reusing(own) as reusing:
        for kept, found in zip(list(Batches(reusing, augment)), Batches(plain, augment), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(kept, found, strict=True))


def fit_of_a_rank(folder):
    """What a rank of two has trained on, epoch by epoch, and its final weights."""
    dm = Tiny(folder / "data", batch_size=24, loader="resident")
    module, engine = fit(folder, dm, strategy="ddp", devices=2)
    assert engine.world_size == 2
    weights = [weight.detach().clone() for weight in module.parameters()]
    return gathered((module.seen, module.told, weights), 2)


@pytest.mark.slow
def test_two_processes_share_the_images_of_an_ordinary_fit(tmp_path):
    """49 images in batches of 24: rank 0 has 24 and 1; rank 1 has 24, as 23 and 1."""
    ranks = spread(Call("test_lightning_data:fit_of_a_rank", {"folder": tmp_path}, 2, "cpu", 1))
    dm = Tiny(tmp_path / "data")
    dm.setup()
    expected = sorted(dm.manifest.labels()[dm.manifest.ids("train")].tolist())
    for epoch in (0, 1):
        batches = [[batch for at, _, batch in seen if at == epoch] for seen, _, _ in ranks]
        assert [[len(batch) for batch in rank] for rank in batches] == [[24, 1], [23, 1]]
        assert sorted(label for rank in batches for batch in rank for label in batch) == expected
    for one, other in zip(ranks[0][2], ranks[1][2], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("step", "when"),
    [
        (10, {"every_n_train_steps": 10}),
        (7, {"every_n_train_steps": 7}),  # after the last batch, and before Lightning ends the epoch
        (7, {"every_n_epochs": 1, "save_on_train_epoch_end": True}),
    ],
)
def test_a_fit_goes_on_from_a_checkpoint_to_the_same_batches_and_weights(tmp_path, step, when):
    """49 images in batches of 7: step 7 ends an epoch."""
    settings = {"batch_size": 7, "loader": "resident"}
    keep = ModelCheckpoint(tmp_path / "kept", save_top_k=-1, filename="{step}", **when)
    kept = {"enable_checkpointing": True, "callbacks": [keep]}
    undisturbed, _ = fit(tmp_path, Tiny(tmp_path / "data", **settings), **kept)
    assert len(undisturbed.seen) == 14
    found = tmp_path / f"kept/step={step}.ckpt"
    resumed, _ = fit(tmp_path, Tiny(tmp_path / "data", **settings), ckpt_path=found)
    assert resumed.seen == undisturbed.seen[step:]
    for name, weight in undisturbed.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight)
    if step == 10:
        with pytest.raises(GpufeedError, match="batch_size 7"):
            fit(tmp_path, Tiny(tmp_path / "data", **{**settings, "batch_size": 5}), ckpt_path=found)


def test_an_epoch_that_is_cut_short_is_not_gone_on_with(tmp_path):
    dm = Tiny(tmp_path / "data", batch_size=8, loader="resident")
    module, _ = fit(tmp_path, dm, limit_train_batches=4, reload_dataloaders_every_n_epochs=1)
    cut = [row[1:] for row in module.seen]
    assert len(cut) == 8
    module, _ = fit(tmp_path, Tiny(tmp_path / "data", batch_size=8, loader="resident"))
    full = [row[1:] for row in module.seen]
    assert cut == full[:4] + full[7:11]


def test_a_batch_size_that_changes_is_that_of_the_next_loader(tmp_path):
    """As Lightning's search for a batch size changes it."""
    dm = Tiny(tmp_path / "data", batch_size=8, loader="resident")
    dm.setup()
    one = next(iter(dm.train_dataloader()))
    dm.batch_size = 49
    assert (len(one[1]), [len(labels) for _, labels in dm.train_dataloader()]) == (8, [49])


@settings(max_examples=30)
@given(st.integers(3, 23), st.integers(1, 12), st.integers(1, 3), st.data())
def test_ranks_have_as_many_batches_and_together_each_image_once(tmp_path_factory, images, size, ranks, data):
    manifest = write_dataset(tmp_path_factory.mktemp("ranks"), train=images)
    cache = write_cache(manifest)

    def batches(rank):
        own = request(manifest, cache, rank=rank, world_size=ranks, batch_size=size)
        loader = ResidentLoader(own)
        loader.open()
        return Batches(loader, Normalise((0, 0, 0), (1 / 255, 1 / 255, 1 / 255), 0, {}))

    def ids(images):
        return images[:, 0, 0, 0].int().tolist()  # write_dataset has them in the pixels

    steps = [[[ids(images) for images, _ in one] for _ in range(2)] for one in map(batches, range(ranks))]
    assert {len(epoch) for rank in steps for epoch in rank} == {len(batches(0))}
    expected = sorted(manifest.ids("train").tolist())
    for epoch in (0, 1):
        found = sorted(one for rank in steps for batch in rank[epoch] for one in batch)
        if size > 1:
            assert found == expected
        assert set(found) == set(expected)
    step = data.draw(st.integers(0, len(steps[0][0]) - 1))
    first = batches(0)
    for _, _batch in zip(range(step), first, strict=False):
        pass
    state = first.state_dict()
    for rank in range(ranks):
        resumed = batches(rank)
        resumed.load_state_dict(state)
        iter(resumed)  # one that nobody asks for a batch ends no epoch
        assert [ids(images) for images, _ in resumed] == steps[rank][0][step:]
        assert [ids(images) for images, _ in resumed] == steps[rank][1]
    assert whole(state)["epoch"] == (step > 0)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"loader": "residant"}, "loader 'residant'"),
        ({"loader": "replay"}, "loader 'replay'"),
        ({"augment": "fuse"}, "augment 'fuse'"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"num_workers": -1}, "workers: -1"),
        ({"augment_options": {"rotate": 3}}, "rotate"),
        ({"augment_options": {"flip_probability": 3}}, "flip_probability"),
        ({"loader": "resident", "augment": "cpu"}, "resident decodes nothing during an epoch"),
        ({"loader": "spdl_processes", "num_workers": 0}, "spdl_processes needs at least one worker"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(settings, found):
    with pytest.raises(GpufeedError) as error:
        TinyImageNetDataModule(**settings)
    assert found in error.value.found


@pytest.mark.parametrize("settings", [{"loader": "dali_gpu"}, {"augment": "fused"}])
def test_what_needs_a_gpu_is_refused_on_a_cpu(tmp_path, settings):
    with pytest.raises(GpufeedError, match="the device is cpu"):
        fit(tmp_path, Tiny(tmp_path / "data", **settings))


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    page = (REPOSITORY / "docs/reference/training.md").read_text()
    code = page.split("## In a Lightning script of your own")[1].split("```python")[1].split("```")[0]
    files = with_files(TinyImageNetDataModule, "tiny_imagenet", FORMATS["tiny_imagenet"][1](tmp_path))
    monkeypatch.setattr(TinyImageNetDataModule, "source", files.source)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    exec(code, names)  # the page's own text
    assert names["trainer"].global_step == 2
    assert 0 <= names["trainer"].callback_metrics["val_acc"] <= 1
