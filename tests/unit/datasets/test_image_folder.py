"""Images of one's own: a folder of class folders, or an archive of it."""

import io
import itertools
import logging
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from config_fixtures import merged
from photograph_fixtures import CLASSES, EVALUATION, TRAINING
from PIL import Image

from gpufeed.core.config_sources import check_source, with_defaults
from gpufeed.core.errors import GpufeedError
from gpufeed.core.image_listing import files_below, is_image, names_digest
from gpufeed.datasets import image_folder, staging
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.training.ensure_inputs import Shelf, dataset


def jpeg(shade: int, size: tuple[int, int] = (16, 16)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(buffer, "JPEG")
    return buffer.getvalue()


def write(folder: Path, names) -> Path:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number % 256) if is_image(name) else b"text")
    return folder


SPLIT = [f"{split}/{name}/{i}.jpg" for split in ("train", "val") for name in ("dog", "cat") for i in range(3)]
FLAT = [f"{name}/{i}.jpg" for name in ("b", "a", "c") for i in range(20)]


def prepared(source: Path, out: Path, resize=None, **options):
    return prepare("image_folder", [source], out, "own", options, resize=resize)


def paths(manifest, split: str) -> list[str]:
    return manifest.table[manifest.table["split"] == split]["path"].tolist()


def test_folders_of_splits(tmp_path):
    manifest = prepared(write(tmp_path / "own", SPLIT), tmp_path / "out")
    assert manifest.info.classes == ["cat", "dog"]
    assert manifest.info.evaluation_split == "val"
    assert paths(manifest, "train") == sorted(f"images/{name}" for name in SPLIT[:6])
    assert [path.read_bytes() for path in manifest.paths()] == [
        (tmp_path / "own" / path.removeprefix("images/")).read_bytes() for path in manifest.table["path"]
    ]
    assert manifest.labels().tolist() == [0, 0, 0, 1, 1, 1] * 2


@pytest.mark.parametrize("name", ["valid", "validation", "test"])
def test_other_names_of_what_is_held_out(name, tmp_path):
    names = [each.replace("val/", f"{name}/") for each in SPLIT]
    assert prepared(write(tmp_path / "own", names), tmp_path / "out").info.evaluation_split == name


@pytest.mark.parametrize("seed", [0, 1])
def test_a_share_of_each_class_is_held_out_where_no_folder_says_what(seed, tmp_path):
    source = write(tmp_path / "own", FLAT)
    manifest = prepared(source, tmp_path / "out", evaluation_share=0.25, seed=seed)
    held_out = manifest.table[manifest.table["split"] == "val"]
    assert held_out["label"].value_counts().to_dict() == {0: 5, 1: 5, 2: 5}
    assert len(manifest) == len(FLAT)
    again = prepared(source, tmp_path / "again", evaluation_share=0.25, seed=seed)
    assert paths(again, "val") == paths(manifest, "val")
    other = prepared(source, tmp_path / "other", evaluation_share=0.25, seed=seed + 1)
    assert paths(other, "val") != paths(manifest, "val")


def test_each_class_keeps_one_to_train_on(tmp_path):
    manifest = prepared(
        write(tmp_path / "own", ["a/1.jpg", "a/2.jpg", "b/1.jpg"]), tmp_path / "out", evaluation_share=0.9
    )
    assert manifest.table.groupby("split").size().to_dict() == {"train": 2, "val": 1}
    with pytest.raises(GpufeedError, match="one image a class"):
        prepared(write(tmp_path / "single", ["a/1.jpg", "b/1.jpg"]), tmp_path / "out")


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("top", ["", "photos/"])
def test_an_archive_gives_the_same_as_its_folder(kind, top, tmp_path):
    source = write(tmp_path / "own", [*SPLIT, "train/cat/deep/x.PNG", "read.me"])
    archive = tmp_path / f"own.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            for name in files_below(source):
                file.write(source / name, top + name)
            file.writestr("__MACOSX/train/cat/._0.jpg", b"what macOS leaves")
    else:
        with tarfile.open(archive, "w:gz") as file:
            for name in reversed(files_below(source)):
                file.add(source / name, top + name)
    one, other = prepared(source, tmp_path / "one"), prepared(archive, tmp_path / "two")
    assert one.table.equals(other.table)
    assert "images/train/cat/deep/x.PNG" in paths(one, "train")
    assert [a.read_bytes() for a in one.paths()] == [b.read_bytes() for b in other.paths()]
    assert one.info.left_out == {image_folder.NO_IMAGE: 1}


