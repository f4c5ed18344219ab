"""`limit`, `copies` and `times` of a source: which images are used, and how often."""

import numpy as np
import pandas as pd
import pytest
from config_fixtures import merged
from data_fixtures import files_below, files_of_at_most, noise, tiny_files, write_zip
from hypothesis import given
from hypothesis import strategies as st
from test_image_folder import FLAT, write

from gpufeed.core.cell_matrix import content
from gpufeed.core.config import check, planned
from gpufeed.core.config_sources import training_images
from gpufeed.core.dataset_size import Amount, taken
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of
from gpufeed.datasets import quarantine
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.datasets.quantity import chosen
from gpufeed.datasets.staging import png
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.decoded_cache import build
from gpufeed.training.ensure_inputs import Shelf, dataset

UNEVEN = [f"{split}/{name}/{i}.jpg" for split, counts in (("train", (9, 3, 30)), ("val", (4, 1, 9)))
          for name, count in zip("abc", counts, strict=True) for i in range(count)]  # fmt: skip
SMALL = {"count": 30, "size": 8, "classes": 3, "evaluation_share": 0.2, "format": "png"}


def prepared(source, out, form="folders", **quantity) -> Manifest:
    return prepare("image_folder", [source], out, "own", {}, 0.2, form=form, quantity=quantity)


def counts(manifest: Manifest, split: str) -> list[int]:
    labels = manifest.table[manifest.table["split"] == split]["label"]
    return labels.value_counts().sort_index().tolist()


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    return write(tmp_path_factory.mktemp("uneven"), UNEVEN)


@pytest.mark.parametrize(
    ("limit", "train", "val"),
    [
        (100, [9, 3, 30], [4, 1, 9]),
        (20, [8, 3, 9], [3, 1, 3]),
        (9, [3, 3, 3], [1, 1, 1]),
        (3, [1, 1, 1], [1, 1, 1]),
    ],
)
def test_a_limit_is_spread_over_the_classes_and_is_all_that_is_laid_out(uneven, tmp_path, limit, train, val):
    whole, part = prepared(uneven, tmp_path / "whole"), prepared(uneven, tmp_path / "part", limit=limit)
    assert (counts(part, "train"), counts(part, "val")) == (train, val)
    assert sorted(files_below(tmp_path / "part/images")) == sorted(
        path.removeprefix("images/") for path in part.table["path"]
    )
    assert part.info.classes == whole.info.classes
    assert part.info.source == {**whole.info.source, "limit": limit}
    rows = whole.table[whole.table["path"].isin(part.table["path"])]  # in the order of the whole
    assert rows.reset_index(drop=True).equals(part.table)


def test_images_beyond_the_limit_of_a_folder_are_not_read(tmp_path):
    source = write(tmp_path / "own", UNEVEN)
    whole, part = (prepared(source, tmp_path / str(limit), limit=limit) for limit in (42, 20))
    for path in set(whole.table["path"]) - set(part.table["path"]):
        (source / path.removeprefix("images/")).unlink()
        (source / path.removeprefix("images/")).symlink_to("nowhere")
    assert prepared(source, tmp_path / "again", limit=20).table.equals(part.table)


