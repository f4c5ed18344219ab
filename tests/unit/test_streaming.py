"""Loaders that read and decode files in every epoch: reading ahead, whole batches, memory, errors."""

import gc
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from hostile_fixtures import available, photo, saved
from image_fixtures import loader_threads, write_dataset, write_files
from image_fixtures import request as wanted
from PIL import Image

from gpufeed.decode.files import PIECE, read_file
from gpufeed.decode.pillow import PillowDecoder
from gpufeed.errors import GpufeedError, Skip
from gpufeed.loaders.ahead import Ahead
from gpufeed.loaders.files import FileReader
from gpufeed.loaders.order import epoch_order
from gpufeed.registry import DECODERS, LOADERS, load

STREAMING = [name for name in LOADERS if name in DECODERS and LOADERS[name].reads == "files"]
ON_GPU = [name for name in STREAMING if LOADERS[name].device == "cuda"]
COUNT = 60


def photos(count: int = COUNT) -> list[bytes]:
    """As `taken`, but for a CMYK file, which DALI does not take, and a PNG."""
    files, shades = taken(count), shaded(count)
    files[7] = saved("JPEG", Image.fromarray(shades[7]).convert("CMYK"))
    files[8] = saved("PNG", shades[8])
    return files


def taken(count: int = COUNT) -> list[bytes]:
    """JPEGs of 24 x 32 pixels of different shades; some are gray."""
    shades = shaded(count)
    files = [saved("JPEG", shade, quality=90) for shade in shades]
    files[5], files[6] = (saved("JPEG", Image.fromarray(shades[i]).convert("L")) for i in (5, 6))
    return files


def shaded(count: int) -> list[np.ndarray]:
    return [photo(24, 32) // 2 + np.uint8(2 * i % 128) for i in range(count)]


@pytest.fixture
def manifest(tmp_path):
    return write_files(tmp_path / "photos", photos(), "jpg", (24, 32))


@pytest.fixture
def clean(tmp_path):
    """A split that DALI's own reader can have."""
    return write_files(tmp_path / "clean", taken(), "jpg", (24, 32))


@pytest.mark.parametrize("files", ["manifest", "clean"])
def test_every_kind_of_file_in_three_epochs(files, request):
    available("dali_cpu")
    manifest = request.getfixturevalue(files)
    expected = np.stack(PillowDecoder().decode([path.read_bytes() for path in manifest.paths()]).images)
    with load("loader", "dali_cpu")(wanted(manifest, None, batch_size=8)) as loader:
        assert loader.reads == (files == "clean")
        for _ in range(3):
            order = loader.order()
            batches = list(loader)
            assert torch.cat([batch.ids for batch in batches]).tolist() == order.tolist()
            assert np.array_equal(torch.cat([batch.images for batch in batches]).numpy(), expected[order])
        assert loader.reads == (files == "clean")


@pytest.mark.parametrize("files", ["manifest", "clean"])
@pytest.mark.parametrize("batch_size", [7, 20, 64])  # with a smaller last batch, whole ones, one for all
def test_ranks_and_state_whoever_reads(files, batch_size, request):
    available("dali_cpu")
    manifest = request.getfixturevalue(files)
    expected = np.stack(PillowDecoder().decode([path.read_bytes() for path in manifest.paths()]).images)
    for rank in range(2):
        made = wanted(manifest, None, batch_size=batch_size, rank=rank, world_size=2)
        with load("loader", "dali_cpu")(made) as loader:
            orders = [epoch_order(loader.split_ids, made.seed, epoch, True, rank, 2) for epoch in range(3)]
            came = [next(iter(loader))]  # given up after one batch, which may be the whole epoch
            while loader.epoch < 2:
                came += loader
            state = loader.state_dict()
        with load("loader", "dali_cpu")(made) as fresh:
            fresh.load_state_dict(state)
            came += fresh
        assert torch.cat([batch.ids for batch in came]).tolist() == np.concatenate(orders).tolist()
        for batch in came:
            assert np.array_equal(batch.images.numpy(), expected[batch.ids.tolist()])
            assert batch.images.is_contiguous()


@pytest.mark.parametrize("name", STREAMING)
def test_there_is_a_decoder_of_its_name(name):
    loader = load("loader", name)
    assert loader.decoder == name
    assert LOADERS[name].device == DECODERS[name].device
    assert "cpu" not in LOADERS[name].augments


@pytest.mark.parametrize("name", ON_GPU)
def test_without_a_gpu_it_skips_with_a_sentence(manifest, name):
    with pytest.raises(Skip, match=f"Loader {name} decodes on a CUDA GPU, and this cell's device is cpu"):
        load("loader", name)(wanted(manifest, None))


@pytest.mark.parametrize("name", STREAMING)
def test_what_it_would_have_to_resize_is_refused(manifest, name):
    manifest.info = replace(manifest.info, resize=(16, 16))
    with pytest.raises(GpufeedError, match="to be resized to 16 x 16 pixels"):
        load("loader", name)(wanted(manifest, None))


def test_without_the_library_it_skips_before_an_epoch(manifest, monkeypatch):
    available("dali_cpu")
    loader = load("loader", "dali_cpu")(wanted(manifest, None))
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)  # as if it were not installed
    with pytest.raises(Skip, match="Decoder dali_cpu needs nvidia-dali"):
        loader.open()


