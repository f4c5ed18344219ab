"""Loaders that read and decode files in every epoch: reading ahead, whole batches, memory, errors."""

import gc
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from hostile_fixtures import available, photo, saved
from image_fixtures import by_pillow, ids_of, loader_threads, write_dataset, write_files
from image_fixtures import request as wanted
from photo_fixtures import COUNT, dali_loader, photos, taken
from process_fixtures import wait_until

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import DECODERS, LOADERS, load
from gpufeed.decoders.encoded_file import PIECE, read_file
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.loaders.base import epoch_order
from gpufeed.loaders.prefetch import Prefetcher
from gpufeed.loaders.streaming import FileReader

STREAMING = [name for name in LOADERS if name in DECODERS and LOADERS[name].reads == "files"]
ON_GPU = [name for name in STREAMING if LOADERS[name].device == "cuda"]


@pytest.fixture
def manifest(tmp_path):
    return write_files(tmp_path / "photos", photos(), "jpg", (24, 32))


@pytest.fixture
def clean(tmp_path):
    """A split that DALI's own reader can have."""
    return write_files(tmp_path / "clean", taken(), "jpg", (24, 32))


@pytest.mark.parametrize("files", ["manifest", "clean"])
@pytest.mark.parametrize("batch_size", [7, 20, 64])  # with a smaller last batch, whole ones, one for all
def test_ranks_and_state_whoever_reads(files, batch_size, request):
    manifest = request.getfixturevalue(files)
    expected = np.stack(by_pillow(manifest))
    for rank in range(2):
        asked = {"batch_size": batch_size, "rank": rank, "world_size": 2}
        with dali_loader(manifest, **asked) as loader:
            assert loader.reads == (files == "clean")
            orders = [epoch_order(loader.split_ids, 3, epoch, True, rank, 2) for epoch in range(3)]
            came = [next(iter(loader))]  # given up after one batch, which may be the whole epoch
            while loader.epoch < 2:
                came += loader
            state = loader.state_dict()
        with dali_loader(manifest, **asked) as fresh:
            fresh.load_state_dict(state)
            came += fresh
        assert ids_of(came) == np.concatenate(orders).tolist()
        for batch in came:
            assert np.array_equal(batch.images.numpy(), expected[batch.ids.tolist()])
            assert batch.images.is_contiguous()


@pytest.mark.parametrize("name", STREAMING)
def test_there_is_a_decoder_of_its_name(name):
    loader = load("loader", name)
    assert loader.decoder == name
    assert LOADERS[name].device in ("any", DECODERS[name].device)
    assert "cpu" not in LOADERS[name].augments


@pytest.mark.parametrize("name", ON_GPU)
def test_without_a_gpu_it_skips_with_a_sentence(manifest, name):
    with pytest.raises(Skip, match=f"Loader {name} decodes on a CUDA GPU, and this cell's device is cpu"):
        load("loader", name)(wanted(manifest, None))


def test_without_the_library_it_skips_before_an_epoch(manifest, monkeypatch):
    loader = dali_loader(manifest)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)  # as if it were not installed
    with pytest.raises(Skip, match="Decoder dali_cpu needs the package nvidia-dali"):
        loader.open()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["fed", "read"])
def test_memory_does_not_grow_over_epochs(tmp_path, path):
    files = photos() if path == "fed" else taken()
    manifest = write_files(tmp_path / "many", files * 10, "jpg", (24, 32))
    process = psutil.Process()
    with dali_loader(manifest, batch_size=64, threads=2) as loader:
        assert loader.reads == (path != "fed")
        for _ in range(4):
            assert sum(len(batch.ids) for batch in loader) == len(manifest)
        threads, sizes = process.num_threads(), []
        for _ in range(3):
            gc.collect()
            sizes.append(process.memory_info().rss)
            for _ in range(20):
                assert sum(len(batch.ids) for batch in loader) == len(manifest)
        wait_until(lambda: process.num_threads() <= threads)  # the last ones may be at their end still
    # An epoch is 1.4 MB of pixels and 0.6 MB of files: either of them kept would be 12 MB or more, each time.
    # Fragments of the heap grow once, whichever 20 epochs that falls into.
    assert min(np.diff(sizes)) < 8 * 2**20
    assert not loader_threads()


def test_reading_runs_ahead_but_not_without_bound(manifest, monkeypatch):
    read: list[int] = []
    plain = FileReader.read
    monkeypatch.setattr(FileReader, "read", lambda self, i: read.append(i) or plain(self, i))
    with dali_loader(manifest, batch_size=1) as loader:
        read.clear()  # `open` looks at files
        iterator = iter(loader)
        next(iterator)
        # one taken; two decoded batches and two read ones wait; each thread has one in its hands
        wait_until(lambda: len(read) == 7)
        time.sleep(0.1)
        assert len(read) == 7
        assert read == loader.order()[:7].tolist()
        iterator.close()
    assert not loader_threads()


