"""What single loaders do beyond the contract: errors, workers that die, threads, memory."""

import gc
import os
import signal
import time

import psutil
import pytest
import torch
from image_fixtures import ids_of, loader_threads, request, write_cache, write_dataset, write_shards
from process_fixtures import wait_until
from transform_fixtures import failing, slow

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import LOADERS, load
from gpufeed.loaders import resident
from gpufeed.loaders.base import epoch_order
from gpufeed.loaders.overlap import OverlapLoader
from gpufeed.loaders.prefetch import BatchPrefetcher
from gpufeed.loaders.resident import ResidentLoader
from gpufeed.loaders.samples import HostBatch, HostBatches, copied

FILE_READERS = [
    ("dataloader_sync", 0),
    ("dataloader_workers", 2),
    ("overlap", 0),
    ("overlap", 2),
    ("fastai", 0),
    ("fastai", 2),
    ("replay", 0),
    ("dali_cpu", 0),
]


CPU = torch.device("cpu")


BAD = [
    *((*reader, "cut") for reader in FILE_READERS),
    *(("dataloader_sync", 0, damage) for damage in ("gone", "resized")),  # dali_cpu: test_streaming.py
]


@pytest.mark.parametrize(("name", "workers", "damage"), BAD)
def test_bad_file_is_named(manifest, name, workers, damage):
    loader_request = request(manifest, None, workers=workers, shuffle=False)
    bad = manifest.paths()[2]
    if damage == "gone":
        bad.unlink()
    elif damage == "cut":
        bad.write_bytes(bad.read_bytes()[:50])
    else:
        other = write_dataset(manifest.root.parent / "other", size=6)
        bad.write_bytes(other.paths()[2].read_bytes())
    loader = load("loader", name)(loader_request)
    with pytest.raises(GpufeedError) as error, loader:
        list(loader)
    assert str(bad) in error.value.found
    assert not loader_threads()


def kill_workers_after_first_batch(loader) -> None:
    for _ in loader:
        for child in psutil.Process().children():
            os.kill(child.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["dataloader_workers", "overlap", "fastai", "webdataset"])
def test_killed_worker_is_an_error_and_no_hang(manifest, name):
    if name == "webdataset":
        pytest.importorskip("webdataset")
        write_shards(manifest)
    asked = request(manifest, None, workers=1, prefetch_factor=1, batch_size=1, sample_transform=sleepy)
    loader = load("loader", name)(asked)
    begin = time.perf_counter()
    with pytest.raises((GpufeedError, RuntimeError), match="DataLoader worker") as error, loader:
        kill_workers_after_first_batch(loader)
    assert time.perf_counter() - begin < 30
    assert error.type is GpufeedError
    assert "1 running worker processes" in error.value.expected


class Cycle:
    """Garbage that only its own process may destroy, as a CUDA stream in a reference cycle is."""

    def __init__(self):
        self.me, self.owner = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.owner:
            os.abort()


def collecting(image, sample_id, epoch):
    gc.collect()
    return image.permute(2, 0, 1).float()


@pytest.mark.parametrize("name", ["dataloader_workers", "overlap", "fastai"])
def test_garbage_of_the_main_process_is_not_collected_in_workers(manifest, name):
    wanted = request(manifest, None, workers=2, batch_size=3, sample_transform=collecting, split="test")
    loader = load("loader", name)(wanted)
    gc.collect()
    gc.disable()
    try:
        Cycle()
        with loader:
            assert sum(len(batch.ids) for batch in loader) == len(loader.split_ids)
    finally:
        gc.enable()
    assert gc.get_freeze_count() == 0
    assert gc.collect() > 0  # it was garbage indeed, and can be collected here


def sleepy(image, sample_id, epoch):
    time.sleep(0.05)
    return image.permute(2, 0, 1).float()


@pytest.mark.parametrize(
    ("name", "workers"),
    [("spdl", 0), *(pair for pair in FILE_READERS if "cpu" in LOADERS[pair[0]].augments)],
)
def test_error_in_a_transform_keeps_its_type(manifest, open_loader, name, workers):
    with pytest.raises(ValueError, match="planted at"):
        list(open_loader(name, request(manifest, None, workers=workers, sample_transform=failing)))
    assert not loader_threads()


def test_stuck_worker_times_out(manifest, monkeypatch):
    monkeypatch.setattr("gpufeed.loaders.samples.LOOK_S", 0.2)
    monkeypatch.setattr("gpufeed.loaders.samples.STUCK_S", 0.5)
    loader = load("loader", "dataloader_workers")(
        request(manifest, None, workers=1, sample_transform=slow, batch_size=1)
    )
    with pytest.raises(GpufeedError, match="no batch from the DataLoader workers"), loader:
        list(loader)


