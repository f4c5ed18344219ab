"""What only a GPU shows of `resident_jpeg`: real files, no wait of the host, streams, memory."""

import zipfile

import pytest
import torch
from image_fixtures import request, write_files
from test_resident_jpeg import HEIGHT, WIDTH, by_pillow, files

from gpufeed.loaders import resident_jpeg
from gpufeed.loaders.resident_jpeg import ResidentJpegLoader

CUDA = torch.device("cuda", 0)
COUNT, BATCH = 600, 16
SLEEP_CYCLES = 500_000_000  # about 0.3 s on the GPU
LATE_CYCLES = 400_000

pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("mixed") / "files", files(COUNT), "jpg", (HEIGHT, WIDTH))


@pytest.fixture(scope="module")
def right(manifest):
    return by_pillow(manifest).to(CUDA)


@pytest.fixture
def loader(manifest, monkeypatch):
    """An open loader over three kinds and pixels in 13 rounds of three batches, warmed up by one epoch."""
    monkeypatch.setattr(resident_jpeg, "ROUND_BYTES", 3 * BATCH * HEIGHT * WIDTH * 3)
    with ResidentJpegLoader(request(manifest, None, device=CUDA, batch_size=BATCH)) as loader:
        assert len(loader.streams) > 1
        assert len(loader.store.kept)
        list(loader)
        torch.cuda.synchronize()
        yield loader


@pytest.mark.realdata
@pytest.mark.parametrize("batch_size", [256, 4096])
def test_real_files_are_pillows(real_data, tmp_path, monkeypatch, batch_size):
    monkeypatch.setattr(resident_jpeg, "ROUND_BYTES", 700 * 64 * 64 * 3)
    with zipfile.ZipFile(real_data / "tiny-imagenet-40.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".JPEG")][::5]
        manifest = write_files(tmp_path / "real", [archive.read(name) for name in names], "jpg", (64, 64))
    right = by_pillow(manifest)
    with ResidentJpegLoader(request(manifest, None, device=CUDA, batch_size=batch_size)) as loader:
        assert (len(loader.store.codings), len(loader.store.kept)) == (2, 0)
        for _ in range(2):
            seen = 0
            for batch in loader:
                assert torch.equal(batch.images.cpu(), right[batch.ids.cpu()])
                seen += len(batch.ids)
            assert seen == len(names)


def test_the_host_does_not_wait_for_the_device(loader):
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            assert sum(len(batch.ids) for batch in loader) == COUNT
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.alone
def test_an_epoch_is_queued_while_the_device_is_at_the_step_before(loader):
    compute = torch.cuda.Stream()
    with torch.cuda.stream(compute):
        torch.cuda._sleep(SLEEP_CYCLES)
        step = compute.record_event()
        batches = list(loader)
        assert not step.query()
    torch.cuda.synchronize()
    assert len(batches) == len(loader)


def test_no_wrong_image_whatever_stream_takes_a_batch(loader, right):
    """Each batch is asked for, and read late, on another stream, and then dropped at once."""
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(2))]
    wrong = [torch.zeros((), dtype=torch.int64, device=CUDA) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(10):
        batches = iter(loader)
        for number in range(len(loader)):
            place = number % len(streams)
            with torch.cuda.stream(streams[place]):
                batch = next(batches)
                torch.cuda._sleep(LATE_CYCLES)
                wrong[place] += (batch.images != right[batch.ids]).sum()
                del batch
        assert next(batches, None) is None
    torch.cuda.synchronize()
    assert [int(count) for count in wrong] == [0] * len(streams)


def test_batches_that_are_kept_stay_right_after_the_loader_was_closed(loader, right):
    torch.cuda._sleep(SLEEP_CYCLES)  # what reads them begins when all else is long queued
    batches = list(loader)
    store = loader.store.data.nbytes
    loader.close()
    torch.full((store,), 255, dtype=torch.uint8, device=CUDA)  # takes the memory of the store if it is free
    wrong = sum((batch.images != right[batch.ids]).sum() for batch in batches)
    assert int(wrong) == 0


def test_memory_does_not_grow_over_epochs(loader):
    reserved = []
    for _ in range(20):
        assert sum(len(batch.ids) for batch in loader) == COUNT
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[4]


def test_on_the_device_lie_coded_bytes_and_not_pixels(loader):
    store, pixels = loader.store, COUNT * HEIGHT * WIDTH * 3
    assert all(tensor.device == CUDA for tensor in store.tensors)
    assert sum(tensor.nbytes for tensor in store.tensors) < pixels / 2