@pytest.mark.parametrize("files", ["manifest", "clean"])
@pytest.mark.parametrize("damage", ["no image", "cut", "gone", "resized"])
def test_batches_before_a_bad_file_come_whole(files, damage, request):
    """Whoever reads the files, and whether they were right when the loader was opened."""
    manifest = request.getfixturevalue(files)
    bad = manifest.paths()[13]
    contents = {
        "no image": b"no image",
        "cut": bad.read_bytes()[:300],
        "resized": saved("JPEG", photo(16, 16)),
    }
    with dali_loader(manifest, batch_size=4, shuffle=False) as loader:
        if damage == "gone":
            bad.unlink()
        else:
            bad.write_bytes(contents[damage])
        iterator = iter(loader)
        seen = ids_of(next(iterator) for _ in range(3))
        with pytest.raises(GpufeedError) as error:
            next(iterator)
        assert loader.state_dict()["next_batch"] == 3
    assert seen == list(range(12))
    assert str(bad) in error.value.found
    assert not loader_threads()


def counted(count: int, ended: list[str]):
    try:
        yield from range(count)
    finally:
        ended.append(threading.current_thread().name)


def test_closing_ends_the_source_in_its_own_thread():
    ended: list[str] = []
    ahead = Prefetcher(counted(100, ended), "gpufeed-test")
    assert ahead.get() == 0
    assert not ended
    ahead.close()
    assert ended == ["gpufeed-test"]
    assert not loader_threads()


def test_an_error_comes_in_its_turn():
    def failing():
        yield 1
        yield 2
        raise KeyboardInterrupt("planted")

    ahead = Prefetcher(failing(), "gpufeed-test")
    assert [ahead.get(), ahead.get()] == [1, 2]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt, match="planted"):
            ahead.get()
    ahead.close()


def test_after_the_last_item_there_is_none_again_and_again():
    ahead = Prefetcher(iter([1]), "gpufeed-test")
    assert [ahead.get() for _ in range(4)] == [1, None, None, None]
    ahead.close()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_files_are_read_whole(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(size))
    assert read_file(str(path)) == path.read_bytes()


def test_reading_leaves_no_file_open(manifest):
    before = psutil.Process().num_fds()
    reader = FileReader(manifest)
    assert sum(len(batch.encoded) for batch in reader.batches(np.arange(COUNT), 7)) == COUNT
    manifest.paths()[3].unlink()
    with pytest.raises(GpufeedError, match="No such file"):
        reader.read(3)
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_into_a_batch(name):
    """The images of the list form, at their places, or the reason why one is not."""
    decoder = available(name)
    files = photos(20)
    out = torch.zeros((20, 24, 32, 3), dtype=torch.uint8)
    outcomes = decoder.decode_into(files, out)
    decoded = decoder.decode(files)
    assert outcomes == decoded.outcomes
    assert np.array_equal(out.numpy(), np.stack(decoded.images))
    files[2], files[4] = saved("JPEG", photo(16, 16)), b"no image"
    out.zero_()
    outcomes = decoder.decode_into(files, out)
    assert outcomes[2].reason == "decoded to (16, 16, 3), the manifest says (24, 32, 3)"
    assert outcomes[2].decoder is None
    assert outcomes[4].decoder is None
    assert outcomes[4].reason
    for place in set(range(20)) - {2, 4}:
        assert np.array_equal(out[place].numpy(), decoded.images[place])
    assert decoder.decode_into([], out[:0]) == []


def test_a_usual_batch_is_one_call_and_one_copy(monkeypatch):
    decoder = available("dali_cpu")
    files, out = [saved("JPEG", photo())] * 1500, torch.zeros((1500, 48, 64, 3), dtype=torch.uint8)
    monkeypatch.setattr(decoder, "decode_taken", lambda files: pytest.fail("image by image"))
    assert {outcome.decoder for outcome in decoder.decode_into(files, out)} == {"dali_cpu"}
    expected = torch.from_numpy(PillowDecoder().decode(files[:1]).images[0])
    assert torch.equal(out, expected.expand_as(out))  # more files than one run of the pipeline takes
    with monkeypatch.context() as header_lies:
        header_lies.setattr(decoder, "takes_all", lambda files, size: True)
        assert not decoder.fill(files[:2], torch.zeros((2, 48, 60, 3), dtype=torch.uint8))


def test_labels_and_ids_are_no_views_of_the_loaders_own(tmp_path):
    with dali_loader(write_dataset(tmp_path / "tiny"), shuffle=False) as loader:
        assert loader.reads  # PNG files too, such as those of the contract's tests
        expected = loader.order().tolist()
        for batch in loader:
            batch.ids.fill_(-1)
        assert loader.order().tolist() == expected
