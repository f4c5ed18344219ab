"""GPUOnlyDataset on plain folders, with broken and hostile files in them."""

import os

import numpy as np
import pytest
import torch
from config_fixtures import merged
from data_fixtures import files_below
from gpu_only_fixtures import dataset, normalised, noted, put
from hostile_fixtures import hostile_files
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import encode, pixels

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.image_folder import MEAN as IMAGENET_MEAN
from gpufeed.datasets.image_folder import STD as IMAGENET_STD
from gpufeed.datasets.prepare import prepare
from gpufeed.decoders.pillow import PillowDecoder, resized
from gpufeed.loaders import gpu_only_dataset


@pytest.fixture
def decoded(monkeypatch):
    return noted(monkeypatch)


def pngs(*names: str, size: int = 8) -> dict[str, bytes]:
    """Files whose pixels tell their place in the list."""
    return {name: encode(pixels(i, size)) for i, name in enumerate(names)}


def first_values(data) -> list[int]:
    return data.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    ("names", "classes", "labels"),
    [
        (["b/0.png", "a/1.png", "a/deep/2.png"], ["a", "b"], {1: 0, 2: 0, 0: 1}),
        (["train/b/0.png", "train/a/1.png", "val/a/2.png"], ["a", "b"], {1: 0, 0: 1}),
        (["1.png", "0.png"], ["photos"], {1: 0, 0: 0}),
        (["one/0.png", "one/1.png"], ["one"], {0: 0, 1: 0}),
        (["a/0.png", "b/1.png", "loose.png"], ["a", "b"], {0: 0, 1: 1}),
    ],
)
def test_a_plain_folder(tmp_path, names, classes, labels):
    files = pngs(*names) | {"notes.txt": b"mine"}
    folder = put(tmp_path / "photos", files)
    data = dataset(folder, dtype=torch.float32)
    assert data.classes == classes
    assert dict(zip(first_values(data), data.labels.tolist(), strict=True)) == labels
    right = normalised(data.images, IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(data[:][0].double(), right, atol=1e-5, rtol=0)
    assert files_below(folder) == files
    assert data.cache.parent == tmp_path / "photos-cache"
    assert data.quarantined == []


def test_what_a_plain_folder_leaves_out_is_counted_in_the_log(tmp_path, caplog):
    dataset(put(tmp_path / "photos", pngs("a/0.png", "b/1.png", "loose.png") | {"a/notes.txt": b""}))
    assert "1 files are not named like images" in caplog.text
    assert "1 images lie in no class folder" in caplog.text


def test_a_plain_folder_is_in_the_order_of_a_prepared_one(tmp_path):
    names = [f"{split}/{name}/{i}.png" for split in ("val", "train") for name in "cab" for i in (2, 10, 1)]
    folder = put(tmp_path / "photos", pngs(*names))
    own = prepare("image_folder", [folder], tmp_path / "data", "own", {})
    for split in ("train", "val"):
        plain, prepared = dataset(folder, split=split), dataset(own, split=split)
        assert plain.classes == prepared.classes
        assert torch.equal(plain.labels, prepared.labels)
        assert torch.equal(plain.images, prepared.images)
    assert len(dataset(own.root)) == len(prepared)  # a prepared dataset by its folder


def test_a_plain_folder_of_several_sizes_needs_image_size(tmp_path):
    folder = put(tmp_path / "photos", pngs("a/0.png") | pngs("b/0.png", size=9))
    with pytest.raises(GpufeedError, match="2 image sizes") as raised:
        dataset(folder)
    assert "image_size=" in raised.value.remedy
    assert len(dataset(folder, image_size=(4, 4))) == 2


def test_changed_files_are_decoded_anew_and_other_files_do_not_matter(tmp_path, decoded):
    names = [f"{name}/{i}.png" for name in "ab" for i in range(4)]
    folder = put(tmp_path / "photos", pngs(*names))
    for count in (None, 3):
        decoded.clear()
        first = dataset(folder, max_samples=count)
        decoded.clear()
        put(folder, {"a/notes.txt": b"mine"})
        assert dataset(folder, max_samples=count).cache == first.cache
        assert decoded == []
    for name in names:
        (folder / name).write_bytes(encode(pixels(200, 8)))
    assert first_values(dataset(folder)) == [200] * 8


@pytest.mark.parametrize("count", [None, 3])
def test_broken_files_are_named_counted_and_left_out(tmp_path, caplog, count):
    names = [f"{name}/{i}.png" for name in "ab" for i in range(4)]
    folder = put(tmp_path / "photos", pngs(*names) | dict.fromkeys(["a/1.png", "b/2.png", "b/3.png"], b""))
    with pytest.raises(GpufeedError, match="cannot be decoded") as raised:
        dataset(folder, max_samples=count)
    assert "max_quarantined_share" in raised.value.remedy
    assert not list((tmp_path / "photos-cache").glob("*.npy"))
    for _ in range(2):  # decoded, and from the cache
        caplog.clear()
        data = dataset(folder, max_samples=count, max_quarantined_share=0.9)
        broken = {one["path"] for one in data.quarantined}
        assert broken <= {"a/1.png", "b/2.png", "b/3.png"}
        assert len(data) + len(broken) == (count or 8)
        assert all("0 bytes" in one["reason"] and one["path"] in caplog.text for one in data.quarantined)
        assert first_values(data) == [i for i in data.ids if i not in (1, 6, 7)]
        assert data.labels.tolist() == [int(i >= 4) for i in data.ids]
    if broken:
        with pytest.raises(GpufeedError, match="cannot be decoded"):
            dataset(folder, max_samples=count, max_quarantined_share=0.1)


def test_a_pipe_among_the_images_stops_nothing(tmp_path):
    folder = put(tmp_path / "photos", pngs("a/0.png", "b/1.png"))
    os.mkfifo(folder / "a/1.png")
    data = dataset(folder, max_quarantined_share=0.5)
    assert data.quarantined == [{"path": "a/1.png", "reason": "not a regular file"}]


def test_the_share_is_that_of_the_config():
    config = merged("config.yaml")
    assert config["max_quarantined_share"] == gpu_only_dataset.QUARANTINED_SHARE


HOSTILE = hostile_files()


NAMES = st.text("aZ9 _-.äß漢é", min_size=1, max_size=12).filter(lambda name: name.strip(" .-") == name)


SUFFIX = st.sampled_from([".jpg", ".JPEG", ".png", ".webp", ".bmp", ".tiff"])


WILD = st.dictionaries(
    st.tuples(st.sampled_from(["cats", "Hunde", "猫"]), NAMES, SUFFIX),
    st.sampled_from(list(HOSTILE)),
    min_size=1,
)


@given(WILD, st.sampled_from([None, 1, 4]))
@settings(max_examples=25)
def test_wild_folders(tmp_path_factory, wild, count):
    """Any file under any name: what Pillow decodes is there as Pillow has it, the rest is named."""
    files = {f"{name[0]}/{name[1]}{name[2]}": HOSTILE[kind] for name, kind in wild.items()}
    folder = put(
        tmp_path_factory.mktemp("wild") / "photos", {name: file.data for name, file in files.items()}
    )
    options = {"image_size": (12, 16), "max_quarantined_share": 0.999, "max_samples": count}
    ordered = sorted(files, key=lambda name: name.split("/"))
    drawn = [ordered[i] for i in gpu_only_dataset.draw(np.arange(len(files)), count)]
    if not any(files[name].decodes for name in drawn):
        with pytest.raises(GpufeedError, match="cannot be decoded"):
            dataset(folder, **options)
        return
    data = dataset(folder, **options)
    names = data.manifest.table["path"].tolist()
    assert names == ordered
    assert [names[i] for i in data.ids] == [name for name in drawn if files[name].decodes]
    assert [one["path"] for one in data.quarantined] == [name for name in drawn if not files[name].decodes]
    for place, i in enumerate(data.ids):
        file = files[names[i]]
        (right,) = PillowDecoder().decode([file.data]).images
        assert data.classes[data.labels[place]] == names[i].split("/")[0]
        assert np.array_equal(data[place][0].permute(1, 2, 0).numpy(), resized(right, (12, 16)))
