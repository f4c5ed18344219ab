import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from data_fixtures import REPOSITORY, disk_full
from hostile_fixtures import available
from image_fixtures import pixels, write_cache

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of
from gpufeed.decoders.base import Tolerance
from gpufeed.stores import cache_fill
from gpufeed.stores.base import info_path
from gpufeed.stores.cache_fill import RowWriter
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.decoded_cache import build, build_from_rows

EXACT = Tolerance(0, 0.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_pixels_in_sample_order(manifest, tmp_path, workers, monkeypatch):
    monkeypatch.setattr(cache_fill, "CHUNK", 4)
    path = tmp_path / "pillow.npy"
    info = build(manifest, "pillow", path, workers)
    array = open_cache(path, manifest, verify=True)
    assert array.shape == info.shape == (29, 8, 8, 3)
    assert array.dtype == np.uint8
    assert np.array_equal(array, np.stack([pixels(i, 8) for i in range(29)]))
    assert np.array_equal(np.load(path), array)
    assert json.loads(info_path(path).read_text())["sha256"] == sha256_of(path)
    assert sorted(p.name for p in tmp_path.glob("pillow*")) == ["pillow.json", "pillow.npy"]


def test_undecodable_images_are_listed_and_nothing_is_left(manifest, tmp_path, caplog):
    files = manifest.paths()
    files[3].write_bytes(files[3].read_bytes()[:40])
    files[7].unlink()
    files[9].write_bytes(b"")
    with pytest.raises(GpufeedError) as error:
        build(manifest, "pillow", tmp_path / "pillow.npy")
    assert "3 of 29" in error.value.found
    for row in (3, 7, 9):
        assert manifest.table["path"][row] in error.value.found
    assert "No such file" in error.value.found
    assert caplog.text.count("cannot be decoded: ") == 3
    assert not list(tmp_path.glob("pillow*"))


def test_wrong_size_in_the_manifest_is_named(manifest, tmp_path):
    manifest.table["height"] = 9
    with pytest.raises(GpufeedError, match=r"decoded to \(8, 8, 3\), the manifest says \(9, 8, 3\)"):
        build(manifest, "pillow", tmp_path / "pillow.npy")


def test_other_manifest_is_refused(manifest):
    path = write_cache(manifest)
    manifest.table.loc[0, "label"] += 1
    with pytest.raises(GpufeedError, match="another manifest"):
        open_cache(path, manifest)


def test_damage_is_found(manifest):
    path = write_cache(manifest)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    open_cache(path, manifest)
    with pytest.raises(GpufeedError, match="sha256"):
        open_cache(path, manifest, verify=True)
    path.write_bytes(whole[:-100])
    with pytest.raises(GpufeedError, match="no readable array"):
        open_cache(path, manifest)
    np.save(path, np.zeros((29, 8, 8, 1), np.uint8))
    with pytest.raises(GpufeedError, match=r"uint8 \(29, 8, 8, 1\)"):
        open_cache(path, manifest)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"shape": 3}', '{"shape": [1, 2, 3, 3]}'])
def test_sidecar_that_is_not_whole(manifest, text):
    path = write_cache(manifest)
    info_path(path).unlink()
    if text is not None:
        info_path(path).write_text(text)
    with pytest.raises(GpufeedError, match="built completely"):
        open_cache(path, manifest)


def test_failed_rebuild_leaves_no_finished_cache(manifest):
    path = write_cache(manifest)
    manifest.paths()[0].unlink()
    with pytest.raises(GpufeedError):
        build(manifest, "pillow", path)
    with pytest.raises(GpufeedError, match="built completely"):
        open_cache(path, manifest)