@pytest.mark.parametrize("name", ["dataloader_workers", "overlap"])
def test_slow_worker_is_waited_for(manifest, monkeypatch, name):
    monkeypatch.setattr("gpufeed.loaders.samples.LOOK_S", 0.02)
    asked = request(manifest, None, workers=1, batch_size=4, sample_transform=sleepy, split="test")
    with load("loader", name)(asked) as loader:
        assert ids_of(loader) == epoch_order(loader.split_ids, 3, 0, True, 0, 1).tolist()


def test_persistent_workers_stay_and_others_go(manifest):
    def pids_by_epoch(persistent: bool) -> list[set[int]]:
        loader = load("loader", "dataloader_workers")(
            request(manifest, None, workers=1, persistent_workers=persistent, prefetch_factor=2)
        )
        found = []
        with loader:
            before = set(psutil.Process().children())  # what a test before has left, already ended
            for _ in range(2):
                iterator = iter(loader)
                next(iterator)
                found.append({child.pid for child in set(psutil.Process().children()) - before})
                assert len(found[-1]) == 1
                list(iterator)
        return found

    first, second = pids_by_epoch(persistent=True)
    assert first == second
    first, second = pids_by_epoch(persistent=False)
    assert not first & second


def test_state_counts_delivered_batches_not_fetched_ones(manifest):
    with OverlapLoader(request(manifest, None)) as loader:
        iterator = iter(loader)
        next(iterator)
        ahead = loader.prefetcher
        wait_until(ahead.ready.full)
        assert loader.state_dict()["next_batch"] == 1


def host_batches(count: int, seen: list[int]):
    for i in range(count):
        seen.append(i)
        yield HostBatch(
            torch.full((1, 2, 2, 3), i, dtype=torch.uint8), torch.tensor([i]), torch.tensor([i]), 0.0
        )


def test_copies_run_ahead_but_not_without_bound():
    seen: list[int] = []
    ahead = BatchPrefetcher(copied(host_batches(100, seen), CPU), CPU)
    wait_until(lambda: len(seen) == 3)  # two that wait and one in the thread's hands
    time.sleep(0.05)
    assert len(seen) == 3
    assert [ahead.get().ids.item() for _ in range(100)] == list(range(100))
    assert ahead.get() is None
    ahead.close()
    assert not loader_threads()


def test_closing_a_thread_that_waits_for_room():
    ahead = BatchPrefetcher(copied(host_batches(100, []), CPU), CPU)
    wait_until(ahead.ready.full)
    ahead.close()
    ahead.close()
    assert not loader_threads()
    with pytest.raises(RuntimeError, match="closed"):
        ahead.get()


def test_closed_loader_does_not_hang_its_iterator(manifest):
    loader = OverlapLoader(request(manifest, None))
    loader.open()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert not loader_threads()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


def test_resident_does_not_fit(manifest, monkeypatch):
    loader_request = request(manifest, write_cache(manifest))
    needed = 23 * 8 * 8 * 3
    monkeypatch.setattr(resident, "free_bytes", lambda device: needed)
    with pytest.raises(GpufeedError, match="free on cpu"):
        ResidentLoader(loader_request).open()
    monkeypatch.setattr(resident, "free_bytes", lambda device: 2 * needed)
    ResidentLoader(loader_request).open()


@pytest.mark.parametrize("name", [name for name, entry in LOADERS.items() if entry.reads != "files"])
def test_a_loader_without_its_store_is_refused(manifest, name):
    with pytest.raises(GpufeedError, match=f"no {LOADERS[name].reads} for the loader"):
        load("loader", name)(request(manifest, None))


@pytest.mark.parametrize("name", [name for name, entry in LOADERS.items() if "cpu" not in entry.augments])
def test_a_loader_of_whole_batches_refuses_a_transform_of_single_samples(manifest, name):
    store = manifest.root / "any store"
    asked = request(manifest, store, strips=store, shards=store, beton=store, sample_transform=sleepy)
    with pytest.raises(GpufeedError, match="a transform for each sample in loader"):
        load("loader", name)(asked)


def test_replay_yields_the_same_memory(manifest):
    with load("loader", "replay")(request(manifest, None)) as loader:
        assert len({batch.images.data_ptr() for _ in range(2) for batch in loader}) == 1


def test_images_of_several_sizes_are_refused(manifest):
    manifest.table.loc[4, "height"] = 9
    with pytest.raises(GpufeedError, match="image sizes"):
        HostBatches(request(manifest, None))


def test_load_ms_is_the_hosts_wait(manifest):
    with load("loader", "dataloader_sync")(request(manifest, None, sample_transform=sleepy)) as loader:
        waits = [batch.load_ms for batch in loader]
    assert all(wait >= 0.05e3 * count for wait, count in zip(waits, [5, 5, 5, 5, 3], strict=True))
