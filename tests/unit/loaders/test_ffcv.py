"""Loader ffcv beyond the contract: a node without it, its JPEG files, its threads, and errors in them."""

import io
import sys
import threading
from functools import partial

import cv2
import numpy as np
import psutil
import pytest
import torch
from gate_fixtures import judged, task_for
from hostile_fixtures import saved
from image_fixtures import ids_of, request, write_beton, write_cache, write_dataset, write_mixed
from photograph_fixtures import waves
from PIL import Image

from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.benchmarks.equivalence.crop_reference import crop_reference
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.datasets.synthetic import reorganise
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.pillow import rgb
from gpufeed.loaders import ffcv
from gpufeed.loaders.base import NoStage
from gpufeed.loaders.pixel_tolerance import pixel_source
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.ffcv_store import TOLERANCE

JPEGS = {
    "count": 60,
    "size": 32,
    "classes": 4,
    "format": "jpeg",
    "quality": 90,
    "grayscale_share": 0.2,
    "evaluation_share": 0.2,
    "seed": 0,
}


@pytest.fixture
def manifest(tmp_path):
    made = write_dataset(tmp_path / "tiny")
    write_beton(made)
    return made


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """JPEG files, a fifth of them grayscale, and one of CMYK."""
    made = reorganise([], tmp_path_factory.mktemp("jpegs"), "synthetic", JPEGS)
    odd = made.paths()[int(made.ids("train")[3])]
    with Image.open(io.BytesIO(odd.read_bytes())) as image:
        image.convert("CMYK").save(odd, "JPEG")
    write_beton(made)
    return made, write_cache(made)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Of many sizes, some beyond what FFCV stores, in colour and gray."""
    random = np.random.default_rng(0)
    sizes = [(60, 60), (375, 500), (1000, 600), (61, 333), (500, 334), (300, 900), (256, 256)] * 3
    images = [Image.fromarray(waves(*size, random)) for size in sizes]
    files = [saved("JPEG", one.convert("L" if i % 5 == 4 else "RGB")) for i, one in enumerate(images)]
    made = write_mixed(tmp_path_factory.mktemp("photographs") / "files", files)
    write_beton(made)
    return made


RECIPE = RandomResizedCrop(64, short_side=80, seed=3)


@pytest.fixture
def opened(open_loader):
    """Opens the loader for a request, until the test ends; skips the test where this node cannot run it."""
    return partial(open_loader, "ffcv")


def test_a_node_without_it_is_told_what_to_install(manifest, monkeypatch):
    monkeypatch.setitem(sys.modules, "ffcv", None)
    loader = load("loader", "ffcv")(request(manifest, None))
    with pytest.raises(Skip, match=r"needs the package ffcv, .* libturbojpeg0-dev .* --no-deps ffcv\.$"):
        loader.open()
    loader.close()


@pytest.mark.slow
def test_threads_that_would_abort_the_process_are_a_skip(manifest, monkeypatch, opened):
    opened(request(manifest, None, workers=2)).close()
    import numba

    monkeypatch.setattr(numba, "threading_layer", lambda: "workqueue")
    opened(request(manifest, None, workers=1)).close()  # compiled without them
    if numba.config.NUMBA_NUM_THREADS > 1:
        with pytest.raises(Skip, match="threading layer tbb or omp"):
            load("loader", "ffcv")(request(manifest, None, workers=2)).open()


def test_its_decoding_cannot_be_left_out(manifest):
    with pytest.raises(NoStage, match="one compiled function"):
        load("loader", "ffcv").without_decoding(request(manifest, None), lambda: np.empty(0))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 500])  # Numba has no more threads than cores
def test_jpeg_files_are_decoded_within_the_tolerance_and_counted(jpegs, workers, opened):
    made, cache = jpegs
    reference = open_cache(cache, made)
    loader = opened(request(made, None, workers=workers, threads=2, batch_size=7))
    with loader:
        allowed = pixel_source("ffcv", loader, None).tolerance
        for batch in loader:
            for image, i in zip(batch.images.numpy(), batch.ids.tolist(), strict=True):
                assert allowed.exceeded(image, reference[i]) is None
            assert batch.labels.tolist() == made.labels()[batch.ids].tolist()
    count = len(made.ids("train"))
    assert loader.decode_counts.asdict() == {"decoder": "ffcv", "images": count, "fell_back": {"pillow": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [23, 100])
def test_any_size_of_batch(manifest, batch_size, opened):
    with opened(request(manifest, None, batch_size=batch_size)) as loader:
        for _ in range(2):
            promised = loader.order().tolist()
            assert ids_of(loader) == promised


@pytest.mark.slow
def test_the_verdict_reads_every_byte(jpegs, opened):
    made, cache = jpegs
    opened(request(made, None)).close()
    one = judged(task_for(made, cache, "ffcv"))
    assert (one.status, one.pixels["decoder"]) == ("passed", "ffcv")
    assert one.pixels["version"].startswith("ffcv 1.")
    assert one.loading["fell_back"] == {"pillow": 3}  # the same one in three epochs
    path = request(made, None).beton
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        one = judged(task_for(made, cache, "ffcv"))
    finally:
        path.write_bytes(whole)
    assert one.status == "failed"
    assert "sha256" in one.sentence


@pytest.mark.slow
def test_no_thread_of_an_epoch_outlives_it(manifest, opened):
    with opened(request(manifest, None, batch_size=1, prefetch_factor=1)) as loader:
        before = set(threading.enumerate())
        list(loader)
        for _ in loader:
            break
        for place, _ in enumerate(loader):
            if place == len(loader) - 2:  # the last word waits for room
                break
        assert set(threading.enumerate()) == before


@pytest.mark.slow
def test_an_error_in_ffcvs_thread_reaches_the_consumer(manifest, monkeypatch, opened):
    with opened(request(manifest, None)) as loader:

        def failing(*_):
            raise ValueError("planted")

        monkeypatch.setattr(ffcv.epoch_thread(), "run_pipeline", failing)
        before = set(threading.enumerate())
        with pytest.raises(ValueError, match="planted"):
            list(loader)
        assert set(threading.enumerate()) == before


@pytest.mark.slow
def test_a_loader_that_gives_nothing_is_an_error(manifest, monkeypatch, opened):
    with opened(request(manifest, None)) as loader:
        release = threading.Event()
        monkeypatch.setattr(ffcv, "STUCK_S", 0.2)
        monkeypatch.setattr(ffcv, "END_S", 0.1)
        monkeypatch.setattr(ffcv.epoch_thread(), "run_pipeline", lambda *_: release.wait(60))
        try:
            with pytest.raises(GpufeedError, match=r"no batch from FFCV for 0\.2 s"):
                list(loader)
        finally:
            release.set()


@pytest.mark.slow
def test_torchs_threads_are_left_alone_and_no_page_of_the_file_is_held(manifest, opened):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with opened(request(manifest, None, workers=1)) as loader:
        list(loader)
        threads = torch.get_num_threads()
        torch.set_num_threads(before)
        assert threads == 2
        (file,) = loader.files()
        assert file == str(request(manifest, None).beton)
        assert not [place for place in psutil.Process().memory_maps() if place.path == file]
        assert len(list(loader)) == 5
        assert [place for place in psutil.Process().memory_maps() if place.path == file]


@pytest.mark.slow
def test_a_ranks_order_has_the_layout_that_was_compiled_for(manifest, monkeypatch, opened):
    """Else Numba compiles anew within the first epoch, which is timed."""
    layouts, plain = [], ffcv.epoch_thread

    def watched():
        thread = plain()
        return lambda loader, order: layouts.append(order.flags.c_contiguous) or thread(loader, order)

    monkeypatch.setattr(ffcv, "epoch_thread", watched)
    loader = opened(request(manifest, None, world_size=2, rank=1))
    assert not loader.order().flags.c_contiguous
    list(loader)
    assert layouts == [True, True]


@pytest.mark.slow
def test_evaluation_crops_the_middle_of_what_is_stored(photographs, opened):
    asked = request(photographs, None, recipe=RECIPE.for_evaluation(), workers=1, shuffle=False)
    with opened(asked) as loader:
        allowed = pixel_source("ffcv", loader, None).tolerance
        about = photographs.labels(), photographs.table["path"].tolist()
        reference = crop_reference(asked, loader, *about)
        for batch in loader:
            ids, images = batch.ids.numpy(), batch.images.numpy()
            for sample_id, image, expected in zip(ids, images, reference.rows(ids, 0), strict=True):
                assert allowed.exceeded(image, expected) is None
                assert as_opencv(loader, int(sample_id)).exceeded(image, by_opencv(loader, sample_id)) is None
            assert batch.labels.tolist() == photographs.labels()[ids].tolist()
        assert loader.decode_counts.images_from.startswith("a file with long sides of at most 500 pixels")
        assert loader.decode_counts.asdict()["images"] == loader.jpegs[loader.split_ids].sum() > 0
        assert not loader.decode_counts.fell_back


def as_opencv(loader, sample_id: int) -> Tolerance:
    """How far FFCV may be from OpenCV's own crops: pixels are decoded by nobody."""
    return TOLERANCE if loader.jpegs[sample_id] else Tolerance(1, 0.01)


