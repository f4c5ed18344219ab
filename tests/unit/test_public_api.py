"""The public API: its names, what `loader` promises, and that the examples of docs/reference/api.md run."""

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from data_fixtures import REPOSITORY, cifar_files, tiny_files, write_fashion, write_tar, write_zip
from paste_fixtures import IMAGES, MEAN, SIZE, STD, write_photos
from PIL import Image

import gpufeed
from gpufeed.datasets.prepare import prepare

PAGE = (REPOSITORY / "docs/reference/api.md").read_text()
EXAMPLES = dict(re.findall(r"^## `(\w+)`\n\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def test_every_name_is_listed_annotated_and_has_an_example():
    assert set(EXAMPLES) == set(gpufeed.PUBLIC) == set(gpufeed.__all__) - {"__version__"}
    assert set(gpufeed.PUBLIC) <= set(dir(gpufeed))
    text = (REPOSITORY / "gpufeed/__init__.py").read_text()
    for name, module in gpufeed.PUBLIC.items():
        assert f"    from {module} import {name} as {name}\n" in text  # what type checkers see
        assert callable(getattr(gpufeed, name))
    assert (REPOSITORY / "gpufeed/py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute 'loaders_by_name'"):
        gpufeed.loaders_by_name  # noqa: B018


def test_the_import_alone_brings_no_torch():
    code = "import gpufeed, sys; dir(gpufeed); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder `photos` in the working directory, and the pixels of its images by their label."""
    monkeypatch.chdir(tmp_path)
    return write_photos(tmp_path / "photos")


SOURCES = {
    "TinyImageNetDataModule": ("tiny_imagenet", lambda at: [write_zip(at / "tiny.zip", tiny_files())]),
    "CIFAR10DataModule": ("cifar10", lambda at: [write_tar(at / "cifar.tar.gz", cifar_files())]),
    "FashionMNISTDataModule": ("fashion_mnist", write_fashion),
}
WHAT_EXAMPLES_LEAVE = {
    "loader": lambda left: left["seen"] == 2 * IMAGES and left["images"].shape[1:] == (3, 32, 32),
    "prepare": lambda left: left["held_out"] == 0 or left["images"].shape[1:] == (3, *SIZE),
    "watch": lambda left: left["images"].shape[1:] == (3, *SIZE),
    "GPUOnlyDataset": lambda left: left["images"].shape == (10, 3, 32, 32),
    "batch_augment": lambda left: left["augmented"].shape == (8, 3, 32, 32),
    "GPUPipelineTransform": lambda left: left["transform"].batches >= 1 and left["images"].shape[0] == 8,
    "TinyImageNetDataModule": lambda left: left["images"].shape == (3, 3, 8, 8),
    "CIFAR10DataModule": lambda left: left["images"].shape == (5, 3, 32, 32),
    "FashionMNISTDataModule": lambda left: left["images"].shape == (4, 3, 6, 5),
    "decode_jpegs": lambda left: {tuple(image.shape) for image in left["images"]} == {(*SIZE, 3)},
    "bias_gelu": lambda left: left["bias"].grad.shape == (64,),
    "GpufeedError": lambda left: "'dataloader_workers'" in left["remedy"],
    "Skip": lambda left: torch.cuda.is_available() or "CUDA GPU" in left["sentence"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", gpufeed.PUBLIC)
def test_the_example_runs(name, photos, tmp_path, monkeypatch):
    if name in SOURCES:
        layout, write = SOURCES[name]
        files = write(tmp_path)
        rows = [{"name": one.name, "sha256": hashlib.sha256(one.read_bytes()).hexdigest()} for one in files]
        monkeypatch.setattr(getattr(gpufeed, name), "source", {"layout": layout, "files": rows})
    if name == "prepare":  # one image a class leaves none to hold out
        for path in sorted(tmp_path.glob("photos/*/*.jpg")):
            for copy in ("again.jpg", "once_more.jpg"):
                (path.parent / copy).write_bytes(path.read_bytes())
    left: dict = {}
    exec(EXAMPLES[name], left)
    assert WHAT_EXAMPLES_LEAVE[name](left)
    if name == "prepare":
        assert left["held_out"] == IMAGES
        assert len(left["manifest"].ids("train")) == 60


def test_a_loader_gives_every_sample_of_the_folder_as_it_is(photos, tmp_path):
    with gpufeed.loader("dataloader_sync", "photos", batch_size=16, device="cpu") as batches:
        epochs = [list(batches) for _ in range(2)]
    assert [len(batch) for batch, _ in epochs[0]] == [16, 16, 8]
    for found in epochs:
        labels = torch.cat([labels for _, labels in found]).tolist()
        assert sorted(labels) == list(range(IMAGES))
        images = torch.cat([images for images, _ in found]).numpy() * STD + MEAN
        for image, label in zip(images, labels, strict=True):
            assert np.abs(255 * image - photos[label]).max() < 0.01
    assert (
        torch.cat([own for _, own in epochs[0]]).tolist() != torch.cat([own for _, own in epochs[1]]).tolist()
    )


def test_evaluation_is_in_order_and_a_seed_gives_the_same_batches(photos):
    wanted = {"batch_size": 16, "device": "cpu", "augment": "torch", "recipe": {"size": 24, "short_side": 32}}
    with gpufeed.loader("dataloader_sync", "photos", training=False, **wanted) as batches:
        assert torch.cat([labels for _, labels in batches]).tolist() == list(range(IMAGES))
    first, same, other = (
        next(iter(gpufeed.loader("dataloader_sync", "photos", seed=seed, **wanted)))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_closed_loader_begins_no_epoch(photos):
    for name in ("dataloader_sync", "resident"):
        with gpufeed.loader(name, "photos", batch_size=16, device="cpu") as batches:
            assert sum(len(labels) for _, labels in batches) == IMAGES
        with pytest.raises(gpufeed.GpufeedError, match="an epoch of a closed loader"):
            next(iter(batches))


def test_an_epoch_that_a_later_one_ended_says_so(photos):
    with gpufeed.loader("dataloader_sync", "photos", batch_size=16, device="cpu") as batches:
        ended, begun, taken = iter(batches), iter(batches), iter(batches)
        assert [len(labels) for _, labels in (next(taken), next(taken), next(taken))] == [16, 16, 8]
        third = iter(batches)
        assert not list(taken)  # all of it was taken
        next(third)
        assert len(list(iter(batches))) == 3
        for one in (ended, begun, third):
            with pytest.raises(gpufeed.GpufeedError, match="a later epoch has ended"):
                list(one)
            assert not list(one)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"next_batch": 99}, "next_batch 99 in a state\nexpected: what state_dict returns: .* 0 to 2"),
        ({"next_batch": -1}, "next_batch -1 in a state"),
        ({"epoch": None}, "epoch None in a state"),
        ({"next_batch": 1, "images": None}, "images None in a state"),
        ({"next_batch": 1, "batch_size": 8}, "an epoch with batch_size 8\nexpected: batch_size 16"),
    ],
)
def test_a_state_that_cannot_be_resumed_is_a_sentence(photos, state, said):
    with gpufeed.loader("dataloader_sync", "photos", batch_size=16, device="cpu") as batches:
        own = batches.state_dict()
        for given in ({**own, **state}, {}, None):
            with pytest.raises(gpufeed.GpufeedError, match=said if given else "epoch None in a state"):
                batches.load_state_dict(given)
        batches.load_state_dict({"epoch": 3, "next_batch": 0})
        assert batches.state_dict() == {**own, "epoch": 3}


def test_a_store_is_built_once_where_it_was_asked_for(photos, tmp_path):
    wanted = {"batch_size": 16, "device": "cpu", "cache_folder": "kept"}
    for _ in range(2):
        with gpufeed.loader("resident", "photos", **wanted) as batches:
            assert sum(len(labels) for _, labels in batches) == IMAGES
    (cache,) = (tmp_path / "kept/cache").glob("*.npy")
    before = cache.stat().st_mtime_ns
    assert not (tmp_path / "photos-cache").exists()
    gpufeed.loader("host_cache", "photos", **wanted).close()
    assert cache.stat().st_mtime_ns == before
    with gpufeed.loader("host_cache", "photos", **wanted) as batches:
        images, labels = next(iter(batches))
    expected = np.stack([photos[label] for label in labels.tolist()])
    assert np.abs(255 * (images.numpy() * STD + MEAN) - expected).max() < 0.01


def write_alike(folder, value):
    """Images that those of other folders have in all but their pixels: names, lengths and times."""
    for number in range(4):
        path = folder / f"class{number % 2}" / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (value, value, value)).save(path)
        os.utime(path, (10**9, 10**9))
    return folder


