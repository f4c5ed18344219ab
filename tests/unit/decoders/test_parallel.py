"""Bulk decoding: the pixels of every batch, the cores that are really used, and what happens to bad files."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile_fixtures import available
from hypothesis import given
from hypothesis import strategies as st
from photo_fixtures import of_many_sizes
from PIL import Image

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import DECODERS, load
from gpufeed.datasets.synthetic import reorganise
from gpufeed.decoders import parallel
from gpufeed.decoders.encoded_file import read_file
from gpufeed.decoders.parallel import CallBulk, Files, ProcessBulk, cuts, open_bulk, torch_threads
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.system.cores import on_cores

CPU = torch.device("cpu")
NAMES = [name for name, entry in DECODERS.items() if entry.device == "any" and name != "strips"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Paths of 23 JPEGs of 24 x 16 pixels, some grayscale, and their pixels by Pillow, (23, 24, 16, 3)."""
    options = {"count": 23, "size": [24, 16], "classes": 3, "grayscale_share": 0.2, "evaluation_share": 0.0}
    manifest = reorganise([], tmp_path_factory.mktemp("images"), "synthetic", options)
    paths = [str(path) for path in manifest.paths()]
    return paths, np.stack(PillowDecoder().decode([read_file(path) for path in paths]).images)


def opened(bulk, paths, batch_size=5, height=24, width=16):
    bulk.open(Files(list(paths), height, width, batch_size))
    return bulk


def run(bulk, images):
    """All batches joined: a batch is only valid until the next one, so copies."""
    return np.concatenate([batch.numpy().copy() for batch in bulk.run(images)])


CORES = {"torchvision_cpu": 1}  # whose processes import torch; else two


@pytest.mark.parametrize(
    ("name", "cores"), [("pillow", 1), ("dali_cpu", 1), *((name, CORES.get(name, 2)) for name in NAMES)]
)
def test_batches_are_the_files_in_order_again_and_again(images, name, cores):
    available(name)
    paths, pixels = images
    with open_bulk(name, cores, CPU) as bulk:
        by_processes = load("decoder", name).parallel == "processes"
        assert type(bulk) is (ProcessBulk if by_processes else CallBulk)
        found = run(opened(bulk, paths), 48)  # ten batches of five: twice around the 23 files and four more
        assert np.array_equal(found, np.concatenate([pixels, pixels, pixels])[:50])
        assert np.array_equal(run(bulk, 3), pixels[:5])  # from the first file on
        opened(bulk, paths[7:], batch_size=1)
        assert np.array_equal(run(bulk, 3), pixels[7:10])
        assert bulk.fell_back == 0
        assert name in bulk.version()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """(Files of nine JPEGs of several sizes in batches of four, their images by Pillow)."""
    folder = tmp_path_factory.mktemp("mixed")
    encoded = of_many_sizes()
    paths = [folder / f"{number}.jpg" for number in range(len(encoded))]
    for path, data in zip(paths, encoded, strict=True):
        path.write_bytes(data)
    right = PillowDecoder().decode(encoded).images
    sizes = np.array([image.shape[:2] for image in right])
    return Files([str(path) for path in paths], None, None, 4, sizes=sizes), right


def is_right(found, expected) -> None:
    """Fails unless a batch of several sizes has these images."""
    assert isinstance(found, list)
    assert all(np.array_equal(image, right) for image, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", sorted({*NAMES} - {"torchvision_cpu"}))  # which imports torch
def test_batches_of_several_sizes_are_the_files_in_order(mixed, name):
    available(name)
    files, right = mixed
    with open_bulk(name, 2, CPU) as bulk:
        bulk.open(files)
        count = 0
        for number, batch in enumerate(bulk.run(44)):  # five times around the files, through every slot
            is_right(batch, [right[(4 * number + i) % 9] for i in range(4)])
            count += len(batch)
        assert count == 44
        bulk.open(replace(files, batch_size=20))  # more than there are files
        is_right(next(bulk.run(20)), (right * 3)[:20])
        assert bulk.fell_back == 0


def test_dalis_own_reader_brings_batches_of_several_sizes(mixed):
    available("dali_cpu")
    from gpufeed.benchmarks.dali_points import DaliBulk
    from gpufeed.loaders.dali_reader import DEPTH

    files, right = mixed
    with DaliBulk("dali_cpu", 2, CPU) as bulk:
        bulk.open(files)
        assert bulk.reading is not None
        follows = np.arange(12) % 9  # whole batches, again and again
        for number, batch in enumerate(bulk.run(28), DEPTH):
            is_right(batch, [right[i] for i in np.resize(follows, 4 * number + 4)[-4:]])


def test_a_file_of_another_size_than_the_manifest_has_is_an_error_with_its_path(mixed):
    files, right = mixed
    sizes = files.sizes.copy()
    sizes[5] = sizes[5, ::-1]  # as many pixels
    for name in ("pillow", "nvimgcodec_cpu"):
        available(name)
        with open_bulk(name, 2, CPU) as bulk:
            bulk.open(replace(files, sizes=sizes))
            with pytest.raises(GpufeedError, match=f"{files.paths[5]}: decoded to"):
                list(bulk.run(12))
            is_right(next(bulk.run(4)), right[:4])


sides = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=9)