def by_opencv(loader, sample_id: int) -> np.ndarray:
    manifest, size = loader.request.manifest, loader.request.recipe.size
    pixels = rgb(manifest.paths()[sample_id].read_bytes())
    stored, window = loader.reference_cut(loader.request.recipe, int(sample_id), 0, pixels)
    part = stored[window.top :, window.left :][: window.height, : window.width]
    return cv2.resize(part, (size, size), interpolation=cv2.INTER_AREA)


@pytest.mark.slow
def test_training_draws_windows_that_no_seed_repeats(photographs, opened):
    with opened(request(photographs, None, recipe=RECIPE, workers=1)) as loader:
        begin, crops = loader.state_dict(), []
        for _ in range(2):
            loader.load_state_dict(begin)
            promised, batches = loader.order().tolist(), list(loader)
            assert ids_of(batches) == promised
            for batch in batches:
                assert batch.images.shape == (len(batch.ids), 64, 64, 3)
                assert batch.labels.tolist() == photographs.labels()[batch.ids.numpy()].tolist()
            crops.append(torch.cat([batch.images for batch in batches]))
    assert not torch.equal(*crops)


@pytest.mark.slow
def test_images_of_one_size_are_cropped_from_their_files(jpegs, opened):
    made, _ = jpegs
    recipe = RandomResizedCrop(16, short_side=20, training=False)
    with opened(request(made, None, recipe=recipe, workers=1, shuffle=False)) as loader:
        batch = next(iter(loader))
        for sample_id, image in zip(batch.ids.tolist(), batch.images.numpy(), strict=True):
            assert TOLERANCE.exceeded(image, by_opencv(loader, sample_id)) is None
        assert loader.decode_counts.images_from is None


@pytest.mark.slow
def test_images_of_several_sizes_need_a_recipe(photographs, opened):
    with pytest.raises(GpufeedError, match="image sizes in mixed"):
        opened(request(photographs, None))
