"""What only a GPU shows of the cache: chunks of device memory, whatever the size of the set."""

import numpy as np
import pandas as pd
import pytest
import torch
from hostile_fixtures import available, photo, saved
from image_fixtures import MEAN, STD

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import DECODERS, load
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.stores import cache_fill
from gpufeed.stores.cache_format import CacheInfo, open_cache
from gpufeed.stores.decoded_cache import build, build_from_rows, build_or_fall_back

GPU = [name for name in DECODERS if load("decoder", name).parallel == "device"]
COUNT, SIDE = 700, 64
IMAGE_BYTES = SIDE * SIDE * 3
FEW = 10  # images a call


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """700 JPEGs in 100 shades; number 5 is a PNG and number 9 grayscale."""
    root = tmp_path_factory.mktemp("shades")
    for i in range(COUNT):
        data = saved("JPEG", photo(SIDE, SIDE) // 2 + np.uint8(i % 100), quality=90)
        if i == 5:
            data = saved("PNG", photo(SIDE, SIDE))
        if i == 9:
            data = saved("JPEG", photo(SIDE, SIDE)[..., 0])
        (root / f"{i}.jpg").write_bytes(data)
    rows = [(f"{i}.jpg", 0, "train", SIDE, SIDE, 3) for i in range(COUNT)]
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    return Manifest(root, DatasetInfo("shades", "synthetic", ["one"], "test", MEAN, STD), table)


@pytest.fixture(scope="module")
def expected(manifest):
    return np.stack(PillowDecoder().decode([path.read_bytes() for path in manifest.paths()]).images)


def wrong(decoder, found: np.ndarray, expected: np.ndarray) -> list[str]:
    pairs = zip(np.array(found), expected, strict=True)
    return [sentence for pair in pairs if (sentence := decoder.tolerance.exceeded(*pair))]


@pytest.mark.parametrize("name", GPU)
def test_a_set_larger_than_what_a_call_may_hold(name, manifest, expected, tmp_path, monkeypatch):
    decoder = available(name)
    monkeypatch.setattr(cache_fill, "BATCH_BYTES", FEW * IMAGE_BYTES)
    path = tmp_path / f"{name}.npy"
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    info = build(manifest, name, path, workers=2)
    peak = torch.cuda.max_memory_allocated() - before
    assert info.decoder == name
    # a call's images as the library gives them, their copies and the stack of these; never the whole set
    assert peak < 8 * FEW * IMAGE_BYTES < COUNT * IMAGE_BYTES / 4
    assert wrong(decoder, open_cache(path, manifest, verify=True), expected) == []


@pytest.mark.parametrize("name", GPU)
def test_calls_of_any_size_give_the_same_cache(name, manifest, expected, tmp_path, monkeypatch):
    decoder = available(name)
    build(manifest, name, tmp_path / "large.npy", workers=4)
    monkeypatch.setattr(cache_fill, "BATCH", 33)
    build(manifest, name, tmp_path / "small.npy", workers=1)
    large, small = (np.array(open_cache(tmp_path / f"{size}.npy", manifest)) for size in ("large", "small"))
    # hardware and kernels may share a call's images differently, so the decoder's own tolerance holds
    assert wrong(decoder, large, expected) == []
    assert wrong(decoder, small, expected) == []


@pytest.mark.parametrize("name", GPU)
def test_a_broken_file_is_named_and_nothing_is_left(name, manifest, tmp_path):
    available(name)
    broken = manifest.table.copy()
    (tmp_path / "broken.jpg").write_bytes((manifest.root / "3.jpg").read_bytes()[:300])
    broken.loc[444, "path"] = str(tmp_path / "broken.jpg")  # absolute: root / path is then this file
    with pytest.raises(GpufeedError, match=r"1 of 700 images cannot be decoded\n.*broken\.jpg"):
        build(Manifest(manifest.root, manifest.info, broken), name, tmp_path / f"{name}.npy", workers=2)
    assert not list(tmp_path.glob(f"{name}*"))


def test_built_by_the_decoder_that_was_asked_for(manifest, tmp_path):
    available("dali_gpu")
    build_or_fall_back(manifest, "dali_gpu", tmp_path / "dali_gpu.npy", workers=2)
    info = CacheInfo.read(tmp_path / "dali_gpu.npy")
    assert (info.decoder, info.asked_for, info.because) == ("dali_gpu", None, None)


def test_from_device_tensors_of_several_sizes_in_any_order(manifest, expected, tmp_path):
    starts = list(range(0, COUNT, 96))

    def batches():
        for start in reversed(starts):
            ids = np.arange(start, min(start + 96, COUNT))[::-1]
            yield ids, torch.from_numpy(np.ascontiguousarray(expected[ids])).cuda()

    build_from_rows(manifest, batches(), tmp_path / "strips.npy", "strips 1.0", Tolerance(0, 0.0))
    assert np.array_equal(open_cache(tmp_path / "strips.npy", manifest, verify=True), expected)


@pytest.mark.parametrize("name", GPU)
def test_files_of_several_sizes_are_resized_on_the_device(name, tmp_path):
    decoder = available(name)
    rows = []
    for i, (height, width) in enumerate([(64, 64), (128, 96), (75, 53), (64, 64), (300, 200)]):
        (tmp_path / f"{i}.jpg").write_bytes(saved("JPEG", photo(height, width), quality=92))
        rows.append((f"{i}.jpg", 0, "train", height, width, 3))
    table = pd.DataFrame(rows, columns=["path", "label", "split", "height", "width", "channels"])
    info = DatasetInfo("mixed", "synthetic", ["one"], "test", MEAN, STD, resize=(48, 40))
    manifest = Manifest(tmp_path, info, table)
    build(manifest, name, tmp_path / f"{name}.npy", workers=2)
    build(manifest, "pillow", tmp_path / "pillow.npy")
    pairs = zip(
        *(np.array(open_cache(tmp_path / f"{by}.npy", manifest)) for by in (name, "pillow")), strict=True
    )
    # resizing rounds once more, and smooths what differs
    tolerance = Tolerance(decoder.tolerance.max + 2, decoder.tolerance.mean + 0.5)
    assert [sentence for pair in pairs if (sentence := tolerance.exceeded(*pair))] == []
