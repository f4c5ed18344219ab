"""A dataset's files as one archive, and back on the node of a job: whole and once for all jobs there."""

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from data_fixtures import REPOSITORY, files_below, files_of_at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import write_dataset
from test_strips_set import dataset as strips_dataset

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets import packed
from gpufeed.datasets.archive import is_plain_name
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.packed import ARCHIVE, MANIFEST, SIDECAR, VARIABLE, Packed, bring, files_at, pack
from gpufeed.datasets.prepare import prepare
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_reader import StripReader
from gpufeed.training.runtime_context import Stores, reads_files

SMALL = {"count": 40, "size": 8, "classes": 3}
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=80).filter(
    lambda name: is_plain_name(name) and len(name.encode()) < 256
)
FILES = st.dictionaries(st.tuples(NAMES, NAMES, NAMES), st.binary(max_size=2000), min_size=1, max_size=6)

JOB = """
import logging, os, signal, sys
from pathlib import Path
from gpufeed.datasets import packed

def stopped(folder):
    print("written", flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()  # until the test lets it go on

extract = packed.extract
def told(*given):
    print("unpacks", flush=True)
    extract(*given)

packed.extract = told
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message).0s%(funcName)s")
if sys.argv[2] != "free":
    packed.settle = stopped
print(packed.files_at(Path(sys.argv[1])), flush=True)
"""


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch) -> Path:
    """The folder of this user on the node's disk; not made yet."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "node"))
    monkeypatch.setattr(packed, "_looked_over", {})
    return tmp_path / "node" / f"gpufeed-{os.getuid()}"


@pytest.fixture
def dataset(tmp_path) -> Path:
    """29 images, packed."""
    write_dataset(tmp_path / "stage")
    pack(tmp_path / "stage", tmp_path / "data/tiny")
    return tmp_path / "data/tiny"


def left_on(node: Path) -> list[str]:
    """What lies on the node, but for the empty files of locks."""
    return sorted(path.name for path in node.iterdir() if not path.name.endswith(".lock"))


def job(root: Path, how: str) -> subprocess.Popen:
    """A process that asks for the files. how: free, held (once all are written), or killed there."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", JOB, root, how], cwd=REPOSITORY, **pipes)


def as_stage(folder: Path, files: dict[tuple[str, ...], bytes]) -> Path:
    for parts, data in files.items():
        path = folder.joinpath("images", *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / MANIFEST).write_bytes(b"rows")
    return folder


@given(files=FILES)
@settings(max_examples=40)
def test_any_names_and_contents_come_back_and_the_archive_is_always_the_same(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("any")
    pack(as_stage(folder / "a", files), folder / "one")
    again = as_stage(folder / "b", dict(reversed(files.items())))
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
    pack(again, folder / "other")
    assert files_below(folder / "one") == files_below(folder / "other")
    assert sorted(files_below(folder / "one")) == [SIDECAR, ARCHIVE, MANIFEST]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "node"))
        found = files_below(files_at(folder / "one"))
    assert found == {"/".join(("images", *parts)): data for parts, data in files.items()}


def test_a_dataset_is_the_same_in_both_forms(tmp_path, node):
    plain = prepare("synthetic", [], tmp_path / "plain", "small", SMALL)
    one = prepare("synthetic", [], tmp_path / "one", "small", SMALL, form="packed")
    assert left_on(node) == []  # where it was laid out
    assert sorted(files_below(tmp_path / "one")) == [SIDECAR, ARCHIVE, MANIFEST]
    assert (tmp_path / "one" / MANIFEST).read_bytes() == (tmp_path / "plain" / MANIFEST).read_bytes()
    assert one.root == tmp_path / "one"
    ours = Manifest.read(tmp_path / "one" / MANIFEST)
    assert [path.read_bytes() for path in ours.paths()] == [path.read_bytes() for path in plain.paths()]
    assert all(node in path.parents for path in ours.paths())
    assert plain.files_root() == tmp_path / "plain"
    about = Packed(**json.loads((tmp_path / "one" / SIDECAR).read_text()))
    assert (about.files, about.bytes) == (40, sum(path.stat().st_size for path in plain.paths()))
    digest = hashlib.sha256((tmp_path / "one" / ARCHIVE).read_bytes()).hexdigest()
    assert about.archive_sha256 == digest


def test_a_change_of_the_form_leaves_nothing_of_the_other(tmp_path):
    out = tmp_path / "small"
    for form, names in (("folders", ["images", MANIFEST]), ("packed", [SIDECAR, ARCHIVE, MANIFEST])) * 2:
        prepare("synthetic", [], out, "small", SMALL, form=form)
        assert sorted(path.name for path in out.iterdir()) == names
    with pytest.raises(GpufeedError, match="form 'tar' in data_form"):
        prepare("synthetic", [], out, "small", SMALL, form="tar")