def test_files_are_linked_and_preparing_again_leaves_the_folder_alone(tmp_path):
    source = write(tmp_path / "own", FLAT)
    for _ in range(2):
        manifest = prepared(source, tmp_path / "out")
        assert all(path.stat().st_nlink == 2 for path in manifest.paths())
    shutil.rmtree(tmp_path / "out")
    assert sorted(files_below(source)) == sorted(FLAT)
    assert all((source / name).read_bytes() for name in FLAT)


def test_files_are_copied_where_no_link_can_be(tmp_path, monkeypatch):
    def no_link(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(staging.os, "link", no_link)
    manifest = prepared(write(tmp_path / "own", FLAT), tmp_path / "out")
    assert all(path.stat().st_nlink == 1 and path.read_bytes() for path in manifest.paths())


def test_links_are_followed_and_one_that_leads_up_ends(tmp_path):
    source = write(tmp_path / "own", FLAT)
    elsewhere = write(tmp_path / "elsewhere", ["1.jpg", "2.jpg", "3.jpg"])
    (source / "d").symlink_to(elsewhere)
    (source / "a/up").symlink_to(source)
    (source / "a/99.jpg").symlink_to(elsewhere / "1.jpg")
    manifest = prepared(source, tmp_path / "out")
    assert manifest.info.classes == ["a", "b", "c", "d"]
    assert len(manifest) == len(FLAT) + 3 + 1
    assert not any(path.is_symlink() for path in manifest.paths())


def test_what_is_not_used_is_counted(tmp_path):
    strays = ["train/stray.jpg", "extra/cat/1.jpg", "test/cat/1.jpg", "train/cat/list.txt"]
    manifest = prepared(write(tmp_path / "own", [*SPLIT, *strays]), tmp_path / "out")
    assert len(manifest) == len(SPLIT)
    assert manifest.info.left_out == {
        image_folder.NO_IMAGE: 1,
        image_folder.NO_CLASS: 1,
        image_folder.NO_SPLIT: 2,
    }


@pytest.mark.parametrize("deep", ["cat/", ""])
def test_splits_of_other_names_are_told_that_they_are_taken_for_classes(deep, tmp_path, caplog):
    names = [f"{split}/{deep}{i}.jpg" for split in ("Training", "test_set") for i in range(3)]
    assert prepared(write(tmp_path / "own", names), tmp_path / "out").info.classes == ["Training", "test_set"]
    assert "Training, test_set are taken for classes" in caplog.text
    caplog.clear()
    prepared(write(tmp_path / "voc", [*names, "sheep/1.jpg"]), tmp_path / "out")
    assert not caplog.text


def archived(source: Path, kind: str) -> Path:
    """The folder in an archive, with an entry for each folder, as zip -r and tar write them."""
    return Path(
        shutil.make_archive(str(source), {"tar": "gztar"}.get(kind, kind), source.parent, source.name)
    )


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
@pytest.mark.parametrize("names", [SPLIT, FLAT])
def test_folders_of_classes_without_an_image_are_told_and_take_no_number(kind, names, tmp_path, caplog):
    source = write(tmp_path / "own", names)
    top = source / "train" if names is SPLIT else source
    (top / "aardvark").mkdir()
    write(top, ["bee/list.txt", ".git/config"])
    caplog.set_level(logging.WARNING, "gpufeed")
    manifest = prepared(source if kind == "folder" else archived(source, kind), tmp_path / "out")
    assert manifest.info.classes == (["cat", "dog"] if names is SPLIT else ["a", "b", "c"])
    assert manifest.info.left_out[image_folder.EMPTY] == 2
    assert "aardvark, bee" in caplog.text
    assert sorted(set(manifest.labels().tolist())) == list(range(len(manifest.info.classes)))


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_file_that_is_too_large_for_an_image_is_not_read(kind, tmp_path, monkeypatch):
    source = write(tmp_path / "own", FLAT)
    with (source / "a/huge.jpg").open("wb") as file:
        file.truncate(2**29 + 1)  # takes no disk
    if kind == "folder":
        manifest = prepare("image_folder", [source], tmp_path / "out", "own", {}, 0.1)
        assert [image["path"][-8:] for image in manifest.info.quarantined] == ["huge.jpg"]
        assert "536870913 bytes, at most 536870912" in manifest.info.quarantined[0]["reason"]
        return
    os.truncate(source / "a/huge.jpg", 1001)
    monkeypatch.setattr(image_folder, "MOST_BYTES", 1000)
    with pytest.raises(GpufeedError, match=r"huge\.jpg', 1,001 bytes, in"):
        prepared(archived(source, "zip"), tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "0 class folders"),
        (["1.jpg", "2.jpg"], "0 class folders"),
        (["a/1.txt", "b/1.jpg", "b/2.jpg"], "1 class folder with"),
        ([*SPLIT, "val/cow/1.jpg"], "1 evaluation class without training images, first 'cow'"),
        ([*FLAT, "a/12:30.jpg"], "1 image name with"),
        ([*FLAT, os.fsdecode(b"a/\xff.jpg")], "1 image name with"),
    ],
)
def test_what_cannot_be_used_is_told(names, found, tmp_path):
    (tmp_path / "own").mkdir()
    with pytest.raises(GpufeedError, match=found):
        prepared(write(tmp_path / "own", names), tmp_path / "out")
    assert not (tmp_path / "out/manifest.parquet").exists()


