"""Shard sets: the same bytes each time, going on after a kill, and nothing taken for a set that is none."""

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import REPOSITORY, disk_full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_fixtures import write_dataset, write_files, write_shards

from gpufeed.core.errors import GpufeedError
from gpufeed.stores import base
from gpufeed.stores import shards_build as building
from gpufeed.stores.shards_build import build, journal_path
from gpufeed.stores.shards_store import ShardsInfo, open_shards, sample_name, verify


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_shards_hold_the_files_as_they_are_each_once(manifest):
    path = write_shards(manifest)
    files, paths = contents(path.parent), manifest.paths()
    verify(path, manifest)
    opened = open_shards(path, manifest)
    assert {shard.split for shard in opened.info.shards} == {"train", "test"}
    for split in ("train", "test"):
        shards = opened.of_split(split)
        assert len(shards) == 6
        assert sorted(i for shard in shards for i in shard.ids) == manifest.ids(split).tolist()
        assert len({len(shard.ids) for shard in shards}) <= 2
    for shard in opened.info.shards:
        expected = {sample_name(i, str(paths[i])): paths[i].read_bytes() for i in shard.ids}
        assert members(files[shard.name]) == expected
        assert list(members(files[shard.name])) == list(expected)
    dealt = [i for shard in opened.of_split("train") for i in shard.ids]
    assert dealt != sorted(dealt)  # no shard is of one class


def test_the_same_bytes_by_any_number_of_processes_and_others_for_another_seed(manifest, tmp_path):
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, changes in zip(folders, ({}, {"workers": 2}, {"seed": 1}), strict=True):
        build(manifest, folder / "shards.json", shards_per_split=4, **changes)
    a, b, c = map(contents, folders)
    assert a == b
    assert a.keys() == c.keys()
    assert a != c


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 5000))
def test_any_number_of_shards_holds_each_sample_once(tmp_path_factory, samples, least, most_bytes):
    root = tmp_path_factory.mktemp("any")
    files = [bytes(np.random.default_rng(i).integers(0, 256, 50 + i, dtype=np.uint8)) for i in range(samples)]
    manifest = write_files(root / "files", files, "JPEG", (8, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "MOST_BYTES", most_bytes)
        info = build(manifest, root / "shards.json", shards_per_split=least)
    verify(root / "shards.json", manifest)
    assert len(info.shards) == min(samples, max(least, -(-sum(map(len, files)) // most_bytes)))
    assert all(shard.ids for shard in info.shards)
    found = {}
    for shard in info.shards:
        found |= members((root / shard.name).read_bytes())
    assert found == {f"{i:09d}.jpeg": data for i, data in enumerate(files)}


KILLED = """
import time
from gpufeed.datasets.manifest import Manifest
from gpufeed.stores import shards_build as building
add = building.add
def slowly(*arguments):
    time.sleep(0.02)
    add(*arguments)
building.add = slowly
building.build(Manifest.read({manifest!r}), {path!r}, shards_per_split=6)
"""


def test_a_killed_build_goes_on_with_what_it_has_finished(manifest, tmp_path):
    path, whole = tmp_path / "killed" / "shards.json", tmp_path / "whole" / "shards.json"
    code = KILLED.format(manifest=str(manifest.root / "manifest.parquet"), path=str(path))
    process = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    while len(list(path.parent.glob("*.tar"))) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists()
    finished = [json.loads(line)["name"] for line in journal_path(path).read_text().splitlines()[1:]]
    assert len(finished) >= 2
    damaged = path.with_name(finished[0])
    damaged.write_bytes(bytes(damaged.stat().st_size))
    (path.parent / "train-000099.tar").write_bytes(b"of an earlier set")
    kept = {name: path.with_name(name).stat().st_mtime_ns for name in finished[1:]}
    build(manifest, path, shards_per_split=6)
    build(manifest, whole, shards_per_split=6)
    assert contents(path.parent) == contents(whole.parent)  # no journal, no partial file, no earlier shard
    assert {name: path.with_name(name).stat().st_mtime_ns for name in kept} == kept


def test_where_the_index_does_not_fit_the_shards_are_kept(manifest, tmp_path, monkeypatch):
    path = tmp_path / "shards.json"
    with monkeypatch.context() as patch:
        patch.setattr(base, "write_whole", disk_full)
        with pytest.raises(GpufeedError, match="no room to write"):
            build(manifest, path, shards_per_split=3)
    written = {name: name.stat().st_mtime_ns for name in path.parent.glob("*.tar")}
    assert len(written) >= 3
    build(manifest, path, shards_per_split=3)
    assert {name: name.stat().st_mtime_ns for name in path.parent.glob("*.tar")} == written
    assert not journal_path(path).exists()


@pytest.mark.parametrize("line", ["", "{", '{"splits": []}\n{"name": 3'])
def test_a_journal_of_something_else_is_not_believed(manifest, tmp_path, line):
    path = tmp_path / "shards.json"
    journal_path(path).write_text(line)
    build(manifest, path, shards_per_split=3)
    verify(path, manifest)


def test_what_is_no_shard_set_of_this_manifest_is_refused(manifest, tmp_path):
    path = write_shards(manifest)
    shard = path.with_name(ShardsInfo.read(path).shards[2].name)
    data = shard.read_bytes()
    shard.write_bytes(data[:700] + b"x" + data[701:])
    open_shards(path, manifest)
    with pytest.raises(GpufeedError, match="sha256"):
        verify(path, manifest)
    shard.write_bytes(data[:-512])
    with pytest.raises(GpufeedError, match="bytes in"):
        open_shards(path, manifest)
    shard.write_bytes(data)
    told = json.loads(path.read_text())
    told["shards"][0]["ids"][0] = told["shards"][1]["ids"][0]
    path.write_text(json.dumps(told))
    with pytest.raises(GpufeedError, match="distinct"):
        open_shards(path, manifest)
    other = write_dataset(tmp_path / "other", size=9)
    with pytest.raises(GpufeedError, match="another manifest"):
        open_shards(write_shards(manifest), other)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_is_gone_is_named_and_leaves_no_index(manifest, workers):
    bad = manifest.paths()[5]
    bad.unlink()
    path = manifest.root / "shards" / "shards.json"
    with pytest.raises(GpufeedError) as error:
        build(manifest, path, workers=workers)
    assert str(bad) in error.value.found
    assert not path.exists()
    assert not list(path.parent.glob("*.partial"))


def test_numbers_and_splits_that_mean_nothing(manifest, tmp_path):
    with pytest.raises(GpufeedError, match="0 shards a split"):
        build(manifest, tmp_path / "shards.json", shards_per_split=0)
    build(manifest, tmp_path / "shards.json", splits=["test"])
    with pytest.raises(GpufeedError, match="split 'train'"):
        open_shards(tmp_path / "shards.json", manifest).of_split("train")