def test_datasets_made_of_a_packed_one_read_its_files(tmp_path):
    tiles = prepare("synthetic", [], tmp_path / "tiles", "tiles", SMALL, form="packed")
    made = {
        "mosaic": {"of": "tiles", "size": 16, "count": 5},
        "gray_idx": {"of": "tiles", "size": 6},
    }
    for layout, options in made.items():
        given = [tiles.root / MANIFEST]
        plain = prepare(layout, given, tmp_path / f"{layout}-plain", layout, options)
        one = prepare(layout, given, tmp_path / layout, layout, options, form="packed")
        assert [path.read_bytes() for path in one.paths()] == [path.read_bytes() for path in plain.paths()]
        rest = {path.name for path in (tmp_path / layout).iterdir()} - {SIDECAR, ARCHIVE, MANIFEST}
        assert rest == ({"idx"} if layout == "gray_idx" else set())


def test_files_are_unpacked_once_and_looked_over_by_each_process(dataset, node, monkeypatch):
    whole = files_at(dataset)
    assert left_on(node) == [whole.name]
    archive = (dataset / ARCHIVE).read_bytes()
    (dataset / ARCHIVE).unlink()  # nobody reads it again
    assert files_at(dataset) == whole
    monkeypatch.setattr(packed, "_looked_over", {})  # as in another process
    assert files_at(dataset) == whole
    next(whole.rglob("*.png")).unlink()  # as something does that cleans up /tmp
    monkeypatch.setattr(packed, "_looked_over", {})
    with pytest.raises(GpufeedError, match=r"damaged, cut off or missing \(no such file\)"):
        files_at(dataset)
    (dataset / ARCHIVE).write_bytes(archive)
    assert len(files_below(files_at(dataset))) == 29
    emptied = next(whole.rglob("*.png"))
    emptied.write_bytes(b"")
    monkeypatch.setattr(packed, "_looked_over", {})
    assert files_at(dataset) == whole
    assert emptied.stat().st_size > 0


def test_another_archive_of_the_same_name_is_another_folder(dataset, tmp_path):
    before = files_at(dataset)
    shutil.rmtree(dataset)
    write_dataset(tmp_path / "more", train=24)
    pack(tmp_path / "more", dataset)
    after = files_at(dataset)
    assert (len(files_below(before)), len(files_below(after))) == (29, 30)


def test_of_two_jobs_at_once_one_unpacks_and_the_other_waits(dataset, node):
    first = job(dataset, "held")
    assert first.stdout.readline() == "unpacks\n"
    assert first.stdout.readline() == "written\n"
    second = job(dataset, "free")
    assert second.stdout.readline() == "take\n"  # where it says that it waits
    assert all(name.endswith(".partial") for name in left_on(node))
    whole = first.communicate("\n", timeout=60)[0].splitlines()[-1]
    assert second.communicate(timeout=60)[0] == f"{whole}\n"  # it has not unpacked
    assert len(files_below(Path(whole))) == 29
    assert left_on(node) == [Path(whole).name]


def test_a_killed_job_leaves_nothing_that_the_next_takes_for_whole(dataset, node):
    killed = job(dataset, "killed")
    assert killed.communicate(timeout=60)[0] == "unpacks\nwritten\n"
    assert killed.returncode == -signal.SIGKILL
    (left,) = left_on(node)
    assert left.endswith(".partial")
    found = files_at(dataset)
    assert left_on(node) == [found.name]
    assert len(files_below(found)) == 29


def test_without_locks_both_unpack_and_one_of_the_two_stays(dataset, node, monkeypatch):
    whole = packed.extract

    def meanwhile(archive, about, folder):
        monkeypatch.setattr(packed, "extract", whole)
        target = folder.with_name(folder.name.partition(".")[0])
        packed.unpack(dataset, about, target)
        return whole(archive, about, folder)

    monkeypatch.setattr(packed, "extract", meanwhile)
    found = files_at(dataset)
    assert left_on(node) == [found.name]
    assert len(files_below(found)) == 29


