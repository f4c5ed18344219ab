"""Preflight on a Lustre whose `lfs` is a script: quotas of room and files, and answers that are none."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_preflight_storage import images

from gpufeed.cluster.preflight import storage
from gpufeed.cluster.preflight.storage import Quota, quota_of, read_quota

HEAD = """Disk quotas for usr 1000 (uid 1000):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
"""
GIB = 2**20  # in KiB


@pytest.fixture
def lfs(tmp_path, monkeypatch):
    """Puts an `lfs` on the path that prints a text; returns the file that holds what it was asked."""

    def lfs(said: str, status: int = 0) -> Path:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "said").write_text(said)
        script = tmp_path / "bin/lfs"
        script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/said\nexit {status}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        return tmp_path / "asked"

    return lfs


@pytest.fixture
def says(found):
    """What a check says of a run that has to prepare a dataset of so many images on the site's scratch."""
    return lambda check, count=0: found(check, config=images(count), datasets=["made"])


@pytest.mark.parametrize(
    ("row", "quota"),
    [
        ("/scratch 100 0 500 - 7 0 9 -", Quota(100, 500, 7, 9)),
        ("/scratch 100 300 500 - 7 8 9 -", Quota(100, 300, 7, 8)),
        ("/scratch 100 300 0 - 7 8 0 -", Quota(100, 300, 7, 8)),
        ("/scratch 100 0 0 - 7 0 0 -", Quota(100, None, 7, None)),
        ("/scratch 600* 300 500 6d23h59m 10* 8 9 expired", Quota(600, 300, 10, 8)),
        ("/scratch [100] 0 500 none [7]* 0 9 -", Quota(100, 500, 7, 9)),
        (
            "/storage/ice1/a/long/name\n                 100 0 500 - 7 0 9 -\nuid 1000 is using default",
            Quota(100, 500, 7, 9),
        ),
        ("/scratch 100 0 500 -", None),
        ("/scratch - - - - - - - -", None),
        ("", None),
    ],
)
def test_rows_of_lfs_quota(row, quota):
    assert read_quota(f"{HEAD}{row}\n") == quota


def test_room_is_what_the_quota_leaves(lfs, says, site):
    asked = lfs(f"{HEAD}/scratch {297 * GIB} 0 {300 * GIB} - 7 0 0 -\n")
    said = says(storage.space)
    assert f"found: 3.0 GiB left of your quota of 300.0 GiB in {site.scratch.folder}" in said
    assert "make room there, or name another folder: --config data=FOLDER" in said
    assert asked.read_text() == f"quota -u {os.getuid()} {site.scratch.folder}\n"
    lfs(f"{HEAD}/scratch {301 * GIB}* 0 {300 * GIB} 6d 7 0 0 -\n")
    assert "found: 0.0 GiB left of your quota" in says(storage.space)


def test_a_disk_that_has_less_than_the_quota_leaves(lfs, says, monkeypatch):
    lfs(f"{HEAD}/scratch 0 0 {2**60} - 7 0 0 -\n")
    monkeypatch.setattr(storage, "LEAST_GIB", 2**40)
    assert "GiB free in" in says(storage.space)


def test_files_are_those_of_the_quota(lfs, says, site):
    """It counts what lies elsewhere on the file system, too, and no site.yaml has to be right."""
    lfs(f"{HEAD}/scratch 0 0 0 - 1999000 0 2000000 -\n")
    assert says(storage.file_count, 1000) == ""
    said = says(storage.file_count, 1001)
    assert f"1,999,000 files in {site.scratch.folder}, and 1,001 new ones" in said
    assert "expected: at most 2,000,000 files" in said
    assert "--config data_form=packed" in said


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (f"{HEAD}/scratch 9 0 0 - 9 0 0 -\n", 0),  # no limit
        (f"{HEAD}/scratch 9 1 1 - 9 1 1 -\n", 1),  # refused
        ("quota failed: this is no Lustre\n", 0),
        ("", 0),
    ],
)
def test_without_a_quota_files_are_counted(lfs, says, site, said, status):
    lfs(said, status)
    assert says(storage.space) == ""
    assert says(storage.file_count, 1000) == ""
    said = says(storage.file_count, 1001)
    assert f"0 files in {site.scratch.folder}, and 1,001 new ones\n  expected: at most 1,000 files" in said


def test_without_the_command(site, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert quota_of(site.scratch.folder) is None


NUMBERS = st.integers(0, 10**15)
WORDS = st.sampled_from(
    ["-", "9" * 5000, "*", "[", "]", "9", "0", "\n", " ", "none", "6d", "/scratch", "²", "٣"]
)


@given(st.text() | st.lists(WORDS, max_size=60).map(" ".join) | st.lists(WORDS, max_size=60).map("".join))
def test_no_answer_is_too_wild(said):
    quota = read_quota(said)
    assert quota is None or min(quota.kib, quota.files) >= 0


@given(
    st.tuples(*[NUMBERS] * 6), st.sampled_from(["/s", "/a/longer/name\n     "]), st.booleans(), st.booleans()
)
def test_every_row_is_read(numbers, name, over, unsure):
    kib, soft, hard, files, soft_files, hard_files = numbers
    used = [f"{'[' * unsure}{n}{']' * unsure}{'*' * over}" for n in (kib, files)]
    row = f"{name} {used[0]} {soft} {hard} - {used[1]} {soft_files} {hard_files} 6d23h"
    most, most_files = soft or hard or None, soft_files or hard_files or None
    assert read_quota(f"{HEAD}{row}\n") == Quota(kib, most, files, most_files)
