"""A torch Dataset by reference: its manifest, and items that draw as a function of seed, epoch and sample."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.loaders.base import LoadRequest, make_loader

DATA = """
import random

import numpy as np
import torch
from PIL import Image


class Noise:
    classes = ["even", "odd"]

    def __init__(self, count=6, height=8):
        self.count, self.height = count, height

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draws = [random.randrange(256), np.random.randint(256), int(torch.randint(256, ()))]
        return Image.new("RGB", (10, self.height), tuple(draws)), index % 2


class Uneven(Noise):
    def __getitem__(self, index):
        return Image.new("L", (10 + index, 8)), torch.tensor(index % 2)


class Listed(Noise):
    def __init__(self, folder, last=3):
        self.samples = [(f"{folder}/{i}.png", i % 2) for i in range(last)]

    def __len__(self):
        return len(self.samples)


class Targeted(Noise):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], self.targets[index]


class Third(Targeted):
    targets = torch.tensor([0, 1, 2, 0, 1, 2])


class Below(Targeted):
    targets = [0, 1, -1, 0, 1, 0]


class Ids(Targeted):
    classes = 3  # their number
    targets = [2084071, 2, 1, 0, 1, 0]


class Far(Targeted):
    classes = 3
    targets = [7, 2, 1, 0, 1, 0]


class Transformed(Noise):
    targets = [0, 3, 2, 5, 4, 7]  # of which __getitem__ returns others


class Named(Noise):
    targets = ["even", "odd"] * 3


class Rows(Noise):
    targets = np.eye(2)[[0, 1] * 3]


class Halves(Noise):
    targets = torch.tensor([1.5, 0.5] * 3)


class Method(Noise):
    def labels(self):
        return [0, 0]
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """(attribute, options) -> the prepared manifest of that Dataset."""
    monkeypatch.chdir(tmp_path)
    name = f"data_{tmp_path.name}"  # each test's own module
    (tmp_path / f"{name}.py").write_text(DATA)

    def made(attribute: str, **options) -> Manifest:
        prepare(f"{name}.py:{attribute}", [], tmp_path / "out", "mine", options)
        return Manifest.read(tmp_path / "out/manifest.parquet")

    return made


def test_a_manifest_has_a_row_for_each_item_of_both_splits(made):
    manifest = made("Noise", count=4, evaluation={"count": 3})
    assert manifest.table["split"].tolist() == ["train"] * 4 + ["test"] * 3
    assert manifest.labels().tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert (manifest.image_size(), manifest.info.classes, manifest.made) == ((8, 10), ["even", "odd"], True)


def test_an_item_is_a_function_of_seed_epoch_and_sample_and_leaves_random_numbers_alone(made):
    manifest = made("Noise", evaluation={"height": 8})
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(()), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    draws = {
        key: manifest.pixels(*key)[0, 0].tolist() for key in [(0, 5, 1), (1, 5, 1), (0, 6, 1), (0, 5, 2)]
    }
    assert (torch.rand(()), np.random.rand(), random.random()) == expected
    assert all(len({colour[channel] for colour in draws.values()}) > 1 for channel in range(3))
    assert manifest.pixels(0, 5, 1)[0, 0].tolist() == draws[0, 5, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_give_the_items_that_the_process_itself_makes(made, workers):
    manifest = made("Noise")
    name = "dataloader_workers" if workers else "dataloader_sync"
    request = LoadRequest(manifest, "train", 4, torch.device("cpu"), seed=3, workers=workers)
    with make_loader(name, request) as loader:
        for epoch in range(2):
            for batch in loader:
                for image, sample in zip(batch.images, batch.ids.tolist(), strict=True):
                    assert np.array_equal(image.numpy(), manifest.pixels(sample, 3, epoch))


def test_files_that_a_dataset_names_are_laid_out_for_all_loaders(made, tmp_path):
    colours = [(0, 0, 9 * i) for i in range(3)]
    for i, colour in enumerate(colours):
        Image.new("RGB", (10, 8), colour).save(tmp_path / f"{i}.png")
    manifest = made("Listed", folder=str(tmp_path), files=True, evaluation={"last": 1})
    assert not manifest.made
    assert manifest.table["split"].tolist() == ["train"] * 3 + ["test"]
    assert [Image.open(path).getpixel((0, 0)) for path in manifest.paths()] == [*colours, colours[0]]
    assert manifest.labels().tolist() == [0, 1, 0, 0]
    (tmp_path / "1.png").write_bytes(b"no image")
    with pytest.raises(GpufeedError, match=rf"  {tmp_path}/1\.png: not an image") as error:
        made("Listed", folder=str(tmp_path), files=True)
    assert "download" not in error.value.remedy
    with pytest.raises(GpufeedError, match=r"no file .*/3\.png"):
        made("Listed", folder=str(tmp_path), files=True, last=4)
    with pytest.raises(GpufeedError, match="whose `samples` are not files"):
        made("Noise", files=True)


def test_an_image_of_another_size_and_a_label_without_a_class_are_named(made):
    request = LoadRequest(made("Uneven"), "train", 6, torch.device("cpu"))
    with (
        make_loader("dataloader_sync", request) as loader,
        pytest.raises(GpufeedError, match=r"\(8, 1\d, 3\)") as error,
    ):
        list(loader)
    assert "resize" in error.value.remedy
    for name, label in (("Third", 2), ("Below", -1)):
        with pytest.raises(GpufeedError, match=rf"label {label} in .* whose `classes` are 2"):
            made(name)


def test_a_dataset_without_names_has_a_class_for_each_label_but_not_for_ids(made):
    assert made("Far").info.classes == ["0", "1", "2", "3", "4", "5", "6", "7"]
    with pytest.raises(GpufeedError, match=r"label 2084071 in .* which has no `classes`"):
        made("Ids")


@pytest.mark.parametrize("name", ["Named", "Rows", "Halves", "Method", "Transformed"])
def test_labels_are_those_of_the_items_where_targets_are_others_or_no_whole_numbers(made, name):
    assert made(name).labels().tolist() == [0, 1, 0, 1, 0, 1]
