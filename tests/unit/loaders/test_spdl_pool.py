"""SPDL's pipeline with a pool of processes: how it comes up and ends, and the memory of its batches."""

# ruff: noqa: F811 (a fixture's name is that of an argument)

import asyncio
import gc
import re
import resource
import weakref
from pathlib import Path

import pytest
from image_fixtures import request
from process_fixtures import left_after, wait_until
from test_spdl_process import (  # noqa: F401
    OWN,
    THREADS,
    forked,
    make,
    manifest,
    no_thread_stays,
    processes,
    start,
)
from transform_fixtures import brief, ending, growing, hanging, stopping

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import load

pytest.importorskip("spdl.pipeline")
pytestmark = pytest.mark.slow  # every test starts processes that import torch


@pytest.fixture
def kind():
    return "pool"


def test_processes_that_hang_are_killed_on_close(make, monkeypatch):
    before = processes()
    loader = make(workers=1, sample_transform=hanging)
    monkeypatch.setattr("gpufeed.loaders.spdl_pipeline.STUCK_S", 0.3)
    monkeypatch.setattr("gpufeed.loaders.spdl_processes.END_S", 0.2)
    with pytest.raises(GpufeedError, match=r"no batch from SPDL's pipeline for 0\.3 s"):
        list(loader)
    loader.close()
    assert not left_after(10, processes() - before)


@pytest.mark.parametrize(
    ("unpacked", "seconds", "words"), [(stopping, 1, "have not started"), (ending, 60, "is gone")]
)  # 60: on a busy machine a process imports for longer than one second before it unpacks anything
def test_a_pool_that_does_not_come_up_is_an_error(make, manifest, monkeypatch, unpacked, seconds, words):
    make(**THREADS).close()  # a skip where this node cannot run it
    before = processes()
    monkeypatch.setattr("gpufeed.loaders.spdl_process.SendingMaker.__reduce__", unpacked, raising=False)
    monkeypatch.setattr("gpufeed.loaders.spdl_processes.STUCK_S", seconds)
    monkeypatch.setattr("gpufeed.loaders.spdl_processes.END_S", 0.2)
    with pytest.raises(GpufeedError, match=f"SPDL's pipeline.*{words}"):
        load("loader", "spdl_processes")(request(manifest, None, **OWN)).open()
    assert not left_after(10, processes() - before)


def test_batches_that_shared_memory_has_no_room_for_are_an_error_with_a_remedy(make):
    make(**THREADS).close()  # a skip where this node cannot run it
    before, limits = processes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(GpufeedError, match="no shared memory for 6 batches of 36864 bytes") as error:
            make()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "/dev/shm" in error.value.remedy
    assert not processes() - before


def test_a_batch_larger_than_it_was_said_to_be_is_an_error(make):
    loader = make(workers=1, sample_transform=growing)
    with pytest.raises(GpufeedError, match="147456 bytes from the transform") as error:
        list(loader)
    assert error.value.expected.startswith("at most 36864 bytes")


def test_slots_are_mapped_at_first_suffice_and_are_free_after_an_epoch_that_was_left(make, monkeypatch):
    waits = []

    async def waited(seconds):
        waits.append(seconds)
        await asyncio.sleep(seconds)

    loader = make(batch_size=1, sample_transform=brief)
    slots = loader.pipeline.slots
    # before the first batch: else memory grows until each has written into each, as if it leaked
    for worker in loader.pipeline.workers:
        status = Path(f"/proc/{worker.pid}/status").read_text()
        mapped = int(re.search(r"RssShmem:\s*(\d+) kB", status)[1]) * 1024
        assert mapped >= slots.memory.nbytes
    monkeypatch.setattr("gpufeed.loaders.spdl_processes.sleep", waited)
    assert sum(len(batch.ids) for batch in loader) == loader.share > len(slots.memory)
    assert not waits

    for _ in loader:
        break
    assert len(slots.free) < len(slots.memory)
    loader.load_state_dict({"epoch": 1, "next_batch": 0, "seed": 3})
    list(loader)
    wait_until(lambda: len(slots.free) >= len(slots.memory), 30)
    assert sorted(slots.free) == [*range(len(slots.memory))]


def test_an_error_that_is_kept_keeps_no_batches(make):
    loader = make(workers=1, batch_size=1, prefetch_factor=1, sample_transform=growing)
    slots = weakref.ref(loader.pipeline.slots)
    with pytest.raises(GpufeedError) as error:
        list(loader)
    loader.close()
    gc.collect()
    assert error.value
    assert slots() is None