def test_another_layout_chooses_the_same_images_as_a_folder_of_its_own(tmp_path):
    made = prepare("synthetic", [], tmp_path / "made", "made", SMALL)
    part = prepare("synthetic", [], tmp_path / "part", "made", SMALL, quantity={"limit": 7})
    folder = prepared(made.root / "images", tmp_path / "own", limit=7)
    assert sorted(part.table["path"]) == sorted(folder.table["path"])
    assert len(part.ids("train")) == 7
    assert len(part.ids("test")) == 3  # one of each class, which is more than 6 * 7 / 24
    assert len(list((tmp_path / "part/images").rglob("*.png"))) == 10


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["train", "val"])), min_size=1),
    st.integers(1, 60),
    st.randoms(),
)
def test_the_choice_depends_on_names_alone_and_a_larger_one_has_all_of_a_smaller(rows, limit, random):
    table = pd.DataFrame(rows, columns=["label", "split"])
    table["path"] = [f"images/{split}/{label}/{i}.jpg" for i, (label, split) in enumerate(rows)]
    training = table["split"] == "train"
    if limit < min(training.sum(), table[training]["label"].nunique()):
        with pytest.raises(GpufeedError, match=f"limit {limit} for"):
            chosen(table, limit)
        return
    keep, order = chosen(table, limit), random.sample(range(len(rows)), len(rows))
    assert (chosen(table.iloc[order].reset_index(drop=True), limit) == keep[order]).all()
    assert keep[training].sum() == min(limit, training.sum())
    assert set(table["label"][keep & ~training]) == set(table["label"][~training])
    numbers = table[training & keep].groupby("label").size()
    left = table[training & ~keep].groupby("label").size()
    assert all(numbers[label] >= numbers.max() - 1 for label in left.index)  # balanced as far as they go
    assert (chosen(table, limit + 1) >= keep).all()


def test_copies_are_files_of_their_own_and_repeats_are_none(tmp_path):
    source = write(tmp_path / "own", FLAT)
    once = prepared(source, tmp_path / "once")
    many = prepared(source, tmp_path / "many", copies=3, times=2)
    n = len(once.ids("train"))
    assert many.table.iloc[: len(once)].equals(once.table)  # ids stay
    assert many.ids("val").tolist() == once.ids("val").tolist()
    assert len(many.ids("train")) == 6 * n
    files = {path: path.stat() for path in many.paths()}
    assert len(files) == len({(found.st_dev, found.st_ino) for found in files.values()}) == len(once) + 2 * n
    assert sum(found.st_nlink == 1 for found in files.values()) == 2 * n  # the others are the user's own
    read = [path.read_bytes() for path in many.paths()]
    training = [read[id] for id in once.ids("train")]
    assert read == read[: len(once)] + training * 5
    assert many.labels()[many.ids("train")].tolist() == once.labels()[once.ids("train")].tolist() * 6
    assert many.info.source == {**once.info.source, "copies": 3, "times": 2}


def test_the_real_photographs_are_prepared_in_part(real_data, tmp_path):
    config = merged("config.yaml")
    source = config["sources"]["imagenet_800"]
    assert (source["layout"], source["files"][0]["name"]) == ("image_folder", "imagenet-800.zip")
    archive = real_data / source["files"][0]["name"]
    assert archive.stat().st_size == source["files"][0]["size"]
    manifest = prepare("image_folder", [archive], tmp_path, "imagenet_800", {}, quantity={"limit": 20})
    assert manifest.info.source[archive.name] == source["files"][0]["sha256"]
    assert counts(manifest, "train") == [2] * 10
    assert counts(manifest, "val") == [1] * 10
    assert manifest.table[["height", "width"]].drop_duplicates().shape[0] > 5
    config["use_instead"] = {"imagenette": "imagenet_800"}
    check(config)


@pytest.mark.parametrize("quantity", [{"limit": 30}, {"copies": 2}, {"times": 3}, {"copies": 2, "times": 2}])
def test_a_broken_file_is_looked_at_once_and_has_no_row(tmp_path, quantity, monkeypatch):
    source = write(tmp_path / "own", FLAT)
    rows = prepared(source, tmp_path / "whole", **quantity).table
    name = rows[rows["split"] == "train"]["path"].iloc[0]
    seen, real = [], quarantine.check_file
    monkeypatch.setattr(quarantine, "check_file", lambda *given: seen.append(given[1]) or real(*given))
    broken = source / name.removeprefix("images/train/")
    broken.write_bytes(broken.read_bytes()[:300])
    manifest = prepared(source, tmp_path / "out", **quantity)
    assert [image["path"] for image in manifest.info.quarantined] == [name]
    assert len(seen) == len(set(seen)) == rows[~rows["path"].str.contains("copy_")]["path"].nunique()
    left = len(rows) - quantity.get("copies", 1) * quantity.get("times", 1)
    assert len(manifest) == left
    assert not manifest.table["path"].str.endswith(name.removeprefix("images/")).any()


