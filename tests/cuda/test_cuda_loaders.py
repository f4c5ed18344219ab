"""What only a GPU shows of the loaders: copies that overlap. Their contract: test_cuda_streaming.py."""

from contextlib import closing, contextmanager

import numpy as np
import pytest
import torch
from image_fixtures import request, write_beton, write_cache, write_dataset, write_shards

from gpufeed.augment.reference import TorchAugment
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.loaders.host_cache import HostCacheLoader
from gpufeed.loaders.prefetch import BatchPrefetcher
from gpufeed.loaders.resident import ResidentLoader, copy_rows
from gpufeed.loaders.samples import HostBatch, copied
from gpufeed.system.timing import Mark

BUSY_CYCLES = 20_000_000  # about 10 ms at 2 GHz


@pytest.fixture
def device():
    return torch.device("cuda")


def host_batches(count: int, shape: tuple[int, ...]):
    """Pinned uint8 batches in which every byte is the batch's number, modulo 251."""
    for number in range(count):
        image = torch.full(shape, number % 251, dtype=torch.uint8).pin_memory()
        ids = torch.full((shape[0],), number).pin_memory()
        yield HostBatch(image, ids, ids, 0.0)


def copy_ahead(device, count: int, shape: tuple[int, ...]) -> BatchPrefetcher:
    # pinned beforehand: allocating pinned memory may itself wait for the device
    made = list(host_batches(count, shape))
    batches = (batch for batch in made)
    return BatchPrefetcher(copied(batches, device), device, torch.cuda.Stream(device))


@pytest.mark.alone
def test_copy_of_the_next_batch_overlaps_with_compute(device):
    ahead = copy_ahead(device, 8, (64, 64, 64, 3))
    torch.cuda._sleep(1000)  # loads the kernel before the clock runs
    computed, copied = [], []
    while (batch := ahead.get()) is not None:
        torch.cuda._sleep(BUSY_CYCLES)
        computed.append(Mark(device))
        copied.append(batch.transfer)
    ahead.close()
    torch.cuda.synchronize()
    overlapped = [copied[n + 1].start.ms_until(computed[n]) > 0 for n in range(7)]
    assert all(overlapped)


def test_no_wrong_pixel_in_a_thousand_batches_beside_a_busy_stream(device):
    ahead = copy_ahead(device, 1000, (16, 32, 32, 3))
    busy = torch.cuda.Stream(device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    number = 0
    while (batch := ahead.get()) is not None:
        with torch.cuda.stream(busy):
            torch.cuda._sleep(200_000)
        torch.cuda._sleep(100_000)  # the batch is read late, when later copies have long been queued
        wrong += (batch.images != number % 251).sum() + (batch.ids != number).sum()
        number += 1
    ahead.close()
    assert number == 1000
    assert wrong.item() == 0


@contextmanager
def opened(loader):
    """The loader, open; skips the test where the node lacks its package."""
    try:
        loader.open()
    except Skip as skip:
        pytest.skip(str(skip))
    with closing(loader):
        yield loader


@pytest.mark.parametrize(
    ("name", "workers", "persistent"),
    [
        ("overlap", 0, False),
        ("overlap", 2, False),
        ("dataloader_workers", 2, False),
        ("host_cache", 0, False),
        ("spdl", 3, False),
        ("spdl", 3, True),  # in a process of their own, spawned after CUDA has started
        ("spdl_processes", 3, False),
        ("webdataset", 0, False),
        ("webdataset", 2, False),
        ("webdataset_resampled", 2, True),
        ("ffcv", 3, False),
    ],
)
def test_real_files_beside_a_busy_stream(device, tmp_path, name, workers, persistent):
    manifest = write_dataset(tmp_path / "tiny", train=600, test=6)
    cache = write_cache(manifest) if name == "host_cache" else None
    write_shards(manifest)
    write_beton(manifest)
    made = request(
        manifest,
        cache,
        device=device,
        workers=workers,
        prefetch_factor=2 if workers else None,
        persistent_workers=persistent,
        batch_size=7,
    )
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    with opened(load("loader", name)(made)) as loader:
        for _ in range(2):
            for batch in loader:
                torch.cuda._sleep(500_000)
                ids = (batch.images[..., 0].long() + 256 * batch.images[..., 1].long()).flatten(1)
                wrong += (ids != batch.ids[:, None]).sum()
    assert wrong.item() == 0


@pytest.mark.parametrize("name", ["resident", "replay"])
def test_device_loaders_do_not_wait_for_the_device(device, tmp_path, name):
    manifest = write_dataset(tmp_path / "tiny")
    with load("loader", name)(request(manifest, write_cache(manifest), device=device)) as loader:
        list(loader)
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert len(list(loader)) == 5
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_torch_augment_on_the_device(device):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), np.uint8))
    ids = torch.arange(64)
    augment = TorchAugment((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), 3, {})
    expected = augment(images, ids, 2)
    on_device = images.to(device), ids.to(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = augment(*on_device, 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(out.cpu(), expected, atol=1e-5, rtol=0)


def test_captured_augment_follows_the_epoch(device):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), np.uint8)).to(device)
    ids, epoch = torch.arange(8, device=device), torch.zeros((), dtype=torch.int64, device=device)
    augment = TorchAugment((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), 3, {})
    augment(images, ids, epoch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment(images, ids, epoch)
    for number in range(3):
        epoch.fill_(number)
        graph.replay()
        torch.testing.assert_close(out, augment(images, ids, number), atol=1e-5, rtol=0)


def test_resident_copies_every_byte(device, monkeypatch):
    monkeypatch.setattr("gpufeed.loaders.resident.CHUNK_BYTES", 3 * 12)
    cache = np.arange(20 * 12, dtype=np.uint8).reshape(20, 2, 2, 3)
    rows = np.array([0, 1, 4, 5, 9, 11, 12, 19])
    assert np.array_equal(copy_rows(cache, rows, device).cpu().numpy(), cache[rows])


def test_resident_says_when_it_does_not_fit(device, tmp_path, monkeypatch):
    manifest = write_dataset(tmp_path / "tiny")
    monkeypatch.setattr("gpufeed.loaders.resident.free_bytes", lambda device: 1000)
    with pytest.raises(GpufeedError, match="free on cuda"):
        ResidentLoader(request(manifest, write_cache(manifest), device=device)).open()


def test_host_cache_is_pinned_or_mapped(device, tmp_path, monkeypatch):
    manifest = write_dataset(tmp_path / "tiny")
    made = request(manifest, write_cache(manifest), device=device)
    with HostCacheLoader(made) as loader:
        assert loader.rows.is_pinned()
        batches = list(loader)
        assert all(batch.transfer is not None for batch in batches)
    monkeypatch.setattr("gpufeed.loaders.host_cache.SHARE_OF_FREE", 0.0)
    with HostCacheLoader(made) as loader:
        assert not loader.rows.is_pinned()
        for batch, again in zip(batches, loader, strict=True):
            assert torch.equal(batch.images, again.images)
            assert torch.equal(batch.ids, again.ids)