def value_of(manifest):
    return {Image.open(path).getpixel((0, 0))[0] for path in manifest.paths()}


def test_folders_of_one_name_with_the_same_file_names_are_prepared_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = ("x/photos", "y/photos", "z/photos.v2", ".hid")
    made = {}
    for value, place in enumerate(places):
        made[place] = gpufeed.prepare(write_alike(tmp_path / place, value))
    for value, place in enumerate(places):
        again = gpufeed.prepare(place)
        assert value_of(made[place]) == value_of(again) == {value}
        assert again.root == made[place].root
    names = [made[place].root.name.rpartition("-")[0] for place in places]
    assert names == ["photos", "photos", "photos.v2", "hid"]
    (tmp_path / "link").symlink_to("x/photos")
    assert gpufeed.prepare("link").root == made["x/photos"].root


def test_archives_of_one_name_are_prepared_apart_and_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value, place in enumerate(("x", "y")):
        write_alike(tmp_path / place / "photos", value)
        shutil.make_archive(str(tmp_path / place / "photos"), "zip", tmp_path / place, "photos")
    for _ in range(2):
        assert [value_of(gpufeed.prepare(f"{place}/photos.zip")) for place in ("x", "y")] == [{0}, {1}]


def test_a_dataset_that_a_workflow_prepared_is_used_for_its_own_folder_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [write_alike(tmp_path / place / "photos", value) for value, place in enumerate(("x", "y"))]
    prepare("image_folder", [folders[0]], tmp_path / "data/photos", "photos", {})
    assert gpufeed.prepare(folders[0]).root.resolve() == tmp_path / "data/photos"
    assert value_of(gpufeed.prepare(folders[1])) == {1}


