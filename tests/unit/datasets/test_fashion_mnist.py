"""Fashion-MNIST: the idx format and what does not fit it."""

import gzip
import tracemalloc

import numpy as np
import pytest
from data_fixtures import files_below, idx_bytes, write_fashion
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.fashion_mnist import CLASSES, reorganise
from gpufeed.datasets.idx import read_idx, write_idx


def test_grayscale_files_in_class_folders(tmp_path):
    manifest = reorganise(write_fashion(tmp_path), tmp_path / "out", "fashion_mnist", {})
    assert manifest.table["split"].tolist() == ["train"] * 20 + ["test"] * 10
    assert manifest.labels().tolist() == [index % 10 for index in range(30)]
    assert set(manifest.table["channels"]) == {1}
    assert manifest.image_size() == (6, 5)
    assert manifest.info.classes == CLASSES
    assert manifest.table["path"][0] == "images/train/T-shirt-top/00000.png"
    pixels = read_idx(tmp_path / "train-images-idx3-ubyte.gz", 3)
    for path, image in zip(manifest.paths()[:20], pixels, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(path)), image)
    assert len(manifest.info.source) == 4


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4))
@settings(max_examples=40)
def test_idx_round_trip(tmp_path_factory, data, shape):
    size = int(np.prod(shape))
    array = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8).reshape(shape)
    path = tmp_path_factory.getbasetemp() / "array.gz"
    write_idx(array, path)
    assert gzip.decompress(path.read_bytes()) == idx_bytes(array)
    np.testing.assert_array_equal(read_idx(path, len(shape)), array)


@given(st.binary(max_size=40))
@settings(max_examples=40)
def test_any_bytes_give_an_array_or_an_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "bytes.gz"
    path.write_bytes(gzip.compress(data))
    try:
        array = read_idx(path, 1)
    except GpufeedError:
        return
    assert idx_bytes(array) == data


GOOD = idx_bytes(np.zeros(10, np.uint8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"\0\0\x0b\x01" + GOOD[4:]), r"first bytes 00 00 0b 01 .*[\s\S]*00 00 08 01 \(uint8"),
        (gzip.compress(b"\0\0\x08\x03" + GOOD[4:]), "first bytes 00 00 08 03"),
        (gzip.compress(b""), "first bytes  in"),
        (gzip.compress(GOOD[:6]), "a header of 6 bytes"),
        (gzip.compress(GOOD[:-1]), r"9 bytes of data .*[\s\S]*10 for the shape \(10,\)"),
        (gzip.compress(GOOD + b"x"), "11 bytes of data"),
        (gzip.compress(GOOD)[:-9], "damaged or cut off"),
        (gzip.compress(GOOD + bytes(2**25)), "11 bytes of data"),
        (gzip.compress(b"\0\0\x08\x01" + b"\xff" * 4 + bytes(2**20)), r"the shape \(4294967295,\)"),
        (b"not gzip", "damaged or cut off"),
        (gzip.compress(idx_bytes(np.zeros(9, np.uint8))), "9 labels for 10 images"),
        (gzip.compress(idx_bytes(np.full(10, 10, np.uint8))), "label 10 in"),
    ],
    # bytes as names would differ between two processes that collect: gzip writes the time into its header
    ids=lambda value: "file" if isinstance(value, bytes) else None,
)
def test_malformed_files(tmp_path, data, message):
    paths = write_fashion(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(GpufeedError, match=message):
            reorganise(paths, tmp_path / "out", "fashion_mnist", {})
        assert tracemalloc.get_traced_memory()[1] < 2**24  # however much a small file unpacks to
    finally:
        tracemalloc.stop()
    assert files_below(tmp_path / "out") == {}


def test_missing_file(tmp_path):
    with pytest.raises(GpufeedError, match="list these four files"):
        reorganise(write_fashion(tmp_path)[:3], tmp_path / "out", "fashion_mnist", {})
