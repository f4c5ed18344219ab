"""The two stand-ins, made from public archives: same bytes where that can be shown."""

import hashlib
import io
import pickle
import random
import zipfile

import numpy as np
import pytest
import yaml
from data_fixtures import cifar_files, tiny_files, write_tar, write_zip
from PIL import Image

from gpufeed.core.compose import shipped
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of
from gpufeed.datasets import cifar10_jpeg, stand_ins

TOP = stand_ins.TOP


def of_config(name):
    """What the config says of the file of a source."""
    (row,) = shipped()["sources"][name]["files"]
    return row


@pytest.mark.slow
@pytest.mark.realdata
def test_the_40_classes_come_out_of_the_whole_archive_byte_by_byte(tmp_path, real_data):
    with zipfile.ZipFile(real_data / "tiny-imagenet-40.zip") as copy:
        files = {name: copy.read(name) for name in copy.namelist()}
    annotations = files[TOP + "val/val_annotations.txt"].decode().splitlines(keepends=True)
    files[TOP + "wnids.txt"] = b"n00000001\n" + files[TOP + "wnids.txt"] + b"n00000002\n"
    for number, wnid in enumerate(("n00000001", "n00000002")):  # in place of the other 160 classes
        files[f"{TOP}train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
        files[f"{TOP}train/{wnid}/images/{wnid}_0.JPEG"] = b"image"
        files[f"{TOP}val/images/val_{number}.JPEG"] = b"image"
        annotations.insert(100 * number, f"val_{number}.JPEG\t{wnid}\t0\t0\t9\t9\n")
        files[f"{TOP}test/images/test_{9998 + number}.JPEG"] = b"image"
    files[TOP + "val/val_annotations.txt"] = "".join(annotations).encode()
    shuffled = random.Random(0).sample(sorted(files), len(files))
    public = write_zip(tmp_path / "public.zip", {TOP: b"", **{name: files[name] for name in shuffled}})
    out = tmp_path / "made/tiny-imagenet-40.zip"
    stand_ins.write_tiny_imagenet_40(public, out)
    wanted = of_config("tiny_imagenet_40")
    assert (sha256_of(out), out.stat().st_size) == (wanted["sha256"], wanted["size"])
    said = stand_ins.verdict("tiny_imagenet_40", out)
    assert "the file that the published results were measured on" in said


def test_an_archive_without_the_classes_leaves_nothing(tmp_path):
    public = write_zip(tmp_path / "public.zip", tiny_files(TOP))
    with pytest.raises(GpufeedError, match=r"no tiny-imagenet-200/train/n03970156/n03970156_boxes.txt in"):
        stand_ins.write_tiny_imagenet_40(public, tmp_path / "made.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["public.zip"]


def test_a_line_that_names_no_class_is_an_error(tmp_path):
    files = {**tiny_files(TOP), TOP + "val/val_annotations.txt": b"val_0.JPEG\tn03970156\n\xff\xfe\n"}
    public = write_zip(tmp_path / "public.zip", files)
    with pytest.raises(GpufeedError, match="a file name, a tab and a class"):
        stand_ins.write_tiny_imagenet_40(public, tmp_path / "made.zip")


@pytest.fixture
def cifar(tmp_path):
    """An archive of 24 noisy images, whose labels go down from 9 in each batch."""
    files = cifar_files()
    names = [name.encode() for name in cifar10_jpeg.CLASSES]
    files["cifar-10-batches-py/batches.meta"] = pickle.dumps({b"label_names": names}, 2)
    for name in files.keys() - {"cifar-10-batches-py/batches.meta"}:
        batch = pickle.loads(files[name])
        files[name] = pickle.dumps({**batch, b"labels": [9, 6, 3, 0]}, 2)
    return write_tar(tmp_path / "cifar-10-python.tar.gz", files)


def headers(path):
    """What each array and each JPEG begins with, up to its coded pixels."""
    with zipfile.ZipFile(path) as file:
        layout = [(each.filename, each.compress_type, each.date_time) for each in file.infolist()]
    arrays = dict(np.load(path))
    layout += [(name, array.dtype, array.ndim) for name, array in arrays.items()]
    starts = arrays["offset"][:-1].tolist()
    return layout, {bytes(arrays["jpeg"][at : at + 1000]).partition(b"\xff\xda")[0] for at in starts}


def test_cifar10_as_jpegs_is_a_dataset_of_the_same_images(tmp_path, cifar):
    out = tmp_path / "cifar10-jpeg.npz"
    stand_ins.write_cifar10_jpeg(cifar, out)
    manifest = cifar10_jpeg.reorganise([out], tmp_path / "made", "cifar10_jpeg", {})
    assert manifest.table["split"].tolist() == ["train"] * 20 + ["test"] * 4
    labels = [label for label in (0, 3, 6, 9) for _ in range(5)]
    assert manifest.labels().tolist() == [*labels, 0, 3, 6, 9]
    planes = [pickle.loads(cifar_files()[f"cifar-10-batches-py/data_batch_{n}"])[b"data"] for n in (1, 2)]
    for path, stored in zip(manifest.paths()[:2], planes, strict=True):  # the last image of each batch
        data = io.BytesIO()
        original = Image.fromarray(stored[3].reshape(3, 32, 32).transpose(1, 2, 0).copy())
        original.save(data, "JPEG", quality=75)
        assert path.read_bytes() == data.getvalue()
    again = tmp_path / "again.npz"
    stand_ins.write_cifar10_jpeg(cifar, again)
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.realdata
def test_the_jpegs_have_the_tables_and_the_sampling_of_the_copy(tmp_path, cifar, real_data):
    out = tmp_path / "cifar10-jpeg.npz"
    stand_ins.write_cifar10_jpeg(cifar, out)
    ours, theirs = headers(out), headers(real_data / "cifar10-jpeg.npz")
    assert ours == theirs
    assert len(ours[1]) == 1


def test_the_command_makes_what_is_missing_and_says_what_to_configure(tmp_path, cifar, capsys, monkeypatch):
    digest = hashlib.sha256(cifar.read_bytes()).hexdigest()
    rows = {name: {"files": [dict(of_config(name))]} for name in ("cifar10", "cifar10_jpeg")}
    rows["cifar10"]["files"][0] |= {"sha256": digest, "size": cifar.stat().st_size, "urls": [str(cifar)]}
    monkeypatch.setattr(stand_ins, "shipped", lambda: {"sources": rows})
    monkeypatch.chdir(tmp_path)
    assert stand_ins.main(["cifar10_jpeg"]) == 0
    made = tmp_path / "archives/cifar10-jpeg.npz"
    said = capsys.readouterr().out
    lines = yaml.safe_load(said.partition("--configfile FILE:\n")[2])
    row = {"name": made.name, "sha256": sha256_of(made), "size": made.stat().st_size}
    assert lines == {"sources": {"cifar10_jpeg": {"files": [row]}}}
    assert (tmp_path / "data/cifar10/archives/cifar-10-python.tar.gz").exists()

    made.write_bytes(b"the user's own")
    assert stand_ins.main(["cifar10_jpeg"]) == 0
    assert made.read_bytes() == b"the user's own"
    assert hashlib.sha256(b"the user's own").hexdigest() in capsys.readouterr().out

    made.unlink()
    rows["cifar10"]["files"][0]["sha256"] = "0" * 64
    (tmp_path / "data/cifar10/archives/cifar-10-python.tar.gz").unlink()
    assert stand_ins.main(["cifar10_jpeg"]) == 2
    assert "what to do" in capsys.readouterr().err
    assert not made.exists()


def test_a_name_of_another_source_is_told_with_the_two(capsys):
    with pytest.raises(SystemExit) as ended:
        stand_ins.main(["cifar10"])
    assert ended.value.code == 2
    assert "found: cifar10; expected: tiny_imagenet_40 or cifar10_jpeg" in capsys.readouterr().err
