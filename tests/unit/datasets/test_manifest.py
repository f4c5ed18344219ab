"""The manifest: what is written is what is read, and nothing else is taken for one."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import COLUMNS, DatasetInfo, Manifest

ROWS = [
    ("images/train/a/0.png", 1, "train", 8, 9, 3),
    ("images/test/b/1.png", 0, "test", 8, 9, 1),
    ("images/train/b/2.png", 0, "train", 8, 9, 3),
]


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    info = DatasetInfo(
        "tiny",
        "synthetic",
        ["b", "a"],
        "test",
        (0.1, 0.2, 0.3),
        (0.4, 0.5, 0.6),
        {"no label": 2},
        {"seed": 0},
    )
    return Manifest(tmp_path, info, pd.DataFrame(ROWS, columns=list(COLUMNS)))


def test_round_trip(manifest):
    again = Manifest.read(manifest.write())
    assert again.info == manifest.info
    assert again.root == manifest.root
    assert list(again.table.itertuples(index=False, name=None)) == ROWS
    assert not list(manifest.root.glob("*.partial"))


def test_ids_labels_paths_and_size(manifest):
    again = Manifest.read(manifest.write())
    ids = again.ids("train")
    assert ids.tolist() == [0, 2]
    assert ids.dtype == again.labels().dtype == np.int64
    assert again.labels().tolist() == [1, 0, 0]
    assert again.paths()[1] == manifest.root / "images/test/b/1.png"
    assert again.image_size() == (8, 9)
    assert len(again) == 3


def test_files_of_several_sizes_are_brought_to_one(manifest):
    manifest.table.loc[0, "height"] = 7
    manifest.info = replace(manifest.info, resize=(5, 6))
    again = Manifest.read(manifest.write())
    assert again.info == manifest.info
    assert again.image_size() == (5, 6)
    assert again.table["height"].tolist() == [7, 8, 8]


def test_unknown_split(manifest):
    with pytest.raises(GpufeedError, match=r"no samples in split 'val' of tiny[\s\S]*one of: test, train"):
        manifest.ids("val")


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other parquet", "fewer notes", "other notes"])
def test_what_is_no_manifest(manifest, tmp_path, damage):
    path = manifest.write()
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "other parquet":
        manifest.table.to_parquet(path)
    else:
        notes = b'{"dataset": "tiny"}' if damage == "fewer notes" else b"[]"
        pq.write_table(pq.read_table(path).replace_schema_metadata({b"gpufeed": notes}), path)
    with pytest.raises(GpufeedError, match="no readable manifest at"):
        Manifest.read(path)