def test_stores_and_archives_hold_every_row(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFEED_UNPACK", str(tmp_path / "node"))
    quantity = {"limit": 12, "copies": 2, "times": 2}
    given = ("synthetic", [], tmp_path / "one", "small", SMALL)
    plain = prepare(*given[:2], tmp_path / "plain", *given[3:], quantity=quantity)
    one = prepare(*given, form="packed", quantity=quantity)
    assert (one.root / "manifest.parquet").read_bytes() == (plain.root / "manifest.parquet").read_bytes()
    assert [path.read_bytes() for path in one.paths()] == [path.read_bytes() for path in plain.paths()]
    assert len({path.stat().st_ino for path in one.paths()}) == 12 * 2 + 3
    build(plain, "pillow", tmp_path / "pillow.npy")
    pixels = np.asarray(open_cache(tmp_path / "pillow.npy", plain))
    assert len(pixels) == 12 * 4 + 3
    training = pixels[plain.ids("train")].reshape(4, 12, -1)
    assert (training == training[0]).all()
    assert (training[0][0] != training[0][1]).any()


def test_a_full_disk_while_copying_is_told(tmp_path):
    source = write(tmp_path / "own", FLAT)
    for name in FLAT:
        (source / name).write_bytes(png(noise(128, 128, 0)))  # 50 kB, which a link does not write
    with files_of_at_most(30_000), pytest.raises(GpufeedError, match="room"):
        prepared(source, tmp_path / "out", copies=2)
    assert not (tmp_path / "out/manifest.parquet").exists()


def test_ids_have_a_quantity_only_where_it_is_set():
    config = merged("config.yaml") | {"run": ["hybrid_gpu"]}
    source = config["sources"]["cifar10"]
    before = content(config, "cifar10")
    assert set(before) == {"layout", "files", "options"}
    cells = planned(config).cells["hybrid_gpu"]
    for key in ("limit", "copies", "times"):
        source[key] = None
        assert content(config, "cifar10") == before
        source[key] = 300
        assert content(config, "cifar10") == before | {key: 300}
        assert content(config, "cifar10_gray_28")["tiles"] == before | {key: 300}
        common = {*planned(config).cells["hybrid_gpu"]} & {*cells}
        assert not [cell_id for cell_id in common if cells[cell_id].dataset == "cifar10"]
        del source[key]


def test_estimates_are_of_what_is_used():
    found = Amount(1000, 100_000, 10_000, 8000)
    assert taken(found, {}) == found
    assert taken(found, {"copies": 4}) == Amount(3000, 300_000, 30_000, 24_000)
    assert taken(found, {"times": 3}) == Amount(3000, 100_000, 30_000, 24_000)
    assert taken(found, {"limit": 100, "copies": 4}) == Amount(450, 45_000, 4500, 3600)
    assert taken(found, {"limit": 900}) == found
    archive = Amount(0, 110_000_000, 0, 0)  # of about 1,000 images
    assert taken(archive, {"limit": 100}).files == 16_500_000
    made = {"layout": "synthetic", "options": SMALL}
    assert training_images(made) == 24
    assert training_images(made | {"limit": 9, "times": 4}) == 36
    assert training_images(made | {"limit": 99, "copies": 2}) == 48


def test_a_training_by_hand_has_a_folder_for_each_quantity(tmp_path):
    shipped = merged("config.yaml")
    archive = write_zip(tmp_path / "tiny.zip", tiny_files())
    shelf, source = Shelf(tmp_path / "data", (tmp_path,), "pillow", 0.0), {"layout": "tiny_imagenet"}
    source["files"] = [{"name": archive.name, "sha256": sha256_of(archive)}]
    found = {}
    for times in (None, 3, 5, 3, None):
        config = shipped | {"sources": {**shipped["sources"], "own": source | {"times": times}}}
        path = dataset("own", config, shipped, shelf)
        assert len(Manifest.read(path).ids("train")) == 4 * (times or 1)
        assert found.setdefault(times, path) == path
    assert len(set(found.values())) == 3
