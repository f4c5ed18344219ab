"""Nobody waits for ever: what gives nothing for long is an error, and can be left."""

import shutil
import threading
import time

import pytest
from hostile_fixtures import photo, saved
from image_fixtures import request, write_dataset, write_files, write_shards
from photo_fixtures import dali_loader

from gpufeed.core import run_time_estimate
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.loaders import prefetch
from gpufeed.loaders.base import STUCK_S
from gpufeed.loaders.prefetch import BatchPrefetcher, Prefetcher
from gpufeed.loaders.streaming import FileReader


@pytest.fixture
def mount(monkeypatch):
    """What everybody waits for who calls `mount.wait()`; it comes when the test is over."""
    monkeypatch.setattr(prefetch, "END_S", 0.2)
    alive = threading.Event()
    yield alive
    alive.set()


def waiting_for(mount):
    yield 1
    mount.wait()
    yield 2


def test_a_source_that_gives_nothing_is_an_error_and_can_be_left(mount, monkeypatch, caplog):
    monkeypatch.setattr(Prefetcher, "stuck_s", 0.5)
    items = Prefetcher(waiting_for(mount), "gpufeed-test")
    assert items.get() == 1
    begin = time.perf_counter()
    with pytest.raises(GpufeedError, match=r"nothing from the thread gpufeed-test for 0\.5 s"):
        items.get()
    items.close()
    assert 0.5 <= time.perf_counter() - begin < 30
    assert "the thread gpufeed-test has not ended" in caplog.text
    mount.set()
    items.thread.join(5)
    assert not items.thread.is_alive()


def test_closing_does_not_wait_for_ever_either(mount, monkeypatch):
    monkeypatch.setattr(Prefetcher, "stuck_s", 0.5)
    items = Prefetcher(waiting_for(mount), "gpufeed-test")
    assert items.get() == 1
    begin = time.perf_counter()
    items.close()
    assert 0.5 <= time.perf_counter() - begin < 30
    assert items.thread.daemon


def test_a_consumer_that_waits_hears_at_once_of_an_item_and_soon_of_the_end(mount, monkeypatch):
    monkeypatch.setattr(prefetch, "LOOK_S", 0.2)
    items = Prefetcher(waiting_for(mount), "gpufeed-test")
    assert items.get() == 1
    threading.Timer(0.1, items.stopping.set).start()
    with pytest.raises(RuntimeError, match="closed while it was iterated over"):
        items.get()
    monkeypatch.setattr(prefetch, "LOOK_S", 60)
    items = Prefetcher(waiting_for(mount), "gpufeed-test")
    assert items.get() == 1
    threading.Timer(0.1, mount.set).start()
    begin = time.perf_counter()
    assert items.get() == 2
    assert time.perf_counter() - begin < 30
    items.close()


def test_a_streaming_loader_on_a_dead_mount_is_an_error(mount, tmp_path, monkeypatch):
    """And it is told by who waits for the files: the thread behind it may wait a little longer."""
    assert BatchPrefetcher.stuck_s > Prefetcher.stuck_s == STUCK_S
    files = [saved("JPEG", photo(24, 32)), saved("GIF", photo(24, 32))] * 4  # GIF: DALI gets bytes
    manifest = write_files(tmp_path / "files", files, "jpg", (24, 32))
    monkeypatch.setattr(Prefetcher, "stuck_s", 0.5)
    monkeypatch.setattr(BatchPrefetcher, "stuck_s", 2.0)
    with dali_loader(manifest, batch_size=2) as loader:
        plain = FileReader.read
        monkeypatch.setattr(FileReader, "read", lambda self, i: mount.wait() and plain(self, i))
        begin = time.perf_counter()
        with pytest.raises(GpufeedError, match="nothing from the thread gpufeed-read for"):
            next(iter(loader))
    assert time.perf_counter() - begin < 30


@pytest.mark.parametrize("name", ["dataloader_workers", "overlap", "fastai", "webdataset"])
def test_workers_whose_batches_have_no_room_in_memory_are_a_skip(tmp_path, monkeypatch, name):
    manifest = write_dataset(tmp_path / "tiny")
    write_shards(manifest)
    usage, needed = shutil.disk_usage("/"), 5 * 8 * 8 * 3 * (2 * 2 + 2)
    made = load("loader", name)
    for free in (needed, needed - 1):
        monkeypatch.setattr(
            run_time_estimate.shutil, "disk_usage", lambda _, free=free: usage._replace(free=free)
        )
        asked = request(manifest, None, workers=2, prefetch_factor=2)
        if free < needed:
            with (
                pytest.raises(Skip, match=r"2 worker processes do not fit: .*/dev/shm"),
                made(asked) as loader,
            ):
                list(loader)
        else:
            with made(asked) as loader:
                assert len(list(loader)) == 5
        with made(request(manifest, None)):  # without workers none is needed
            pass