def test_a_broken_image_is_to_be_repaired_in_the_folder_that_it_came_from(tmp_path):
    source = write(tmp_path / "own", FLAT)
    (source / "a/text.jpg").write_text("no image")
    with pytest.raises(GpufeedError) as error:
        prepared(source, tmp_path / "out")
    assert f"  {source}/a/text.jpg: not an image" in error.value.found
    assert "download" not in error.value.remedy


@pytest.mark.parametrize("form", ["folders", "packed"])
def test_all_links_to_nothing_are_told_at_once_or_left_out(tmp_path, form):
    source = write(tmp_path / "own", FLAT)
    gone = [source / "a/gone.jpg", source / "b/gone too.jpg"]
    for link in gone:
        link.symlink_to(tmp_path / "nowhere.jpg")
    with pytest.raises(GpufeedError, match=f"2 of {len(FLAT) + 2} images") as error:
        prepare("image_folder", [source], tmp_path / "out", "own", {}, form=form)
    assert all(f"  {link}: cannot be read: No such file" in error.value.found for link in gone)
    assert not (tmp_path / "out/manifest.parquet").exists()
    manifest = prepare("image_folder", [source], tmp_path / "out", "own", {}, 0.5, form=form)
    assert len(manifest) == len(FLAT)
    assert [Path(image["path"]).name for image in manifest.info.quarantined] == ["gone.jpg", "gone too.jpg"]
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
    assert all(link.is_symlink() for link in gone)  # the user's own stay


@pytest.mark.parametrize("form", ["folders", "packed"])
def test_a_pipe_named_like_an_image_is_not_waited_for(tmp_path, form):
    source = write(tmp_path / "own", FLAT)
    os.mkfifo(source / "a/pipe.jpg")
    with pytest.raises(GpufeedError, match=r"a/pipe\.jpg: not a regular file"):
        prepare("image_folder", [source], tmp_path / "out", "own", {}, form=form)
    assert len(prepare("image_folder", [source], tmp_path / "out", "own", {}, 0.5, form=form)) == len(FLAT)


def test_a_folder_that_is_missing_or_a_file_is_told(tmp_path):
    with pytest.raises(GpufeedError, match="no folder"):
        files_below(tmp_path / "nowhere")
    (tmp_path / "images.zip").touch()
    with pytest.raises(
        GpufeedError, match=r"images\.zip, which is a file(.|\n)*name the archive under `files`"
    ):
        files_below(tmp_path / "images.zip")


def test_images_of_several_sizes_need_resize(tmp_path):
    source = write(tmp_path / "own", FLAT)
    (source / "a/large.jpg").write_bytes(jpeg(1, (40, 30)))
    with pytest.raises(GpufeedError, match="2 image sizes"):
        prepared(source, tmp_path / "out").image_size()
    manifest = prepared(source, tmp_path / "out", resize=(8, 8))
    assert manifest.image_size() == (8, 8)
    assert manifest.table["width"].max() == 40


