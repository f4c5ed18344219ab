"""What an error advises costs nobody a file: each is provoked with files that gpufeed did not make."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from data_fixtures import files_below, jpeg, write_tar, write_zip
from image_fixtures import write_beton, write_cache, write_dataset, write_shards, write_strips
from record_fixtures import cell, record, write

from gpufeed.benchmarks.saved_models import model_file
from gpufeed.core import compose
from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import settle_folders
from gpufeed.core.record import Record
from gpufeed.datasets.archive import members
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.packed import ARCHIVE, SIDECAR, files_at
from gpufeed.datasets.prepare import prepare
from gpufeed.loaders.gpu_only_dataset import GPUOnlyDataset
from gpufeed.report.sections import confusion
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.ffcv_store import open_beton
from gpufeed.stores.shards_store import open_shards
from gpufeed.stores.strips_store import open_strips
from gpufeed.system.gpu_locks.file_locks import VARIABLE, lock
from gpufeed.training import checkpoints

DESTROYS = re.compile(
    r"\b(delet|remov|eras|overwrit|wip(e|ing)\b|unlink|rm\b|empty|clear|throw|discard)", re.IGNORECASE
)
FILES = {f"{split}/{name}/{n}.jpg": jpeg(n) for split in ("train", "val") for name in "ab" for n in range(2)}


def pictures(folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-300])
    return path


def a_dangling_link(own: Path) -> None:
    pictures(own / "pics")
    os.symlink(own / "gone.jpg", own / "pics/train/a/link.jpg")


def packed(own: Path) -> Path:
    prepare("image_folder", [pictures(own / "pics")], own / "data", "own", {}, form="packed")
    return own / "data"


def spoilt(file: Path, data: bytes = b"mine") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def evaluation(own: Path) -> Path:
    return spoilt(own / "evaluation.json", json.dumps({"classes": ["a"], "confusion": []}).encode())


def store(own: Path, write_store) -> tuple[Manifest, Path]:
    manifest = write_dataset(own / "tiny")
    return manifest, write_store(manifest)


# what a reader may have there -> what is then done with it
CASES = {
    "a folder without images in place of a manifest": (
        lambda own: spoilt(own / "pics/a/notes.txt").parents[1],
        lambda pics, own: GPUOnlyDataset(pics, device="cpu"),
    ),
    "a folder of images of which some are broken": (
        lambda own: cut(pictures(own / "pics") / "train/a/0.jpg").parents[2],
        lambda pics, own: GPUOnlyDataset(pics, device="cpu", workers=1),
    ),
    "another Parquet file in place of a manifest": (
        lambda own: spoilt(pictures(own / "pics") / "manifest.parquet"),
        lambda file, own: GPUOnlyDataset(file, device="cpu"),
    ),
    "a damaged zip": (
        lambda own: cut(write_zip(own / "own.zip", FILES)),
        lambda file, own: list(members(file, 2**20)),
    ),
    "a damaged tar": (
        lambda own: spoilt(own / "own.tar.gz", b"\x1f\x8b and no more"),
        lambda file, own: list(members(file, 2**20)),
    ),
    "an archive cut short": (
        lambda own: cut(write_tar(own / "own.tar", FILES)),
        lambda file, own: prepare("image_folder", [file], own.parent / "data", "own", {}),
    ),
    "an image that cannot be read": (
        a_dangling_link,
        lambda _, own: prepare("image_folder", [own / "pics"], own.parent / "data", "own", {}),
    ),
    "a record of another machine": (
        lambda own: cut(write(own, record(cell()))[0]),
        lambda file, own: Record.read(file),
    ),
    "a record of another version": (
        lambda own: spoilt(own / "0.json", b'{"schema_version": 99}'),
        lambda file, own: Record.read(file),
    ),
    "an evaluation": (evaluation, lambda file, own: confusion.read(file)),
    "a cell by hand": (lambda own: spoilt(own / "cell.yaml"), lambda file, own: compose.read_cell(file)),
    "a model": (lambda own: spoilt(own / "model.pt"), lambda file, own: model_file.load(file)),
    "another file of torch": (
        lambda own: torch.save({"epoch": 3}, own / "model.pt"),
        lambda _, own: model_file.load(own / "model.pt"),
    ),
    "a checkpoint": (lambda own: spoilt(own / "checkpoint.pt"), lambda file, own: checkpoints.load(file)),
    "results that are a file": (
        lambda own: spoilt(own / "results"),
        lambda file, own: settle_folders({"data": str(own), "results": str(file / "x"), "sources": {}}),
    ),
    "a folder with the name of a lock": (
        lambda own: (own / "leases/gpu.lock").mkdir(parents=True),
        lambda _, own: lock("gpu.lock", {}),
    ),
    "a packed dataset without its manifest": (
        lambda own: spoilt(packed(own) / "manifest.parquet"),
        lambda file, own: files_at(file.parent),
    ),
    "a packed dataset with another archive": (
        lambda own: spoilt(packed(own) / ARCHIVE),
        lambda file, own: files_at(file.parent),
    ),
    "a packed dataset that says nothing": (
        lambda own: spoilt(packed(own) / SIDECAR),
        lambda file, own: files_at(file.parent),
    ),
    **{
        f"a damaged store: {open_.__name__}": (
            lambda own, write_store=write_store: store(own, write_store),
            lambda made, own, open_=open_: (spoilt(made[1].with_suffix(".json")), open_(made[1], made[0])),
        )
        for open_, write_store in (
            (open_cache, write_cache),
            (open_strips, write_strips),
            (open_beton, write_beton),
            (open_shards, write_shards),
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_no_error_advises_to_destroy_what_its_reader_may_own(case, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv(VARIABLE, str(own / "leases"))
    monkeypatch.setenv("GPUFEED_UNPACK", str(tmp_path / "node"))
    has, does = CASES[case]
    given = has(own)
    names = files_below(own).keys()
    with pytest.raises(GpufeedError) as raised:
        does(given, own)
    assert not DESTROYS.search(raised.value.remedy)
    assert files_below(own).keys() >= names


def test_a_folder_without_images_is_told_what_to_name(tmp_path):
    with pytest.raises(GpufeedError) as raised:
        GPUOnlyDataset(spoilt(tmp_path / "path/pics/notes.txt").parent, device="cpu")
    assert "manifest.parquet of a prepared dataset" in raised.value.remedy
    assert str(tmp_path) not in raised.value.remedy
    assert files_below(tmp_path / "path/pics") == {"notes.txt": b"mine"}


@pytest.mark.parametrize("source", ["data/pics", "data/pics/images", "data", "link"])
def test_images_where_their_own_dataset_would_be_laid_out_stay(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "data/pics/images")
    os.symlink("data/pics/images", "link")
    config = {
        "data": "data",
        "results": "results",
        "sources": {"pics": {"layout": "image_folder", "folder": source}},
    }
    for refused in (
        lambda: settle_folders(config),
        lambda: prepare("image_folder", [Path(source)], Path("data/pics"), "pics", {}),
    ):
        with pytest.raises(GpufeedError, match="another name") as raised:
            refused()
        assert not DESTROYS.search(raised.value.remedy)
    assert files_below(tmp_path / "data/pics/images") == FILES
