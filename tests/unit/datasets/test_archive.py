"""Archives that are damaged or hostile give an error and nothing else."""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import tracemalloc
import zipfile

import pytest
from data_fixtures import write_tar, write_zip
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.archive import is_plain_name, members

FILES = {"top/a.txt": b"a" * 3000, "top/sub/b.bin": os.urandom(3000)}
MOST = 2**20
WRITERS = {"zip": write_zip, "tar": write_tar}
PACK = {"w": bytes, "w:gz": gzip.compress, "w:bz2": bz2.compress, "w:xz": lzma.compress}


def contents(path) -> dict[str, bytes]:
    return {member.name: member.read() for member in members(path, MOST)}


@pytest.mark.parametrize("kind", WRITERS)
def test_reads_every_file(tmp_path, kind):
    path = WRITERS[kind](tmp_path / "archive", FILES)
    assert contents(path) == FILES
    assert [member.size for member in members(path, MOST)] == [3000, 3000]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a//evil", "a\\..\\evil", "C:/evil"])
def test_climbing_names_are_refused(tmp_path, kind, name):
    path = WRITERS[kind](tmp_path / "archive", {"good": b"1", name: b"2"})
    with pytest.raises(GpufeedError, match="could lead out of its folder"):
        contents(path)


def test_zip_is_refused_before_its_first_file(tmp_path):
    path = write_zip(tmp_path / "archive", {"good": b"1", "../evil": b"2"})
    with pytest.raises(GpufeedError):
        next(members(path, MOST))


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


def tar_bytes(files: dict[str, bytes], format: int = tarfile.PAX_FORMAT, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=format) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def whole_or_refused(path, files: dict[str, bytes]) -> None:
    """An archive gives all of its files or none: a damaged header is no end."""
    try:
        found = contents(path)
    except GpufeedError:
        return
    assert found == files


TWELVE = {f"train/{'n' * (60 * (i % 3))}{i}/{'x' * 60}.jpg": bytes([i + 1]) * (300 * i) for i in range(12)}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
HEADERS = {  # a header, with what stands before it for a long name, is as many blocks as contents leave
    name: [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    for name, data in ((name, tar_bytes(TWELVE, format)) for name, format in FORMATS.items())
}


@settings(max_examples=75)
@given(
    kind=st.sampled_from(list(FORMATS)),
    mode=st.sampled_from(["w", "w:gz", "w:bz2", "w:xz"]),
    which=st.integers(0, 11),
    place=st.integers(0, 511),
    damage=st.one_of(st.binary(min_size=1, max_size=512), st.just(bytes(512))),
)
def test_damaged_header_of_a_tar(tmp_path_factory, kind, mode, which, place, damage):
    data = bytearray(tar_bytes(TWELVE, FORMATS[kind]))
    at, damage = HEADERS[kind][which] + place, damage[: 512 - place]
    assume(sum(damage) != sum(data[at : at + len(damage)]))  # its checksum is this sum: the header is right
    data[at : at + len(damage)] = damage
    path = tmp_path_factory.mktemp("damaged") / "archive"
    path.write_bytes(PACK[mode](bytes(data)))
    whole_or_refused(path, TWELVE)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("what", ["damaged", "cut", "cut at a header", "no end", "glued"])
def test_tar_that_does_not_end_where_it_should(tmp_path, mode, what):
    data = bytearray(tar_bytes(TWELVE))
    header = HEADERS["pax"][-1]
    if what == "damaged":
        data[header] ^= 1
    cuts = {"cut": header + 200, "cut at a header": header, "no end": len(bytes(data).rstrip(b"\0"))}
    data = data[: -(-cuts[what] // 512) * 512 if what == "no end" else cuts[what]] if what in cuts else data
    data = data + tar_bytes({"late": b"x"}) if what == "glued" else data
    (tmp_path / "archive").write_bytes(PACK[mode](bytes(data)))
    with pytest.raises(GpufeedError, match="damaged or cut off"):
        contents(tmp_path / "archive")


@given(cut=st.integers(0, 20_000))
def test_tar_cut_anywhere(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "archive"
    path.write_bytes(tar_bytes(TWELVE)[:cut])
    whole_or_refused(path, TWELVE)


def test_tar_is_no_zip_for_a_zip_at_its_end(tmp_path):
    inner = write_zip(tmp_path / "inner.zip", {"other.txt": b"1"}).read_bytes()
    files = {**TWELVE, "extra.zip": inner}
    (tmp_path / "archive").write_bytes(tar_bytes(files))
    assert contents(tmp_path / "archive") == files


def test_file_larger_than_asked_for(tmp_path):
    for kind, writer in WRITERS.items():
        found = members(writer(tmp_path / kind, FILES), 2999)
        with pytest.raises(GpufeedError, match=r"'top/a.txt', 3,000 bytes, [\s\S]*at most 2,999 bytes"):
            next(found).read()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_name_of_a_tar_that_claims_gigabytes(tmp_path, kind):
    info = tarfile.TarInfo("long")
    info.type, info.size = kind, 2**40
    (tmp_path / "archive").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    with pytest.raises(GpufeedError, match=f"a name of {2**40} bytes"):
        contents(tmp_path / "archive")


def test_zip_that_unpacks_to_more_than_it_says(tmp_path):
    with zipfile.ZipFile(tmp_path / "archive", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(2**26))
    data = (tmp_path / "archive").read_bytes()
    (tmp_path / "archive").write_bytes(data.replace((2**26).to_bytes(4, "little"), b"\1\0\0\0"))
    tracemalloc.start()
    try:
        with pytest.raises(GpufeedError, match="Bad CRC-32"):
            contents(tmp_path / "archive")
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


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