@pytest.mark.parametrize("path", ["fed", "read"])
def test_memory_does_not_grow_over_epochs(tmp_path, path):
    available("dali_cpu")
    files = photos() if path == "fed" else taken()
    manifest = write_files(tmp_path / "many", files * 10, "jpg", (24, 32))
    process = psutil.Process()
    with load("loader", "dali_cpu")(wanted(manifest, None, batch_size=64, threads=2)) as loader:
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
    available("dali_cpu")
    read: list[int] = []
    plain = FileReader.read
    monkeypatch.setattr(FileReader, "read", lambda self, i: read.append(i) or plain(self, i))
    with load("loader", "dali_cpu")(wanted(manifest, None, batch_size=1)) as loader:
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


def wait_until(condition, seconds: float = 10) -> None:
    end = time.perf_counter() + seconds
    while not condition() and time.perf_counter() < end:
        time.sleep(0.005)
    assert condition()


@pytest.mark.parametrize("files", ["manifest", "clean"])
@pytest.mark.parametrize("damage", ["no image", "cut", "gone", "resized"])
def test_batches_before_a_bad_file_come_whole(files, damage, request):
    """Whoever reads the files, and whether they were right when the loader was opened."""
    available("dali_cpu")
    manifest = request.getfixturevalue(files)
    bad = manifest.paths()[13]
    contents = {
        "no image": b"no image",
        "cut": bad.read_bytes()[:300],
        "resized": saved("JPEG", photo(16, 16)),
    }
    with load("loader", "dali_cpu")(wanted(manifest, None, batch_size=4, shuffle=False)) as loader:
        if damage == "gone":
            bad.unlink()
        else:
            bad.write_bytes(contents[damage])
        iterator = iter(loader)
        seen = [i for _ in range(3) for i in next(iterator).ids.tolist()]
        with pytest.raises(GpufeedError) as error:
            next(iterator)
        assert loader.state_dict()["next_batch"] == 3
    assert seen == list(range(12))
    assert str(bad) in error.value.found
    assert not loader_threads()


def test_a_split_with_a_bad_file_is_not_for_dalis_reader(clean):
    available("dali_cpu")
    for damage in (lambda path: path.write_bytes(b"no image"), lambda path: path.unlink()):
        damage(clean.paths()[13])
        with load("loader", "dali_cpu")(wanted(clean, None)) as loader:
            assert not loader.reads
            assert loader.not_taken() == str(clean.paths()[13])
            with pytest.raises(GpufeedError, match=str(clean.paths()[13])):
                list(loader)


@pytest.mark.parametrize("name", ["with spaces and ü ", "two\nlines", "car\rriage", "caf\udce9"])
def test_dali_reads_files_of_any_name(tmp_path, name):
    available("dali_cpu")
    manifest = write_files(tmp_path / name, taken(), "jpg", (24, 32))
    with load("loader", "dali_cpu")(wanted(manifest, None)) as loader:
        batches = list(loader)
        assert loader.reads
    expected = PillowDecoder().decode([path.read_bytes() for path in manifest.paths()]).images
    found = {i: batch.images[row] for batch in batches for row, i in enumerate(batch.ids.tolist())}
    assert sorted(found) == list(range(COUNT))
    # libjpeg-turbo decodes for both
    assert all(np.array_equal(found[i].numpy(), expected[i]) for i in range(COUNT))


def test_what_dali_refuses_on_the_way_is_decoded_by_others(clean, caplog):
    available("dali_cpu")
    late = clean.paths()[50]  # DALI has read the first batches ahead
    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=8, shuffle=False)) as loader:
        list(loader)
        late.write_bytes(saved("GIF", shaded(COUNT)[50]))
        expected = PillowDecoder().decode([late.read_bytes()]).images[0]
        for _ in range(2):
            batches = list(loader)
            assert [i for batch in batches for i in batch.ids.tolist()] == list(range(COUNT))
            assert np.array_equal(batches[6].images[2].numpy(), expected)
    (record,) = caplog.records
    assert (
        "dali_cpu is fed with bytes from now on: its own reader found nvImageCodec failure" in record.message
    )


@pytest.fixture
def pipelines(monkeypatch):
    """Grows with every pipeline of DALI that is built to read."""
    available("dali_cpu")
    from gpufeed.loaders.dali_reader import ReadingPipeline

    built: list[int] = []
    plain = ReadingPipeline._build
    monkeypatch.setattr(ReadingPipeline, "_build", lambda self: built.append(1) or plain(self))
    return built


