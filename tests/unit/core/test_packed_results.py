"""Archives of published results: what is unpacked, where the copy lies, and what is left alone."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import record_fixtures as made

from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import records_below
from gpufeed.core.packed_results import ENDING, extract, pack, unpacked


def publish(folder, scratch, speeds=(100.0, 110.0)):
    """Write an archive of records to a folder, as results/reference has them."""
    made.write_speeds(scratch, made.cell("resident"), speeds)
    folder.mkdir(parents=True, exist_ok=True)
    pack(scratch, [path for path in scratch.rglob("*") if path.is_file()], folder / f"pipelining{ENDING}")
    return folder


def archive(path, *members):
    with tarfile.open(path, "w:xz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def member(name, kind=tarfile.REGTYPE, size=4):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, "/etc/passwd" * (kind == tarfile.SYMTYPE)
    return info


def test_only_files_below_the_folder_are_written(tmp_path):
    extract(archive(tmp_path / "good.tar.xz", member("a/b")), tmp_path / "good")
    assert (tmp_path / "good/a/b").read_bytes() == bytes(4)
    for name, kind in (
        ("../out", tarfile.REGTYPE),
        ("a/../../out", tarfile.REGTYPE),
        (str(tmp_path / "out"), tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("pipe", tarfile.FIFOTYPE),
    ):
        bad = archive(tmp_path / "bad.tar.xz", member(name, kind, size=4 * (kind == tarfile.REGTYPE)))
        with pytest.raises(GpufeedError, match="no file below its folder"):
            extract(bad, tmp_path / "bad/inner")
    assert not (tmp_path / "bad").exists()
    assert not (tmp_path / "out").exists()


def test_python_3_11_2_unpacks_too(tmp_path, monkeypatch):
    def extractall(self, path=".", members=None, *, numeric_owner=False):
        pytest.fail("which checks no member there")

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)  # its arguments there: no `filter`
    assert len(records_below(publish(tmp_path / "node", tmp_path / "run"))) == 2


def test_a_folder_of_results_that_holds_published_ones_is_not_copied(tmp_path):
    results = tmp_path / "results"
    publish(results / "reference/h200", tmp_path / "run")
    made.write_speeds(results, made.cell("overlap"), (100.0, 110.0, 120.0))
    (results / "gone").symlink_to(tmp_path / "nowhere")
    (results / "models").symlink_to(tmp_path / "nowhere", target_is_directory=True)
    with tarfile.open(results / "mine.tar.xz", "w:xz") as tar:
        tar.add(results / "records", "records")
    (results / "notes.tar.xz").write_text("not an archive")
    assert unpacked(results) == results
    assert len(records_below(results)) == 3
    assert len(records_below(results / "reference")) == 2
    assert len(records_below(results / "reference/h200")) == 2


def test_other_files_of_a_published_folder_are_links(tmp_path):
    node = publish(tmp_path / "node", tmp_path / "run")
    (node / "large.pt").write_bytes(bytes(1000))
    (node / "gone").symlink_to(tmp_path / "nowhere")
    place = unpacked(node)
    assert (place / "large.pt").is_symlink()
    assert (place / "large.pt").stat().st_size == 1000


def test_errors_are_sentences_about_the_folder_that_was_named(tmp_path):
    node = publish(tmp_path / "node", tmp_path / "run")
    body = (node / f"pipelining{ENDING}").read_bytes()
    for length in (len(body) // 2, 40):
        (node / f"pipelining{ENDING}").write_bytes(body[:length])
        with pytest.raises(GpufeedError, match=f"{node}/pipelining.*cannot be unpacked"):
            records_below(node)
    pack(tmp_path, [tmp_path / "node" / f"pipelining{ENDING}"], node / f"pipelining{ENDING}")
    with pytest.raises(GpufeedError, match=f"no record below {node}"):
        records_below(node)


READS = """
import sys
from gpufeed.core.packed_results import unpacked
place = unpacked(sys.argv[1])
assert unpacked(sys.argv[1]) == place
print(place, len(list(place.rglob("*.json"))))
"""


def test_a_copy_is_gone_with_its_process_and_follows_the_archives(tmp_path):
    node = publish(tmp_path / "node", tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", READS, str(node)], capture_output=True, text=True, check=True
    )
    place, count = done.stdout.split()
    assert count == "2"
    assert not Path(place).exists()
    before = unpacked(node)
    publish(node, tmp_path / "more", (100.0, 110.0, 120.0))
    assert len(records_below(node)) == 3
    assert len(list(before.rglob("*.json"))) == 2  # whoever reads it goes on
