"""Archives that are damaged or hostile give an error and nothing else."""

import io
import os
import stat
import tarfile
import zipfile

import pytest
from data_fixtures import write_tar, write_zip
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.data.archive import is_plain_name, members
from gpufeed.errors import GpufeedError

FILES = {"top/a.txt": b"a" * 3000, "top/sub/b.bin": os.urandom(3000)}
WRITERS = {"zip": write_zip, "tar": write_tar}


def contents(path) -> dict[str, bytes]:
    return {member.name: member.read() for member in members(path)}


@pytest.mark.parametrize("kind", WRITERS)
def test_reads_every_file(tmp_path, kind):
    path = WRITERS[kind](tmp_path / "archive", FILES)
    assert contents(path) == FILES
    assert [member.size for member in members(path)] == [3000, 3000]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a//evil", "a\\..\\evil", "C:/evil"])
def test_climbing_names_are_refused(tmp_path, kind, name):
    path = WRITERS[kind](tmp_path / "archive", {"good": b"1", name: b"2"})
    with pytest.raises(GpufeedError, match="could lead out of its folder"):
        contents(path)


def test_zip_is_refused_before_its_first_file(tmp_path):
    path = write_zip(tmp_path / "archive", {"good": b"1", "../evil": b"2"})
    with pytest.raises(GpufeedError):
        next(members(path))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "inside"])
def test_tar_links_and_devices_are_refused(tmp_path, kind, target):
    with tarfile.open(tmp_path / "archive", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, target
        archive.addfile(info)
    with pytest.raises(GpufeedError, match="'link', a link or a device"):
        contents(tmp_path / "archive")


def test_zip_links_are_refused(tmp_path):
    info = zipfile.ZipInfo("link")
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(GpufeedError, match="'link', a link or a device"):
        contents(tmp_path / "archive")


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95])
def test_truncated_archives(tmp_path, kind, share):
    path = WRITERS[kind](tmp_path / "archive", FILES)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(GpufeedError, match="damaged or cut off") as caught:
        contents(path)
    assert f"move {path} away" in caught.value.remedy


def test_plain_tar_cut_in_a_file(tmp_path):
    with tarfile.open(tmp_path / "archive", "w") as archive:
        info = tarfile.TarInfo("file")
        info.size = 5000
        archive.addfile(info, io.BytesIO(b"x" * 5000))
    data = (tmp_path / "archive").read_bytes()
    (tmp_path / "archive").write_bytes(data[:2000])
    with pytest.raises(GpufeedError, match="damaged or cut off"):
        contents(tmp_path / "archive")


def test_flipped_bit_in_a_zip(tmp_path):
    path = write_zip(tmp_path / "archive", FILES)
    data = bytearray(path.read_bytes())
    data[data.index(b"aaaa")] ^= 1
    path.write_bytes(data)
    with pytest.raises(GpufeedError, match="Bad CRC-32"):
        contents(path)


def test_double_names(tmp_path):
    with tarfile.open(tmp_path / "archive", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("same"), io.BytesIO())
    with pytest.raises(GpufeedError, match="the name 'same' twice"):
        contents(tmp_path / "archive")


def test_no_file(tmp_path):
    with pytest.raises(GpufeedError, match="no file"):
        contents(tmp_path / "nothing")


@given(st.text(alphabet=st.sampled_from("ab./\\:\0\n~ -é"), max_size=12))
def test_plain_names_stay_inside(name):
    if is_plain_name(name):
        assert os.path.dirname(os.path.normpath(f"/root/inside/{name}")) == "/root/inside"
        assert "\0" not in name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0"])
def test_names_that_are_not_plain(name):
    assert not is_plain_name(name)
