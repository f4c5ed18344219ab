"""What cannot be decoded leaves the dataset when it is prepared, by name and reason."""

import logging
import os
import time

import pytest
from data_fixtures import jpeg, tiny_files, write_zip
from hostile_fixtures import hostile_files
from image_fixtures import pixels, write_dataset

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets import quarantine as module
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.prepare import prepare
from gpufeed.datasets.quarantine import quarantine
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.decoded_cache import build

TOP = "tiny-imagenet-200/"


@pytest.fixture
def manifest(tmp_path):
    """29 images, of which number 3 is cut off, 7 is gone and 9 has another size than its row says."""
    manifest = write_dataset(tmp_path / "tiny")
    files = manifest.paths()
    files[3].write_bytes(files[3].read_bytes()[:60])
    files[7].unlink()
    manifest.table.loc[9, "width"] = 7
    return manifest


@pytest.mark.parametrize("workers", [1, 2])
def test_broken_images_leave_with_path_and_reason(manifest, workers, monkeypatch, caplog):
    monkeypatch.setattr(module, "CHUNK", 4)
    caplog.set_level(logging.WARNING, "gpufeed")
    kept = quarantine(manifest, 0.2, workers)
    paths = manifest.table["path"]
    assert [image["path"] for image in kept.info.quarantined] == [paths[row] for row in (3, 7, 9)]
    reasons = [image["reason"] for image in kept.info.quarantined]
    assert reasons[0]
    assert reasons[1] == "cannot be read: No such file or directory"
    assert reasons[2] == "decoded to 8 x 8, but its header says 8 x 7"
    assert caplog.text.count("quarantined images/") == 3
    rest = [row for row in range(29) if row not in (3, 7, 9)]
    assert kept.table["path"].tolist() == [paths[row] for row in rest]
    assert kept.labels().tolist() == [manifest.labels()[row] for row in rest]
    assert Manifest.read(kept.write()).info == kept.info


def test_what_is_left_can_be_cached(manifest, tmp_path):
    kept = quarantine(manifest, 0.2)
    build(kept, "pillow", tmp_path / "pillow.npy")
    rows = open_cache(tmp_path / "pillow.npy", kept)
    assert (rows[3] == pixels(4, 8)).all()
    assert (rows[25] == pixels(28, 8)).all()


def test_a_share_above_the_limit_is_an_error(manifest, monkeypatch):
    monkeypatch.setattr(module, "SHOWN", 2)
    with pytest.raises(GpufeedError) as error:
        quarantine(manifest, 0.1)
    assert "3 of 29 images cannot be decoded" in error.value.found
    assert error.value.found.count("images/t") == 2
    assert "and 1 more" in error.value.found
    assert "max_quarantined_share" in error.value.remedy
    assert len(quarantine(manifest, 3 / 29).info.quarantined) == 3


def test_a_whole_dataset_stays_as_it_is(tmp_path):
    manifest = write_dataset(tmp_path / "tiny")
    assert quarantine(manifest, 0.0) is manifest


def zipped(tmp_path, extra: dict[str, bytes]):
    return write_zip(tmp_path / "tiny.zip", {**tiny_files(), **extra})


def test_a_layout_with_hostile_files(tmp_path):
    hostile = list(hostile_files().items())
    archive = zipped(
        tmp_path,
        {f"{TOP}train/n01/images/x_{i}.JPEG": file.data for i, (_, file) in enumerate(hostile)},
    )
    began = time.monotonic()
    manifest = prepare("tiny_imagenet", [archive], tmp_path / "out", "tiny", {}, 0.5)
    assert time.monotonic() - began < 30
    bad = {image["path"]: image["reason"] for image in manifest.info.quarantined}
    expected = {f"images/train/n01/x_{i}.JPEG" for i, (_, file) in enumerate(hostile) if not file.decodes}
    assert set(bad) == expected
    assert all(bad.values())
    assert not expected & set(manifest.table["path"])
    assert len(manifest) == 6 + len(hostile) - len(expected)
    assert [reason for reason in bad.values() if "DecompressionBombError" in reason]
    assert Manifest.read(tmp_path / "out/manifest.parquet").info == manifest.info


def test_too_many_broken_images_leave_no_manifest(tmp_path):
    archive = zipped(tmp_path, {f"{TOP}train/n01/images/n01_7.JPEG": b"x"})
    with pytest.raises(GpufeedError, match="1 of 7 images cannot be decoded"):
        prepare("tiny_imagenet", [archive], tmp_path / "out", "tiny", {}, 0.1)
    assert not (tmp_path / "out/manifest.parquet").exists()


def die(*_):
    os._exit(9)


def test_a_dying_process_is_an_error(tmp_path, monkeypatch):
    archive = zipped(tmp_path, {f"{TOP}train/n01/images/m_{i}.JPEG": jpeg(i) for i in range(9)})
    monkeypatch.setattr(module, "check_files", die)
    with pytest.raises(GpufeedError, match="a decoding process died"):
        prepare("tiny_imagenet", [archive], tmp_path / "out", "tiny", {}, 0.1, workers=2)
    assert not (tmp_path / "out/manifest.parquet").exists()
