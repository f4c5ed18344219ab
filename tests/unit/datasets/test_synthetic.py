"""Synthetic images: the numbers asked for, the same bytes each time, and something to learn."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from data_fixtures import REPOSITORY, files_below, files_of_at_most
from PIL import Image

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.synthetic import grating, parse_options, reorganise

SMALL = {
    "count": 40,
    "size": [12, 16],
    "classes": 4,
    "grayscale_share": 0.25,
    "evaluation_share": 0.2,
    "seed": 3,
}


@pytest.mark.parametrize("form", ["jpeg", "png"])
def test_counts_sizes_and_channels(tmp_path, form):
    manifest = reorganise([], tmp_path, "synthetic", {**SMALL, "format": form})
    table = manifest.table
    assert table.groupby("split").size().to_dict() == {"train": 32, "test": 8}
    assert table.groupby(["split", "label"]).size().tolist() == [2] * 4 + [8] * 4
    assert (table["channels"] == 1).sum() == 10
    assert manifest.image_size() == (12, 16)
    assert manifest.info.source["size"] == [12, 16]
    for path, channels in zip(manifest.paths(), table["channels"], strict=True):
        image = Image.open(path)
        assert (image.size, image.mode, image.format.lower()) == (
            (16, 12),
            "L" if channels == 1 else "RGB",
            form,
        )


def test_same_seed_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        reorganise([], tmp_path / name, "synthetic", {**SMALL, "seed": seed})
    a, b, c = (files_below(tmp_path / name) for name in "abc")
    assert a == b
    assert a.keys() == c.keys()
    assert all(a[name] != c[name] for name in a)


def test_statistics_are_those_of_the_training_pixels(tmp_path):
    manifest = reorganise([], tmp_path, "synthetic", {**SMALL, "format": "png"})
    train = [manifest.paths()[i] for i in manifest.ids("train")]
    pixels = (
        np.concatenate([np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3) for path in train]) / 255
    )
    np.testing.assert_allclose(manifest.info.mean, pixels.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(manifest.info.std, pixels.std(axis=0), atol=1e-5)


def test_a_small_network_learns_it_in_one_epoch():
    """Chance is 0.1."""
    options, train, total = parse_options({"size": 32}), 1600, 2000
    pixels = np.stack([grating(i, i % 10, options) for i in range(total)])  # (N, 32, 32, 3)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1  # (N, 3, 32, 32)
    labels = torch.arange(total) % 10
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 5, stride=2)]
    layers += [torch.nn.ReLU(), torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)]
    model = torch.nn.Sequential(*layers)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for batch in torch.randperm(train).split(32):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        accuracy = (model(images[train:]).argmax(1) == labels[train:]).float().mean().item()
    assert accuracy > 0.5


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("sise", 3, "write 'size' instead"),
        ("size", 4, "size: 4"),
        ("size", [64], r"size: \[64\]"),
        ("size", "64", "size: '64'"),
        ("size", True, "size: True"),
        ("format", "gif", "one of: jpeg, png"),
        ("quality", 0, "at least 1"),
        ("seed", -1, "at least 0"),
        ("count", 2.5, "type integer"),
        ("count", 5, "4 training images for 10 classes"),
        ("classes", 0, "at least 2"),
        ("evaluation_share", 1, "below 1"),
        ("grayscale_share", 1.5, "at most 1"),
    ],
)
def test_impossible_options(option, value, message):
    with pytest.raises(GpufeedError, match=message):
        parse_options({option: value})


def test_full_disk_leaves_nothing(tmp_path):
    options = {"count": 12, "size": 200, "format": "png", "evaluation_share": 0}  # about 90 kB an image
    with files_of_at_most(50_000), pytest.raises(GpufeedError, match=r"no room to write in .*File too large"):
        reorganise([], tmp_path, "synthetic", options)
    assert files_below(tmp_path) == {}


def test_full_disk_at_the_manifest(tmp_path):
    options = {"count": 12, "size": 8, "format": "png", "evaluation_share": 0}
    with files_of_at_most(1_000), pytest.raises(GpufeedError, match="no room to write"):
        reorganise([], tmp_path, "synthetic", options)
    assert not (tmp_path / "manifest.parquet").exists()


def test_killed_run_is_not_taken_for_a_finished_one(tmp_path):
    """SIGKILL in mid-write; the next run starts clean, and an old manifest does not survive either."""
    reorganise([], tmp_path, "synthetic", SMALL)
    code = (
        "import sys; from pathlib import Path; from gpufeed.datasets.synthetic import reorganise\n"
        "reorganise([], Path(sys.argv[1]), 'synthetic', {'count': 100_000, 'size': 8})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not any(tmp_path.glob("images.partial/train/class_9/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert any(tmp_path.glob("images.partial/train/class_9/*"))
    assert not (tmp_path / "manifest.parquet").exists()
    assert not (tmp_path / "images").exists()
    manifest = reorganise([], tmp_path, "synthetic", SMALL)
    assert set(files_below(tmp_path)) == {*manifest.table["path"], "manifest.parquet"}