@given(sides, st.integers(1, 20), st.integers(0, 5), st.integers(1, 8))
def test_images_of_a_batch_lie_one_after_the_other_and_in_even_parts(sizes, batch_size, number, parts):
    files = Files(["a"] * len(sizes), None, None, batch_size, sizes=np.array(sizes))
    numbers = files.numbers(number)
    bounds = files.bounds(numbers)
    assert bounds[-1] <= files.room()
    flat = torch.zeros(files.room(), dtype=torch.uint8)
    images = files.images(numbers, flat)
    for place, (image, i) in enumerate(zip(images, numbers, strict=True)):
        assert tuple(image.shape) == (*sizes[i], 3)
        assert torch.all(image == 0)  # nobody else's
        image.fill_(place + 1)
        assert torch.all(flat[bounds[place] : bounds[place + 1]] == place + 1)
    assert int((flat > 0).sum()) == bounds[-1]
    places = cuts(bounds, parts)
    assert (places[0], places[-1], len(places)) == (0, batch_size, parts + 1)
    assert places == sorted(places)
    of_parts = np.diff(bounds[places])
    assert np.abs(of_parts - bounds[-1] / parts).max() <= np.diff(bounds).max()


@given(st.integers(1, 20), st.integers(1, 12))
def test_equal_images_are_cut_into_equal_parts(batch_size, parts):
    files = Files(["a"] * 7, 3, 5, batch_size)
    found = cuts(files.bounds(files.numbers(2)), parts)
    assert (found[0], found[-1]) == (0, batch_size)
    assert set(np.diff(found)) <= {batch_size // parts, -(-batch_size // parts)}
    assert files.room() == 45 * batch_size


@pytest.mark.parametrize("batch_size", [5, 23, 40])
def test_dalis_own_reader_brings_the_same_batches(images, batch_size):
    available("dali_cpu")
    from gpufeed.benchmarks.dali_points import DaliBulk
    from gpufeed.loaders.dali_reader import DEPTH

    paths, pixels = images
    with opened(DaliBulk("dali_cpu", 2, CPU), paths, batch_size) as bulk:
        assert bulk.reading is not None
        assert not bulk.reading.begun
        found = []
        for count in (1, 2 * batch_size, 60, 1):
            found.append(run(bulk, count))
            assert not bulk.reading.begun  # the next run finds no batch ready
        found = np.concatenate(found)
        list_of = np.arange(-(-23 // batch_size) * batch_size) % 23  # whole batches, again and again
        began = DEPTH * batch_size  # opening took these
        assert np.array_equal(found, pixels[np.resize(list_of, began + len(found))[began:]])
        assert bulk.fell_back == 0
        opened(bulk, paths[7:], batch_size=1)
        assert np.array_equal(run(bulk, 3), pixels[7 + DEPTH :][:3])


def test_a_file_that_changes_under_dalis_reader_is_an_error(images, tmp_path):
    available("dali_cpu")
    from gpufeed.benchmarks.dali_points import DaliBulk

    paths, pixels = list(images[0]), images[1]
    late = tmp_path / "late.jpg"
    late.write_bytes(Path(paths[12]).read_bytes())
    paths[12] = str(late)
    with opened(DaliBulk("dali_cpu", 2, CPU), paths) as bulk:
        late.unlink()
        with pytest.raises(GpufeedError, match="its files have changed"):
            run(bulk, 40)
        assert np.array_equal(run(bulk, 10), pixels[:10])  # fed from now on
        with pytest.raises(GpufeedError, match=str(late)):
            run(bulk, 40)


def test_dali_is_fed_where_it_does_not_take_a_file(images, tmp_path):
    available("dali_cpu")
    from gpufeed.benchmarks.dali_points import DaliBulk

    paths, pixels = images
    gif = tmp_path / "a.gif"
    Image.fromarray(pixels[2]).save(gif)
    with opened(DaliBulk("dali_cpu", 2, CPU), [*paths[:2], str(gif), *paths[3:]]) as bulk:
        assert bulk.reading is None
        assert np.array_equal(run(bulk, 5)[[0, 1, 3, 4]], pixels[[0, 1, 3, 4]])
        assert bulk.fell_back == 1


def test_images_of_another_decoder_are_counted(images, tmp_path):
    """simplejpeg leaves PNG files to Pillow."""
    options = {"count": 6, "size": 16, "classes": 2, "format": "png", "evaluation_share": 0}
    manifest = reorganise([], tmp_path, "png", options)
    paths = [*map(str, manifest.paths())]
    with open_bulk("simplejpeg", 2, CPU) as bulk:
        run(opened(bulk, paths, 3, 16), 6)
        assert bulk.fell_back == 6


def test_torch_is_not_imported_by_processes_that_need_none(images):
    with open_bulk("simplejpeg", 1, CPU) as bulk:
        run(opened(bulk, images[0]), 5)
        maps = Path(f"/proc/{bulk.workers[0][0].pid}/maps").read_text()
        assert "simplejpeg" in maps
        assert "libtorch" not in maps


@pytest.mark.parametrize("name", ["pillow", "dali_cpu"])
@pytest.mark.parametrize("damage", ["cut", "missing", "size"])
def test_a_bad_file_is_an_error_with_its_path_and_the_rest_goes_on(images, tmp_path, name, damage):
    available(name)
    paths, pixels = list(images[0]), images[1]
    bad = tmp_path / "bad.jpg"
    if damage == "cut":
        bad.write_bytes(Path(paths[0]).read_bytes()[:200])
    elif damage == "size":
        options = {"count": 2, "size": 16, "classes": 2, "evaluation_share": 0.0}
        bad.write_bytes(reorganise([], tmp_path / "x", "x", options).paths()[0].read_bytes())
    with open_bulk(name, 2, CPU) as bulk:
        opened(bulk, [*paths[:12], str(bad), *paths[13:]])
        with pytest.raises(GpufeedError, match=str(bad)):
            run(bulk, 40)
        assert np.array_equal(run(bulk, 10), pixels[:10])
        assert np.array_equal(run(opened(bulk, paths), 25), np.concatenate([pixels, pixels])[:25])


def test_a_run_that_is_left_early_does_not_disturb_the_next(images):
    paths, pixels = images
    with open_bulk("pillow", 2, CPU) as bulk:
        batches = opened(bulk, paths).run(40)
        next(batches)
        batches.close()
        assert np.array_equal(run(bulk, 20), pixels[:20])


def test_a_dead_process_is_an_error_and_no_hang(images):
    with open_bulk("pillow", 2, CPU) as bulk:
        opened(bulk, images[0])
        os.kill(bulk.workers[1][0].pid, signal.SIGKILL)
        with pytest.raises(GpufeedError, match="a decoding process of pillow ended"):
            run(bulk, 40)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [1, 3])
def test_stuck_processes_cost_one_wait_and_are_killed(images, monkeypatch, stopped):
    """Not one wait an answer that they owe, and none in close(): SIGTERM waits in a stopped process."""
    paths, pixels = images
    with open_bulk("simplejpeg", 3, CPU) as bulk:
        opened(bulk, paths)
        processes = [process for process, _ in bulk.workers]
        for process in processes[:stopped]:
            os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(parallel, "STUCK_S", 3.0)
        begin = time.perf_counter()
        with pytest.raises(GpufeedError, match=r"no answer from a decoding process of simplejpeg for 3\.0 s"):
            run(bulk, 60)
        assert time.perf_counter() - begin < 6
        assert not any(process.is_alive() for process in processes)
        with pytest.raises(GpufeedError, match="no decoding process of simplejpeg left"):
            run(bulk, 60)
        with pytest.raises(GpufeedError, match="no decoding process of simplejpeg left"):
            opened(bulk, paths)
    with open_bulk("simplejpeg", 3, CPU) as bulk:
        assert np.array_equal(run(opened(bulk, paths), 10), pixels[:10])


def test_a_stuck_process_does_not_keep_close_waiting(images):
    bulk = opened(open_bulk("simplejpeg", 2, CPU), images[0])
    os.kill(bulk.workers[1][0].pid, signal.SIGSTOP)
    begin = time.perf_counter()
    bulk.close()
    assert time.perf_counter() - begin < parallel.END_S


def test_processes_end_with_the_bulk(images):
    with open_bulk("pillow", 2, CPU) as bulk:
        opened(bulk, images[0])
        processes = [process for process, _ in bulk.workers]
        descriptor = bulk.slots.descriptor
    assert [process.is_alive() for process in processes] == [False, False]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    bulk.close()


def affinities(pid: int) -> set[frozenset]:
    """The cores of every thread of a process."""
    return {frozenset(os.sched_getaffinity(int(task))) for task in os.listdir(f"/proc/{pid}/task")}


@pytest.mark.parametrize("name", ["pillow", "dali_cpu"])
def test_a_core_count_holds_for_every_thread_and_process(images, name):
    available(name)
    before = os.sched_getaffinity(0)
    torch.ones(300_000).exp()  # torch's own threads have started, on all cores
    with on_cores(1) as chosen, torch_threads(1):
        assert chosen == sorted(before)[:1]
        with open_bulk(name, 1, CPU, chosen) as bulk:
            run(opened(bulk, images[0]), 20)
            pids = [process.pid for process, _ in bulk.workers] if isinstance(bulk, ProcessBulk) else []
            for pid in [os.getpid(), *pids]:
                assert affinities(pid) == {frozenset(chosen)}
            if isinstance(bulk, CallBulk):
                assert bulk.decoder.threads == 1
    assert affinities(os.getpid()) == {frozenset(before)}