def test_folders_of_one_name_share_no_cache(tmp_path):
    for cache_folder in (None, tmp_path / "kept"):
        for value, place in enumerate(("x", "y")):
            folder = write_alike(tmp_path / place / "photos", 100 * value)
            wanted = {"batch_size": 4, "device": "cpu", "cache_folder": cache_folder}
            with gpufeed.loader("resident", folder, cache_decoder="pillow", **wanted) as batches:
                pixels = 255 * (next(iter(batches))[0].numpy() * STD + MEAN)
            assert np.abs(pixels - 100 * value).max() < 0.01


@pytest.mark.parametrize("name", ["dataloader_sync", "host_cache"])
def test_a_damaged_file_of_a_plain_folder_is_to_be_repaired(name, photos, tmp_path):
    damaged = next(tmp_path.glob("photos/*/*.jpg"))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with (
        pytest.raises(gpufeed.GpufeedError, match=damaged.name) as error,
        gpufeed.loader(name, tmp_path / "photos", batch_size=2, device="cpu") as batches,
    ):
        list(batches)
    assert "repair" in error.value.remedy


def test_a_file_without_an_image_is_left_out_and_logged(photos, tmp_path, caplog):
    (tmp_path / "photos/class00/broken.jpg").write_bytes(b"no image")
    with gpufeed.loader("dataloader_sync", "photos", batch_size=50, device="cpu") as batches:
        assert len(next(iter(batches))[1]) == IMAGES
    assert "class00/broken.jpg" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "replay"}, "loader 'replay'"),
        ({"augment": "torhc"}, "write 'torch' instead"),
        ({"augment_options": {"crop_paddin": 2}}, "crop_paddin"),
        ({"name": "strips", "recipe": {"size": 24}}, "strips cannot crop and resize"),
        ({"recipe": {"sise": 24}}, "sise"),
        ({"source": "no_folder"}, "no no_folder"),
        ({"source": "pho\0tos"}, "'pho\\x00tos', with a NUL"),
        ({"device": "meta"}, "device 'meta' in the call\nexpected: one of: cpu, cuda, mps"),
        ({"source": "~nobody_here/photos"}, "no home folder of '~nobody_here'"),
        ({"name": "resident", "cache_decoder": "strips"}, "decoder 'strips'"),
        ({"split": "val"}, "no samples in split 'val'"),
        ({"name": "dataloader_workers", "workers": 0}, "needs at least one worker"),
        ({"batch_size": 0}, "batch_size: 0, in gpufeed.loader"),
        ({"batch_size": -1}, "batch_size: -1, in gpufeed.loader"),
        ({"batch_size": [4, 8]}, "batch_size: [4, 8], in gpufeed.loader\nexpected: type integer"),
        ({"name": "dataloader_workers", "workers": -1}, "workers: -1, in gpufeed.loader"),
        ({"name": "dataloader_workers", "workers": 1, "prefetch_factor": -1}, "prefetch_factor: -1"),
        ({"persistent_workers": "no"}, "persistent_workers: 'no'"),
        ({"seed": -1}, "seed: -1"),
        ({"seed": None}, "seed: None"),
        ({"batch_size": None}, "batch_size: None"),
        ({"recipe": "random_resized_crop"}, "recipe: 'random_resized_crop', in gpufeed.loader"),
        ({"augment_options": ["brightness"]}, "augment_options: ['brightness'], in gpufeed.loader"),
        (
            {"name": "resident", "cache_folder": __file__},
            "a folder for the decoded images that you may write",
        ),
        ({"resize": 32}, "resize: 32, in gpufeed.loader\nexpected: type array"),
        ({"resize": (32,)}, "resize: [32], in gpufeed.loader\nexpected: type array; entries: at least 2"),
        ({"resize": (0, 0)}, "resize.0: 0, in gpufeed.loader\nexpected: type integer; at least 8"),
        ({"mean": [0.5]}, "mean: [0.5], in gpufeed.loader\nexpected: three numbers"),
        ({"mean": 0.5}, "mean: 0.5"),
        ({"mean": ["a", "b", "c"]}, "mean: ['a', 'b', 'c']"),
        ({"std": (1, 1, 0)}, "std: (1, 1, 0), in gpufeed.loader\nexpected: three numbers above 0"),
    ],
)
def test_what_cannot_be_is_a_sentence(photos, changes, said):
    wanted = {"name": "dataloader_sync", "source": "photos", "batch_size": 4, "device": "cpu"} | changes
    with pytest.raises(gpufeed.GpufeedError, match=re.escape(said)):
        gpufeed.loader(**wanted)


