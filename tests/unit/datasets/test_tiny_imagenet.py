"""Tiny ImageNet: labels from wnids.txt and val_annotations.txt, and an error for what does not fit."""

import zipfile

import pytest
from data_fixtures import files_below, tiny_files, write_zip
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.archive import is_plain_name
from gpufeed.datasets.tiny_imagenet import ELSEWHERE, NO_LABEL, parse_annotations, parse_wnids, reorganise

TOP = "tiny-imagenet-200/"


def run(tmp_path, files):
    return reorganise([write_zip(tmp_path / "tiny.zip", files)], tmp_path / "out", "tiny", {})


@pytest.mark.parametrize("top", ["tiny-imagenet-200/", "other/", ""])
def test_class_folders_for_both_splits(tmp_path, top):
    files = tiny_files(top)
    manifest = run(tmp_path, files)
    # wnids.txt says n02, n01: label 0 is n02
    expected = [
        ("images/train/n02/n02_0.JPEG", 0, "train", 8, 8, 3),
        ("images/train/n02/n02_1.JPEG", 0, "train", 8, 8, 1),
        ("images/train/n01/n01_0.JPEG", 1, "train", 8, 8, 3),
        ("images/train/n01/n01_1.JPEG", 1, "train", 8, 8, 1),
        ("images/val/n02/val_1.JPEG", 0, "val", 8, 8, 3),
        ("images/val/n01/val_0.JPEG", 1, "val", 8, 8, 3),
    ]
    assert list(manifest.table.itertuples(index=False, name=None)) == expected
    assert manifest.info.classes == ["n02", "n01"]
    assert manifest.info.left_out == {NO_LABEL: 2}
    assert set(files_below(tmp_path / "out")) == {row[0] for row in expected} | {"manifest.parquet"}
    assert manifest.paths()[4].read_bytes() == files[top + "val/images/val_1.JPEG"]


def test_files_elsewhere_are_counted(tmp_path):
    files = {**tiny_files(), "__MACOSX/x": b"", TOP + "train/n01/extra.JPEG": b"", TOP + "notes.txt": b""}
    assert run(tmp_path, files).info.left_out == {NO_LABEL: 2, ELSEWHERE: 3}


def change(name, old, new):
    files = tiny_files()
    assert old in files[TOP + name]
    files[TOP + name] = files[TOP + name].replace(old, new)
    return files


def without(name):
    files = tiny_files()
    del files[TOP + name]
    return files


def added(name, data=b"x"):
    return {**tiny_files(), TOP + name: data}


ROW = b"val_1.JPEG\tn02\t0\t0\t7\t7\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (change("val/val_annotations.txt", ROW, b""), r"no row for val/images/val_1\.JPEG"),
        (without("val/images/val_1.JPEG"), r"1 rows of .* that name no file, the first 'val_1\.JPEG'"),
        (change("val/val_annotations.txt", ROW, ROW * 2), r"line 3 of .*'val_1\.JPEG' for the second time"),
        (change("val/val_annotations.txt", b"\tn02", b"\tn03"), "line 2 of .*unknown class 'n03'"),
        (change("val/val_annotations.txt", b"\t7\n", b"\n"), "line 1 of .*5 tab-separated columns"),
        (change("wnids.txt", b"n01", b"n02"), "2 class names of which 1 differ"),
        (change("wnids.txt", b"n01", b".."), r"class name '\.\.' in wnids\.txt"),
        (
            change("wnids.txt", b"n01\n", b"n01\nn04\n"),
            "no training images for 1 of 3 classes, the first n04",
        ),
        (added("train/n09/images/n09_0.JPEG"), "training images of 'n09'"),
        (added("train/n01/../../../evil"), "could lead out of its folder"),
        (without("wnids.txt"), r"0 files wnids\.txt"),
        (without("val/val_annotations.txt"), r"no val/val_annotations\.txt"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, files, message):
    with pytest.raises(GpufeedError, match=message):
        run(tmp_path, files)
    assert files_below(tmp_path / "out") == {}


def test_a_byte_order_mark_is_no_part_of_the_first_entry(tmp_path):
    files = tiny_files()
    texts = ("wnids.txt", "words.txt", "val/val_annotations.txt")
    manifest = run(tmp_path, files | {TOP + name: b"\xef\xbb\xbf" + files[TOP + name] for name in texts})
    assert manifest.info.classes == ["n02", "n01"]
    assert len(manifest) == 6


def test_a_file_larger_than_the_layout_has_it(tmp_path):
    files = added("train/n01/images/bomb.JPEG", bytes(2**24 + 1))
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert (tmp_path / "tiny.zip").stat().st_size < 2**15
    with pytest.raises(GpufeedError, match=r"bomb\.JPEG', 16,777,217 bytes"):
        reorganise([tmp_path / "tiny.zip"], tmp_path / "out", "tiny", {})
    assert files_below(tmp_path / "out") == {}


names = st.text(st.characters(blacklist_characters="\t\r\n", codec="utf-8"), min_size=1, max_size=8)
wnid_lists = st.lists(st.from_regex(r"n[0-9]{8}", fullmatch=True), min_size=1, max_size=5, unique=True)


@given(st.data(), wnid_lists, st.sampled_from(["\n", "\r\n"]))
def test_annotations_round_trip(data, wnids, end):
    rows = data.draw(st.dictionaries(names, st.sampled_from(wnids), max_size=6))
    text = "".join(f"{file}\t{wnid}\t0\t0\t1\t1{end}" for file, wnid in rows.items())
    assert parse_annotations(text, wnids) == rows


@given(st.text(st.sampled_from("ab\t\n\r n1"), max_size=60))
def test_any_annotations_give_known_classes_or_an_error(text):
    rows = len([line for line in text.split("\n") if line.removesuffix("\r")])
    try:
        annotations = parse_annotations(text, ["a", "n1"])
    except GpufeedError:
        return
    assert set(annotations.values()) <= {"a", "n1"}
    assert len(annotations) == rows  # none lost, none invented


@given(st.text(max_size=30))
def test_any_wnids_are_safe_folder_names_or_an_error(text):
    try:
        wnids = parse_wnids(text)
    except GpufeedError:
        return
    assert wnids == text.split()
    assert all(is_plain_name(wnid) for wnid in wnids)


@pytest.mark.slow
@pytest.mark.realdata
def test_forty_real_classes(tmp_path, real_data):
    archive = real_data / "tiny-imagenet-40.zip"
    manifest = reorganise([archive], tmp_path, "tiny_imagenet_40", {})
    counts = manifest.table.groupby(["split", "channels"]).size().to_dict()
    # grayscale files counted in the archive by their JPEG headers
    assert counts == {("train", 1): 394, ("train", 3): 19_606, ("val", 1): 37, ("val", 3): 1_963}
    assert manifest.table.groupby(["split", "label"]).size().unique().tolist() in ([500, 50], [50, 500])
    assert manifest.info.classes[:3] == ["n03970156", "n02106662", "n03201208"]
    assert manifest.info.left_out == {NO_LABEL: 200}
    assert manifest.image_size() == (64, 64)
    for split in ("train", "val"):  # what plain ImageFolder looks at
        folders = [path for path in (tmp_path / "images" / split).iterdir() if path.is_dir()]
        assert sorted(folder.name for folder in folders) == sorted(manifest.info.classes)