def test_one_pipeline_of_dali_serves_all_epochs(clean, pipelines):
    expected = np.stack(PillowDecoder().decode([path.read_bytes() for path in clean.paths()]).images)

    def check(loader):
        order = loader.order()[loader.next_batch * 8 :]
        batches = [(batch.ids.numpy(), batch.images.numpy()) for batch in loader]
        assert np.array_equal(np.concatenate([ids for ids, _ in batches]), order)
        assert np.array_equal(np.concatenate([images for _, images in batches]), expected[order])

    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=8)) as loader:
        for _ in range(40):
            check(loader)
        state = loader.state_dict()
        for _ in loader:
            break
        check(loader)  # the rest
        loader.load_state_dict(state)  # DALI has begun the next epoch
        check(loader)
        loader.load_state_dict({**state, "epoch": 3, "next_batch": 6})
        check(loader)
        assert loader.reads
    assert len(pipelines) == 1


def test_two_iterations_at_once_end_in_an_error_and_spoil_nothing(clean):
    available("dali_cpu")
    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=4)) as loader:
        for trial in range(40):
            first = iter(loader)
            for _ in range(trial % 5):
                next(first)
            second = iter(loader)
            with suppress(GpufeedError):
                for _ in range(8):
                    next(second)
                    next(first)
            first.close()
            second.close()
            loader.load_state_dict({**loader.state_dict(), "epoch": trial, "next_batch": 0})
            order = loader.order().tolist()
            assert [i for batch in loader for i in batch.ids.tolist()] == order
        assert loader.reads


def test_an_interrupt_while_dali_throws_away_costs_nothing(clean, monkeypatch):
    available("dali_cpu")
    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=8)) as loader:
        order = loader.order()
        loader.reading.follow(loader.planned(order, 0))
        assert len(loader.reading.coming()) == 8

        def interrupted():
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(loader.reading.pipeline, "release_outputs", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loader.reading.follow(loader.planned(order, 9))
        for _ in range(2):
            order = loader.order().tolist()
            assert [i for batch in loader for i in batch.ids.tolist()] == order
        assert loader.reads


def test_dali_throws_away_what_nobody_has_asked_for(clean, pipelines):
    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=8, shuffle=False)) as loader:
        out, order, bad = torch.empty((8, 24, 32, 3), dtype=torch.uint8), loader.order(), clean.paths()[8]
        bad.write_bytes(b"no image")
        loader.reading.follow(loader.planned(order, 0))
        assert loader.reading.fill(order[:8], out)  # the batch behind it has begun, with the bad file
        loader.reading.follow(loader.planned(order[16:], 0))
        assert loader.reading.fill(order[16:24], out)
        expected = PillowDecoder().decode([path.read_bytes() for path in clean.paths()[16:24]]).images
        assert all(map(np.array_equal, out.numpy(), expected))
    assert len(pipelines) == 2


def test_other_samples_than_the_promised_ones_are_an_error(clean):
    available("dali_cpu")
    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=8)) as loader:
        out, order = torch.empty((8, 24, 32, 3), dtype=torch.uint8), loader.order()
        with pytest.raises(GpufeedError, match="as the epoch's order has them"):
            loader.reading.fill(order[:8], out)  # nothing is planned
        loader.reading.follow(loader.planned(order, 0))
        assert loader.reading.fill(order[:8], out)
        with pytest.raises(GpufeedError, match="as the epoch's order has them"):
            loader.reading.fill(order[:8], out)
        loader.reading.begun[0] = replace(loader.reading.begun[0], ids=order[16:24])  # DALI has order[8:16]
        with pytest.raises(GpufeedError, match="as the epoch's order has them"):
            loader.reading.fill(order[16:24], out)
        assert [i for batch in loader for i in batch.ids.tolist()] == order.tolist()


def test_dalis_threads_end_with_the_loader(clean):
    available("dali_cpu")
    process = psutil.Process()
    with load("loader", "dali_cpu")(wanted(clean, None, batch_size=8, threads=3)) as loader:
        list(loader)
    before = process.num_threads()
    for batches in (1, 3, COUNT):
        loader = load("loader", "dali_cpu")(wanted(clean, None, batch_size=8, threads=3))
        loader.open()
        for _, _ in zip(range(batches), loader, strict=False):
            pass
        assert process.num_threads() > before
        loader.close()
        wait_until(lambda: process.num_threads() <= before)


def counted(count: int, ended: list[str]):
    try:
        yield from range(count)
    finally:
        ended.append(threading.current_thread().name)


def test_closing_ends_the_source_in_its_own_thread():
    ended: list[str] = []
    ahead = Ahead(counted(100, ended), "gpufeed-test")
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

    ahead = Ahead(failing(), "gpufeed-test")
    assert [ahead.get(), ahead.get()] == [1, 2]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt, match="planted"):
            ahead.get()
    ahead.close()


def test_after_the_last_item_there_is_none_again_and_again():
    ahead = Ahead(iter([1]), "gpufeed-test")
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
    available("dali_cpu")
    with load("loader", "dali_cpu")(wanted(write_dataset(tmp_path / "tiny"), None, shuffle=False)) as loader:
        assert loader.reads  # PNG files too, such as those of the contract's tests
        expected = loader.order().tolist()
        for batch in loader:
            batch.ids.fill_(-1)
        assert loader.order().tolist() == expected