def test_a_script_that_a_process_of_a_loader_runs_again_is_told_the_line_that_it_lacks(photos, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(gpufeed.GpufeedError, match=r"\('spdl'\) outside of `if __name__ == '__main__':`"):
        gpufeed.loader("spdl", "photos", batch_size=4, device="cpu")


def test_archives_are_one_folder_or_several(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for archives in ("kept", ["kept"]):
        with pytest.raises(gpufeed.GpufeedError, match=r"no imagenet-800\.zip in data, kept, archives"):
            gpufeed.prepare("imagenet_800", archives=archives)


def test_what_cannot_be_prepared_is_a_sentence(photos):
    with pytest.raises(gpufeed.GpufeedError, match="source or folder 'no_folder'") as error:
        gpufeed.prepare("no_folder")
    assert error.value.expected.startswith("the path of a folder or an archive, or one of: cifar10, ")
    assert error.value.remedy.startswith("correct the path, or ")
    with pytest.raises(gpufeed.GpufeedError, match=r"resize: 32, in gpufeed\.prepare"):
        gpufeed.prepare("photos", resize=32)
    with pytest.raises(gpufeed.GpufeedError, match=r"data_folder '.*': .* is a file"):
        gpufeed.prepare("photos", __file__)
    before = sorted(os.listdir("photos"))
    with pytest.raises(gpufeed.GpufeedError, match="overlap with the prepared dataset"):
        gpufeed.prepare("photos", "photos")
    assert sorted(os.listdir("photos")) == before


def test_decode_jpegs_gives_pixels_of_any_kind_and_names_the_file_that_it_cannot(photos, tmp_path):
    files = [path.read_bytes() for path in sorted(tmp_path.glob("photos/*/*.jpg"))]
    assert len(gpufeed.decode_jpegs((file for file in files), "cpu")) == len(files)
    for label, image in enumerate(gpufeed.decode_jpegs(files, "cpu")):
        assert np.array_equal(image.permute(2, 0, 1).numpy(), photos[label])
    with pytest.raises(gpufeed.GpufeedError, match="file 2 of 3"):
        gpufeed.decode_jpegs([*files[:2], b"no image"], "cpu")
    for wrong in (["a.jpg"], files[0]):
        with pytest.raises(gpufeed.GpufeedError, match="the bytes of each file"):
            gpufeed.decode_jpegs(wrong, "cpu")


@pytest.mark.slow
def test_the_notebook_on_pipelining_runs(tmp_path, monkeypatch):
    """On the CPU, cell after cell; what it judges are its own six blocks."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads((REPOSITORY / "examples/pipelining.ipynb").read_text())["cells"]
    left: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), left)
    assert [list(block) for block in left["blocks"]] == [list(left["loaders"])] * 6
    assert all(len(times) == 8 for block in left["blocks"] for times in block.values())
    times = left["blocks"][0]["dataloader_sync"]
    assert np.allclose(times["load"] + times["train"], times["total"])
    low, high = left["low"], left["high"]
    holds = {"holds": low >= 1.5 and high <= 3, "does not hold": high < 1.5 or low > 3}
    assert left["verdict"] in [name for name, so in holds.items() if so] or not any(holds.values())
