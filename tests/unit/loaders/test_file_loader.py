"""The loader `cuda_jpeg` by the kernels' CPU form: crops, whole images, what goes to Pillow, resuming."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from gate_fixtures import judged, task_for
from hostile_fixtures import photo, saved
from image_fixtures import by_pillow, ids_of, loader_threads, write_cache, write_files
from image_fixtures import request as wanted
from photo_fixtures import photos, taken
from photograph_fixtures import KINDS, encoded, waves
from process_fixtures import wait_until
from test_dali_crops import RECIPE, SIZES, dataset

from gpufeed import native
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.loaders import prefetch
from gpufeed.loaders.base import epoch_order
from gpufeed.loaders.cuda_jpeg import THREADS, CudaJpegLoader
from gpufeed.loaders.prefetch import BatchPrefetcher
from gpufeed.native.file_buffer import FileBuffer

OPTIONS = {name: getattr(RECIPE, name) for name in ("size", "scale", "ratio", "short_side")}
OTHERS = 4  # of `mixture`, for Pillow


def mixture() -> list[bytes]:
    """Baseline JPEGs of every kind and many sizes, and OTHERS files that the kernels do not take."""
    random = np.random.default_rng(0)
    files = [encoded(waves(*size, random), KINDS[i % len(KINDS)], 1) for i, size in enumerate(SIZES * 3)]
    files[3] = saved("JPEG", waves(*SIZES[3], random), progressive=True)
    files[9] = saved("PNG", waves(*SIZES[1], random))
    files[10] = files[2] + b"something behind the end"
    files[14] = saved("GIF", waves(*SIZES[6], random))
    return files


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    manifest = dataset(tmp_path_factory.mktemp("mixed") / "files", mixture())
    manifest.write()
    return manifest


@pytest.fixture
def equal(tmp_path):
    """Files of one size, of which Pillow has a CMYK JPEG and a PNG."""
    manifest = write_files(tmp_path / "equal", photos(), "jpg", (24, 32))
    manifest.write()
    return manifest


def opened(manifest, **changes) -> CudaJpegLoader:
    return CudaJpegLoader(wanted(manifest, None, **changes))


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.for_evaluation()], ids=["training", "evaluation"])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_windows_are_ours_and_pixels_pillows(mixed, recipe, batch_size):
    images = by_pillow(mixed)
    with opened(mixed, recipe=recipe, batch_size=batch_size) as loader:
        for epoch in range(3):
            ids = []
            for batch in loader:
                for i, sample in zip(batch.ids.tolist(), batch.images.numpy(), strict=True):
                    window = recipe.window(i, epoch, *images[i].shape[:2])
                    assert np.array_equal(sample, recipe.cut(images[i], window))
                    ids.append(i)
            assert ids == epoch_order(loader.split_ids, 3, epoch, True, 0, 1).tolist()
        told = {"decoder": "cuda_jpeg", "images": 3 * len(mixed), "fell_back": {"pillow": 3 * OTHERS}}
        assert loader.decode_counts.asdict() == told


def test_it_passes_the_equivalence_check_with_crops_and_without(mixed, equal):
    crops = task_for(mixed, None, "cuda_jpeg", batch_size=7, recipe=OPTIONS)
    whole = task_for(equal, write_cache(equal), "cuda_jpeg")
    cases = [(mixed, replace(crops, reference=None), OTHERS), (equal, whole, 2)]
    for manifest, task, others in cases:
        verdict = judged(task)
        assert (verdict.status, verdict.sentence) == ("passed", None)
        assert (verdict.compared, verdict.max_difference) == (3 * len(manifest), 0)
        assert verdict.pixels["decoder"] == "cuda_jpeg"
        assert verdict.loading["fell_back"] == {"pillow": 3 * others}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_same_samples_come_after_a_resumption(mixed, rank):
    asked = {"recipe": RECIPE, "batch_size": 3, "rank": rank, "world_size": 2}
    with opened(mixed, **asked) as whole, opened(mixed, **asked) as fresh:
        batches = [batch.clone() for _ in range(3) for batch in whole]
        fresh.load_state_dict({"epoch": 1, "next_batch": 2, "seed": 3})
        again = [*fresh, *fresh]
        for found, before in zip(again, batches[len(whole) + 2 :], strict=True):
            assert torch.equal(found.images, before.images)
            assert torch.equal(found.ids, before.ids)


def test_threads_go_on_between_epochs_and_end_before_files_are_evicted(mixed):
    with opened(mixed, recipe=RECIPE, batch_size=5) as loader:
        list(loader)
        makers = set(loader.makers)
        assert len(makers) == THREADS
        next(iter(loader))  # given up after one batch, and gone on with
        assert ids_of(loader) == epoch_order(loader.split_ids, 3, 1, True, 0, 1)[5:].tolist()
        assert set(loader.makers) == makers
        assert sorted(loader.files()) == sorted(map(str, mixed.paths()))
        assert loader_threads() == []
        assert len(list(loader)) == len(loader)
    assert loader_threads() == []


def test_two_iterators_at_once_have_the_batches_of_their_own_epochs(mixed):
    with opened(mixed, recipe=RECIPE, batch_size=5) as loader:
        first = iter(loader)
        ids = [next(first).ids.tolist()]
        loader.load_state_dict({"epoch": 4, "next_batch": 0, "seed": 3})
        second = iter(loader)
        other = [next(second).ids.tolist()]
        for found, batches in ((ids, first), (other, second)):
            found += [next(batches).ids.tolist() for _ in range(len(loader) - 1)]
        for found, epoch in ((ids, 0), (other, 4)):
            assert [i for part in found for i in part] == epoch_order(
                loader.split_ids, 3, epoch, True, 0, 1
            ).tolist()


@pytest.mark.parametrize("taken", [1, 2])
def test_who_asks_a_closed_loader_is_told(mixed, taken):
    with opened(mixed, recipe=RECIPE, batch_size=5) as loader:
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
    with pytest.raises(RuntimeError, match="closed while it was iterated over"):
        next(batches)
    assert loader_threads() == []


def test_files_may_be_asked_for_in_the_middle_of_an_epoch(mixed):
    with opened(mixed, recipe=RECIPE, batch_size=5) as loader:
        ids = ids_of(batch for batch in loader if loader.files())
        assert ids == epoch_order(loader.split_ids, 3, 0, True, 0, 1).tolist()


def test_without_decoding_files_are_read_and_given_images_come(mixed):
    images = np.random.default_rng(0).integers(0, 256, (50, 64, 64, 3), np.uint8)
    asked = wanted(mixed, None, recipe=RECIPE, batch_size=7)
    with CudaJpegLoader.without_decoding(asked, lambda: images) as loader:
        found = np.concatenate([batch.images.numpy() for batch in loader])
        assert len(found) == len(mixed)
        assert {image.tobytes() for image in found} <= {image.tobytes() for image in images}
        loader.files()
        mixed.paths()[3].rename(mixed.root / "moved")
        with pytest.raises(GpufeedError, match=r"3\.jpg: No such file"):
            list(loader)
    (mixed.root / "moved").rename(mixed.paths()[3])


def test_bytes_that_are_left_over_are_for_pillow_and_counted(tmp_path):
    files = taken()
    files[20] = files[20][:-2] + bytes(40) + files[20][-2:]
    manifest = write_files(tmp_path / "files", files, "jpg", (24, 32))
    right = torch.from_numpy(np.stack(by_pillow(manifest)))
    with opened(manifest, batch_size=16) as loader:
        for batch in loader:
            assert torch.equal(batch.images, right[batch.ids])
        assert loader.decode_counts.fell_back == {"pillow": 1}


@pytest.mark.parametrize("recipe", [RECIPE, None], ids=["crops", "whole"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "[Tt]runcated"),
        (lambda data: None, "No such file or directory"),
        (lambda data: b"", "not an image that Pillow knows"),
        (lambda data: saved("JPEG", photo(40, 50)), r"decoded to \(40, 50, 3\), the"),
        # so small that few windows lie inside of it
        (lambda data: saved("JPEG", photo(9, 10)), r"decoded to \(9, 10, 3\), the"),
        (lambda data: saved("PNG", photo(40, 50)), r"decoded to \(40, 50, 3\), the"),
    ],
    ids=["cut", "gone", "empty", "another size", "a smaller size", "a PNG of another size"],
)
def test_a_file_that_nobody_can_decode_is_named_in_its_turn(tmp_path, recipe, damage, said):
    manifest = write_files(tmp_path / "files", taken(), "jpg", (24, 32))
    bad = manifest.paths()[33]
    data = damage(bad.read_bytes())
    bad.unlink() if data is None else bad.write_bytes(data)
    with opened(manifest, recipe=recipe, batch_size=4, shuffle=False) as loader:
        batches = iter(loader)
        assert [i for _ in range(8) for i in next(batches).ids.tolist()] == list(range(32))
        with pytest.raises(GpufeedError, match=rf"33\.jpg: .*{said}"):
            next(batches)
        assert loader.state_dict()["next_batch"] == 8
    assert loader_threads() == []


def test_a_dead_mount_is_an_error_and_can_be_left(mixed, monkeypatch):
    alive, read, used = threading.Event(), FileBuffer.read, []

    def read_late(self, paths):
        used.append(self)
        alive.wait()
        return read(self, paths)

    monkeypatch.setattr(FileBuffer, "read", read_late)
    monkeypatch.setattr(BatchPrefetcher, "stuck_s", 2.0)
    monkeypatch.setattr(prefetch, "END_S", 0.1)
    begin = time.perf_counter()
    with opened(mixed, recipe=RECIPE) as loader:
        with pytest.raises(GpufeedError, match="nothing from the thread"):
            list(loader)
        loader.files()
        assert 2 <= time.perf_counter() - begin < 5  # one wait, not one for each thread
        with pytest.raises(GpufeedError, match="nothing from the thread"):
            list(loader)
        assert len(set(map(id, used))) == 2 * THREADS  # those that are still stuck may yet write into theirs
        alive.set()
    wait_until(lambda: loader_threads() == [])


@pytest.mark.parametrize("name", ["cuda_jpeg", "resident_jpeg"])
def test_it_skips_without_the_extension(equal, monkeypatch, name):
    monkeypatch.setattr(native, "status", lambda device: native.Status("reference", "There is no compiler."))
    with pytest.raises(Skip, match=rf"{name} needs this project's extension\. There is no compiler\."):
        load("loader", name)(wanted(equal, None)).open()


def test_a_wrong_marker_is_for_pillow_wherever_the_windows_are(tmp_path):
    files = taken()
    files[20] = files[20][:-2] + b"\xff\xd0" + files[20][-2:]
    manifest = write_files(tmp_path / "files", files, "jpg", (24, 32))
    images = by_pillow(manifest)
    with opened(manifest, recipe=RECIPE, batch_size=16) as loader:
        for epoch in range(3):
            for batch in loader:
                for i, sample in zip(batch.ids.tolist(), batch.images.numpy(), strict=True):
                    assert np.array_equal(sample, RECIPE.cut(images[i], RECIPE.window(i, epoch, 24, 32)))
            assert loader.decode_counts.fell_back == {"pillow": epoch + 1}
