"""host_cache: what it does where the split fits into memory, and where it does not."""

import numpy as np
import pytest
import torch
from image_fixtures import request, write_cache

from gpufeed.loaders import host_cache, resident
from gpufeed.loaders.host_cache import HostCacheLoader, allocated, copy_rows, mapped
from gpufeed.system import host_memory

CACHE = np.arange(20 * 12, dtype=np.uint8).reshape(20, 2, 2, 3)
ROWS = np.array([0, 1, 4, 5, 9, 11, 12, 19])


def epoch_of(loader) -> dict[int, np.ndarray]:
    with loader:
        return {
            sample_id: image.numpy()
            for batch in loader
            for sample_id, image in zip(batch.ids.tolist(), batch.images, strict=True)
        }


def test_copies_every_byte_in_chunks(monkeypatch):
    monkeypatch.setattr(resident, "CHUNK_BYTES", 3 * 12)
    assert np.array_equal(copy_rows(CACHE, ROWS, pin=False).numpy(), CACHE[ROWS])


@pytest.mark.parametrize("split", ["train", "test"])
def test_without_room_it_reads_the_map_and_says_so(manifest, monkeypatch, caplog, split):
    made = request(manifest, write_cache(manifest), split=split)
    in_memory = epoch_of(HostCacheLoader(made))
    monkeypatch.setattr(host_cache, "SHARE_OF_FREE", 0.0)
    loader = HostCacheLoader(made)
    through_map = epoch_of(loader)
    assert "memory map" in caplog.text
    assert len(loader.ids) == len(manifest)
    assert in_memory.keys() == through_map.keys()
    assert all(np.array_equal(in_memory[i], through_map[i]) for i in in_memory)


def test_the_job_s_limit_counts_and_not_only_the_machine_s_memory(manifest, monkeypatch, caplog):
    monkeypatch.setattr(host_memory, "cgroup_room", lambda: 23 * 8 * 8 * 3)  # as much as the split takes
    with HostCacheLoader(request(manifest, write_cache(manifest))) as loader:
        assert len(loader.ids) == len(manifest)
    assert "memory map" in caplog.text


def test_refused_pinned_memory_is_no_error(monkeypatch, caplog):
    def refuse(*args, **options):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    assert copy_rows(CACHE, ROWS, pin=True) is None
    assert "out of memory" in caplog.text


def test_room_for_pinned_memory_counts_what_torch_takes():
    assert allocated(1000, pin=False) == 1000
    assert allocated(1000, pin=True) == allocated(1024, pin=True) == 1024
    assert allocated(1025, pin=True) == 2048


def test_a_memory_map_needs_no_copy(tmp_path, recwarn):
    np.save(tmp_path / "a.npy", CACHE)
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    tensor = mapped(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert not recwarn