def test_a_full_disk_is_told_and_leaves_nothing(dataset, node, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said = rf"no room to unpack .*{ARCHIVE} in .*No space left[\s\S]*for 29 files[\s\S]*{VARIABLE}"
    monkeypatch.setattr(packed, "settle", full)  # where disks that write late say it
    with pytest.raises(GpufeedError, match=said):
        files_at(dataset)
    assert left_on(node) == []
    with files_of_at_most(100), pytest.raises(GpufeedError, match="no room to unpack"):
        files_at(dataset)
    assert left_on(node) == []
    about = packed.read_sidecar(dataset)
    with pytest.raises(GpufeedError, match="GiB free"):
        packed.unpack(dataset, replace(about, bytes=2**60), node / "large")
    assert left_on(node) == []


def test_a_full_disk_while_it_is_packed(tmp_path, node, monkeypatch):
    stage, out = tmp_path / "stage", tmp_path / "out"
    write_dataset(stage)
    with files_of_at_most(8_000), pytest.raises(GpufeedError, match=r"no room to write in .*out"):
        pack(stage, out)
    assert list(out.iterdir()) == []
    with files_of_at_most(100), pytest.raises(GpufeedError, match=rf"no room to write[\s\S]*{VARIABLE}"):
        prepare("synthetic", [], out, "small", SMALL, form="packed")
    assert [*out.iterdir(), *left_on(node)] == []


def flipped(data: bytes) -> bytes:
    """With one bit of the first file's content changed, which tar has no checksum of."""
    return data[:600] + bytes([data[600] ^ 1]) + data[601:]


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda data: data[:-512], lambda data: b"", lambda data: b"\xff" * len(data)],
    ids=["a bit", "cut off", "empty", "no tar"],
)
def test_a_damaged_archive_is_refused(dataset, node, damage):
    archive = dataset / ARCHIVE
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(
        GpufeedError, match=r"images.tar is damaged, cut off or missing[\s\S]*move .*images.tar away"
    ):
        files_at(dataset)
    assert left_on(node) == []


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, "/etc/passwd", 4 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "info",
    [member("../evil"), member("/tmp/evil"), member("images/../../evil"), member("a", tarfile.SYMTYPE)],
    ids=lambda info: info.name,
)
def test_a_hostile_archive_writes_nothing_outside(dataset, node, info):
    with tarfile.open(dataset / ARCHIVE, "w") as tar:
        tar.addfile(info, io.BytesIO(b"evil"))
    data = (dataset / ARCHIVE).read_bytes()
    about = asdict(packed.read_sidecar(dataset)) | {
        "files": 1,
        "bytes": 4,
        "archive_bytes": len(data),
        "archive_sha256": hashlib.sha256(data).hexdigest(),
    }
    (dataset / SIDECAR).write_text(json.dumps(about))
    with pytest.raises(GpufeedError, match=r"could lead out of its folder|a link, a folder or a device"):
        files_at(dataset)
    assert left_on(node) == []
    assert not list(node.parent.rglob("evil"))


@pytest.mark.parametrize("name", ["back\\slash.png", "line\nbreak.png", "drive:.png"])
def test_names_that_could_not_be_unpacked_are_not_packed(tmp_path, name):
    stage = as_stage(tmp_path / "stage", {("train", name): b"1"})
    with pytest.raises(GpufeedError, match="could lead out of its folder"):
        pack(stage, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_links_are_not_packed(tmp_path):
    stage = as_stage(tmp_path / "stage", {("train", "1.png"): b"1"})
    (stage / "images/train/2.png").symlink_to("1.png")
    with pytest.raises(GpufeedError, match=r"2.png, a link or a device[\s\S]*data_form: folders"):
        pack(stage, tmp_path / "out")


def test_a_manifest_of_another_archive_is_refused(dataset, node):
    write_dataset(dataset, train=5)
    with pytest.raises(GpufeedError, match=r"manifest.parquet with sha256[\s\S]*run the command again"):
        files_at(dataset)
    (dataset / SIDECAR).write_text("{}")
    with pytest.raises(GpufeedError, match=r"no readable .*images.json"):
        files_at(dataset)


def test_a_folder_that_is_not_ours_is_not_used(dataset, node, tmp_path):
    node.parent.mkdir()
    node.symlink_to(tmp_path)
    with pytest.raises(GpufeedError, match=rf"a link, or another user's[\s\S]*{VARIABLE}"):
        files_at(dataset)
    node.unlink()
    node.write_text("")
    with pytest.raises(GpufeedError, match=rf"File exists[\s\S]*{VARIABLE}"):
        files_at(dataset)


def test_what_is_in_a_cache_or_in_strips_is_not_unpacked(tmp_path, node):
    for name, kinds, left_over in (("all", ["colour"] * 9, False), ("most", ["colour"] * 8 + ["png"], True)):
        (tmp_path / name / "images").mkdir(parents=True)
        plain = strips_dataset(tmp_path / name, kinds, folder="images")
        pack(plain.root, tmp_path / f"{name}-packed")
        manifest = Manifest.read(tmp_path / f"{name}-packed" / MANIFEST)
        build(plain, tmp_path / "strips.bin", images_per_strip=9)
        assert reads_files(manifest, Stores(strips=tmp_path / "strips.bin")) is left_over
        reader = StripReader(manifest, tmp_path / "strips.bin", torch.device("cpu"), 1)
        ids, images = reader.read(reader.units("train"))
        assert sorted(ids.tolist()) == list(range(9))
        assert images.shape == (9, 32, 32, 3)
        reader.close()
        assert node.exists() is left_over
    assert reads_files(manifest, Stores())
    assert not reads_files(manifest, Stores(cache=tmp_path / "pillow.npy"))


def test_seconds_are_told_of_packed_files_alone(dataset, tmp_path):
    assert bring(dataset) > 0
    assert bring(dataset) >= 0
    assert bring(tmp_path / "stage") is None


def test_others_cannot_look_into_the_folder(dataset, node):
    files_at(dataset)
    assert node.stat().st_mode & 0o777 == 0o700