def test_photographs_made_on_the_spot_are_of_every_kind_and_all_decode_alike(photographs, tmp_path):
    manifest = prepared(photographs, tmp_path)
    assert not manifest.info.quarantined
    table, files = manifest.table, [path.read_bytes() for path in manifest.paths()]
    assert table.groupby(["split", "label"]).size().tolist() == [TRAINING] * CLASSES + [EVALUATION] * CLASSES
    assert {(60, 60), (1600, 2400), (375, 500)} <= set(zip(table["height"], table["width"], strict=True))
    assert table["channels"].value_counts().idxmin() == 1
    layers = [Image.open(path).layer for path in manifest.paths()]
    assert {(len(layer), *layer[0][1:3]) for layer in layers} == {
        *((3, *factors) for factors in itertools.product((1, 2), (1, 2))),
        (1, 1, 1),  # gray
    }
    assert len({data[: data.index(b"\xff\xda")] for data in files}) > 50  # headers with Huffman tables
    for found in (b"\xff\xdd", b"ICC_PROFILE\0", b"Exif\0\0"):
        assert 5 <= sum(found in data for data in files) <= 10
    pillow = PillowDecoder().decode(files).images
    turbo = [simplejpeg.decode_jpeg(data, "RGB") for data in files]
    assert max(np.abs(a.astype(int) - b).max() for a, b in zip(pillow, turbo, strict=True)) <= 2


@pytest.mark.parametrize(
    "options", [{"evaluation_share": 0}, {"evaluation_share": "x"}, {"seed": -1}, {"of": 1}]
)
def test_options_that_cannot_be(options, tmp_path):
    with pytest.raises(GpufeedError):
        prepared(write(tmp_path / "own", FLAT), tmp_path / "out", **options)


def test_the_digest_of_names_changes_with_the_images_alone(tmp_path):
    source = write(tmp_path / "own", FLAT)
    before = names_digest(files_below(source))
    write(source, ["a/notes.txt", "a/.hidden.jpg"])
    assert names_digest(files_below(source)) == before
    (source / "a/0.jpg").rename(source / "b/zero.jpg")
    assert names_digest(files_below(source)) != before


def test_the_config_knows_its_defaults_and_wants_one_place():
    assert with_defaults("image_folder", {}) == vars(image_folder.Options())
    archive = {"name": "own.zip", "sha256": "0" * 64}
    check_source({"layout": "image_folder", "folder": "x"}, "here")
    check_source({"layout": "image_folder", "files": [archive]}, "here")
    for wrong in ({}, {"folder": "x", "files": [archive]}, {"files": [archive] * 2}):
        with pytest.raises(GpufeedError, match="files in here"):
            check_source({"layout": "image_folder", **wrong}, "here")
    with pytest.raises(GpufeedError, match="a folder in here"):
        check_source({"layout": "tiny_imagenet", "folder": "x"}, "here")


def test_trainings_by_hand_on_folders_with_the_same_file_names_read_their_own(tmp_path):
    shelf, made = Shelf(tmp_path / "data", (), "pillow", 0.0), []
    for place in ("x", "y"):
        folder = write(tmp_path / place / "photos", FLAT)
        config = {"sources": {"image_folder": {"layout": "image_folder", "folder": str(folder)}}}
        config["use_instead"] = {}
        made.append(dataset("image_folder", config, {"sources": {}}, shelf))
        assert Manifest.read(made[-1]).info.source["folder"] == str(folder)
    assert made[0] != made[1]


def test_a_training_by_hand_prepares_a_folder_again_when_its_images_change(tmp_path):
    shipped = merged("config.yaml")
    folder = write(tmp_path / "own", FLAT)
    own = {"layout": "image_folder", "folder": str(folder)}
    config = shipped | {"sources": {**shipped["sources"], "own": own}}
    shelf = Shelf(tmp_path / "data", (), "pillow", 0.0)
    first = dataset("own", config, shipped, shelf)
    made = first.stat().st_mtime_ns
    assert dataset("own", config, shipped, shelf) == first
    assert first.stat().st_mtime_ns == made
    write(folder, ["a/new.jpg"])
    assert len(Manifest.read(dataset("own", config, shipped, shelf))) == len(FLAT) + 1