def test_full_disk(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", disk_full, raising=False)
    with pytest.raises(GpufeedError, match="no room to write"):
        build(manifest, "pillow", tmp_path / "pillow.npy")
    assert not list(tmp_path.glob("pillow*"))


SLOW_BUILD = """
import sys, time
from gpufeed.stores.decoded_cache import build
from gpufeed.stores import cache_fill
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.pillow import PillowDecoder
cache_fill.CHUNK = 1
decode = PillowDecoder.decode
PillowDecoder.decode = lambda self, files: (time.sleep(0.2), decode(self, files))[1]
build(Manifest.read(sys.argv[1]), "pillow", sys.argv[2], workers=int(sys.argv[3]))
"""


def partials(folder: Path) -> list[Path]:
    return list(folder.glob("*.partial"))


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_build_leaves_nothing_that_looks_finished(manifest, tmp_path, workers):
    path = tmp_path / "pillow.npy"
    command = [sys.executable, "-c", SLOW_BUILD, manifest.root / "manifest.parquet", path, str(workers)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    pixels_begin = 128
    while process.poll() is None and not any(any(p.read_bytes()[pixels_begin:]) for p in partials(tmp_path)):
        time.sleep(0.02)
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(children) == (workers if workers > 1 else 0)
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert len(partials(tmp_path)) == 1
    assert not path.exists()
    assert not info_path(path).exists()
    build(manifest, "pillow", path)
    assert np.array_equal(open_cache(path, manifest, verify=True)[5], pixels(5, 8))
    assert partials(tmp_path) == []


@pytest.fixture
def waits(monkeypatch):
    """What this process has waited for the disk to take: "map" or, by fsync, the file's name and size."""
    waited = []
    fsync, flush = os.fsync, np.memmap.flush

    def synced(descriptor):
        status = os.fstat(descriptor)
        names = [one.name for one in Path.cwd().rglob("*") if one.stat().st_ino == status.st_ino]
        waited.append((*names, status.st_size))
        fsync(descriptor)

    monkeypatch.setattr(np.memmap, "flush", lambda array: waited.append("map") or flush(array))
    monkeypatch.setattr(os, "fsync", synced)
    return waited


@pytest.mark.parametrize("name", ["pillow", "dali_cpu"])  # a process a core, and threads of its own
def test_the_disk_is_waited_for_once_and_before_the_cache_has_its_name(
    manifest, tmp_path, monkeypatch, waits, name
):
    available(name)
    monkeypatch.setattr(cache_fill, "CHUNK", 4)
    monkeypatch.chdir(tmp_path)
    build(manifest, name, tmp_path / "a.npy")
    ((partial, size),) = waits
    assert partial.startswith("a.npy.")
    assert partial.endswith(".partial")
    assert size == (tmp_path / "a.npy").stat().st_size
    waits.clear()
    build(manifest, name, tmp_path / "b.npy", durable=False)
    assert waits == []
    assert np.array_equal(
        open_cache(tmp_path / "b.npy", manifest, verify=True), open_cache("a.npy", manifest)
    )


@pytest.mark.parametrize(("durable", "times"), [(True, 1), (False, 0)])
def test_the_disk_is_waited_for_when_somebody_else_decoded(
    manifest, tmp_path, monkeypatch, waits, durable, times
):
    monkeypatch.chdir(tmp_path)
    build_from_rows(manifest, blocks(29, *range(6)), tmp_path / "a.npy", "1.0", EXACT, durable)
    assert len(waits) == times
    assert "map" not in waits


def blocks(count: int, *order: int):
    """Ids and images of samples in blocks of 5, the blocks in `order`; every second one as a tensor."""
    for block in order:
        ids = np.arange(5 * block, min(5 * block + 5, count))
        images = np.stack([pixels(i, 8) for i in ids])
        yield ids, torch.from_numpy(images) if block % 2 else images


def test_built_from_images_that_somebody_else_decoded(manifest, tmp_path):
    path = tmp_path / "strips.npy"
    info = build_from_rows(manifest, blocks(29, 5, 0, 3, 2, 1, 4), path, "strips 1.0", EXACT)
    assert (info.decoder, info.decoder_version) == ("strips", "strips 1.0")
    assert np.array_equal(
        open_cache(path, manifest, verify=True), np.stack([pixels(i, 8) for i in range(29)])
    )


def test_a_sample_that_nobody_decoded_is_an_error(manifest, tmp_path):
    with pytest.raises(GpufeedError, match="5 of 29 samples without an image"):
        build_from_rows(manifest, blocks(29, 0, 1, 3, 4, 5), tmp_path / "a.npy", "strips 1.0", EXACT)
    assert not list(tmp_path.glob("a*"))


@pytest.mark.parametrize(
    "images", [np.zeros((2, 8, 9, 3), np.uint8), torch.zeros((2, 8, 8, 3)), pixels(0, 8)]
)
def test_rows_refuse_what_does_not_fit(images, tmp_path):
    cache_fill.allocate(tmp_path / "a.npy", (4, 8, 8, 3))
    with pytest.raises(GpufeedError, match=r"expected: uint8 \(2, 8, 8, 3\)"):
        RowWriter(tmp_path / "a.npy").write([0, 1], images)
