"""CIFAR-10 from pickled batches (nothing in them is executed) and from the JPEG copy."""

import io
import os
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from data_fixtures import cifar_files, cifar_pixels, files_below, jpeg, write_tar, write_zip
from PIL import Image

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets import cifar10, cifar10_jpeg
from gpufeed.datasets.cifar10 import load_arrays
from gpufeed.datasets.manifest import Manifest


def archive(tmp_path, **changed):
    """An archive of small batches; `changed`: batch name -> bytes, or None to leave it out."""
    files = cifar_files()
    for name, data in changed.items():
        files["cifar-10-batches-py/" + name.replace("__", ".")] = data
    return write_tar(
        tmp_path / "cifar.tar.gz", {name: data for name, data in files.items() if data is not None}
    )


def batch(**changed) -> bytes:
    content = {"labels": [0, 1, 0, 1], "data": cifar_pixels(0), **changed}
    return pickle.dumps({key.encode(): value for key, value in content.items() if value is not None}, 2)


def test_images_are_lossless_and_in_class_folders(tmp_path):
    manifest = cifar10.reorganise([archive(tmp_path)], tmp_path / "out", "cifar10", {})
    assert manifest.table["split"].tolist() == ["train"] * 20 + ["test"] * 4
    assert manifest.labels().tolist() == [0, 1, 0, 1] * 6
    assert manifest.info.classes == ["airplane", "truck"]
    assert manifest.info.source == {"cifar.tar.gz": manifest.info.source["cifar.tar.gz"]}
    for index, path in enumerate(manifest.paths()):
        split, folder = path.parts[-3:-1]
        assert (split, folder) == ("train" if index < 20 else "test", ["airplane", "truck"][index % 2])
        planes = cifar_pixels(index // 4)[index % 4].reshape(3, 32, 32)
        np.testing.assert_array_equal(np.asarray(Image.open(path)), planes.transpose(1, 2, 0))
    assert len(files_below(tmp_path / "out/images")) == 24
    assert Manifest.read(tmp_path / "out/manifest.parquet").table.equals(
        manifest.table.astype(Manifest.read(tmp_path / "out/manifest.parquet").table.dtypes)
    )


class Runs:
    """A pickle that would create a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_is_executed(tmp_path, protocol):
    evil = pickle.dumps({b"data": Runs(tmp_path / "executed")}, protocol)
    with pytest.raises(GpufeedError, match=r"it names (posix|nt)\.system[\s\S]*nothing in it was executed"):
        cifar10.reorganise([archive(tmp_path, data_batch_2=evil)], tmp_path / "out", "cifar10", {})
    assert not (tmp_path / "executed").exists()
    assert files_below(tmp_path / "out") == {}


@pytest.mark.parametrize(
    "named", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nfromfile", "os\nsystem"]
)
def test_other_names_are_refused(tmp_path, named):
    with pytest.raises(GpufeedError, match="it names " + named.replace("\n", r"\.")):
        load_arrays(f"c{named}\n.".encode(), "batch", tmp_path)


EIGHT_GIB = b"\x8a\x05" + (8 * 2**30).to_bytes(5, "little")  # LONG1
CLAIMS = {
    "bytes": b"\x80\x02c__builtin__\nbytes\n" + EIGHT_GIB + b"\x85R.",
    "array": b"\x80\x02cnumpy\nndarray\n" + EIGHT_GIB + b"\x85U\x01b\x86R.",
    "new array": b"\x80\x02cnumpy\nndarray\n" + EIGHT_GIB + b"\x85U\x01b\x86\x81.",
    "reconstructed": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    + (EIGHT_GIB + b"\x85U\x01b\x87R."),
    "text": b"\x80\x04\x8d" + (8 * 2**30).to_bytes(8, "little") + b"abc.",
    "memo": b"\x80\x02Nr\xff\xff\xff\x0f.",
    "memo as text": b"Np268435455\n.",
    "text encoded a thousand times": b"\x80\x02(X\x00\x00\x02\x00" + bytes(2**17) + b"q\x000"
    b"c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02" + 1000 * b"h\x01h\x00h\x02\x86R" + b"l.",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_pickle_that_claims_more_than_it_holds(tmp_path, claim):
    tracemalloc.start()
    try:
        with pytest.raises(GpufeedError, match=r"batch in .* cannot be read safely"):
            load_arrays(CLAIMS[claim], "batch", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
def test_arrays_of_old_and_new_numpy(tmp_path, protocol, module):
    content = {b"data": cifar_pixels(3), b"labels": [1, 2], b"empty": b"", b"name": b"\xff\x00"}
    data = pickle.dumps(content, protocol)
    if protocol < 4:  # later protocols bear the length of the text
        for name in (b"multiarray\n_reconstruct", b"numeric\n_frombuffer"):
            for old in (b"numpy._core.", b"numpy.core."):
                data = data.replace(b"c" + old + name, b"c" + module.encode() + b"." + name)
    loaded = load_arrays(data, "batch", tmp_path)
    np.testing.assert_array_equal(loaded.pop(b"data"), content.pop(b"data"))
    assert loaded == content


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data_batch_3": None}, "without data_batch_3"),
        ({"batches__meta": None}, r"without batches\.meta"),
        ({"data_batch_1": b"\x80\x02}q\x00"}, "data_batch_1 in .* cannot be read safely"),
        ({"data_batch_1": pickle.dumps([1])}, "a list in data_batch_1"),
        ({"test_batch": batch(data=None)}, "data of NoneType in test_batch"),
        ({"test_batch": batch(data=cifar_pixels(0)[:, :99])}, r"data of uint8 \(4, 99\)"),
        ({"test_batch": batch(labels=[0, 1])}, "2 labels for 4 images"),
        ({"test_batch": batch(labels=[0, 1, 2, 0])}, "label 2 in test_batch"),
        ({"test_batch": batch(labels=[0, 1, -1, 0])}, "label -1 in test_batch"),
        (
            {"batches__meta": pickle.dumps({b"label_names": [b"../../up", b"b"]})},
            r"class name '\.\./\.\./up'",
        ),
        ({"batches__meta": pickle.dumps({b"label_names": [b"a", b"a"]})}, "2 class names of which 1 differ"),
        ({"batches__meta": pickle.dumps({})}, "no list `label_names`"),
    ],
)
def test_malformed_archives(tmp_path, changed, message):
    with pytest.raises(GpufeedError, match=message):
        cifar10.reorganise([archive(tmp_path, **changed)], tmp_path / "out", "cifar10", {})
    assert files_below(tmp_path / "out") == {}


def test_options_and_number_of_archives(tmp_path):
    with pytest.raises(GpufeedError, match="expected: no options\nwhat to do: remove 'size'"):
        cifar10.reorganise([archive(tmp_path)], tmp_path / "out", "cifar10", {"size": 3})
    with pytest.raises(GpufeedError, match="0 files for layout cifar10: none"):
        cifar10.reorganise([], tmp_path / "out", "cifar10", {})


def npz(tmp_path, **changed):
    files = [jpeg(0, side=32), jpeg(1, channels=1, side=32), jpeg(2, side=32)]
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offset": np.cumsum([0] + [len(data) for data in files]),
        "label": np.array([9, 0, 9], np.uint8),
        "split": np.array([0, 0, 1], np.uint8),
        **changed,
    }
    np.savez_compressed(
        tmp_path / "copy.npz", **{name: array for name, array in arrays.items() if array is not None}
    )
    return tmp_path / "copy.npz", files


def test_jpeg_copy_keeps_the_bytes(tmp_path):
    path, files = npz(tmp_path)
    manifest = cifar10_jpeg.reorganise([path], tmp_path / "out", "cifar10_jpeg", {})
    assert [image.read_bytes() for image in manifest.paths()] == files
    assert manifest.table["channels"].tolist() == [3, 1, 3]
    assert manifest.table["split"].tolist() == ["train", "train", "test"]
    assert manifest.labels().tolist() == [9, 0, 9]
    assert "images/train/truck/00000.jpg" in set(manifest.table["path"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": None}, "no array 'label' of uint8"),
        ({"split": np.zeros(3, np.int32)}, "no array 'split' of uint8"),
        ({"label": np.array([9, 0, 10], np.uint8)}, "labels up to 10"),
        ({"split": np.array([0, 1, 2], np.uint8)}, "splits up to 2"),
        ({"split": np.zeros(2, np.uint8)}, "4 offsets, 3 labels and 2 splits"),
        ({"offset": np.array([0, 5, 4, 6])}, "offsets that do not cut"),
        ({"label": np.array([Runs("x")] * 3)}, "damaged or cut off .*allow_pickle=False"),
    ],
)
def test_malformed_jpeg_copies(tmp_path, changed, message):
    path, _ = npz(tmp_path, **changed)
    with pytest.raises(GpufeedError, match=message):
        cifar10_jpeg.reorganise([path], tmp_path / "out", "cifar10_jpeg", {})
    assert files_below(tmp_path / "out") == {}


def test_jpeg_copy_with_an_array_that_is_not_there(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**62,)})
    path = write_zip(tmp_path / "copy.npz", {"jpeg.npy": header.getvalue()})
    with pytest.raises(GpufeedError, match="damaged or cut off"):
        cifar10_jpeg.reorganise([path], tmp_path / "out", "cifar10_jpeg", {})


@pytest.mark.parametrize("layout", [cifar10, cifar10_jpeg])
def test_no_file_of_the_archive_is_larger_than_the_layout_has_it(tmp_path, layout, monkeypatch):
    monkeypatch.setattr(layout, "MOST_BYTES", 1000)
    path = archive(tmp_path) if layout is cifar10 else npz(tmp_path, jpeg=np.zeros(2000, np.uint8))[0]
    with pytest.raises(GpufeedError, match=r"at most 1,000 bytes a file"):
        layout.reorganise([path], tmp_path / "out", "cifar10", {})
    assert files_below(tmp_path / "out") == {}


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x93NUMPY"])
def test_jpeg_copy_that_is_none(tmp_path, data):
    (tmp_path / "copy.npz").write_bytes(data)
    with pytest.raises(GpufeedError, match="damaged or cut off"):
        cifar10_jpeg.reorganise([tmp_path / "copy.npz"], tmp_path / "out", "cifar10_jpeg", {})


@pytest.mark.realdata
def test_archive_made_from_real_images(tmp_path, real_data):
    path = tmp_path / "cifar-10-python.tar.gz"
    subprocess.run(
        [sys.executable, real_data / "make_cifar10_archive.py", path, "--per-class", "20"], check=True
    )
    manifest = cifar10.reorganise([path], tmp_path / "out", "cifar10", {})
    assert manifest.table.groupby("split").size().to_dict() == {"train": 200, "test": 40}
    assert np.bincount(manifest.labels()[manifest.ids("train")]).tolist() == [20] * 10
    assert manifest.image_size() == (32, 32)
    assert manifest.info.classes == cifar10_jpeg.CLASSES


@pytest.mark.realdata
def test_statistics_fit_the_real_images(real_data):
    """The constants, on every 50th training image of the copy; JPEG moves them by less than 0.01."""
    arrays = np.load(real_data / "cifar10-jpeg.npz", allow_pickle=False)
    jpegs, offset = arrays["jpeg"], arrays["offset"]
    images = [
        np.asarray(Image.open(io.BytesIO(jpegs[offset[i] : offset[i + 1]].tobytes())))
        for i in np.flatnonzero(arrays["split"] == 0)[::50]
    ]
    pixels = np.stack(images).reshape(-1, 3) / 255
    np.testing.assert_allclose(pixels.mean(axis=0), cifar10.MEAN, atol=0.01)
    np.testing.assert_allclose(pixels.std(axis=0), cifar10.STD, atol=0.01)
