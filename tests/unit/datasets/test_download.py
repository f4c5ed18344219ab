"""Fetching: resume, retries, mirrors, checks; an interrupted fetch never leaves a finished-looking file."""

import hashlib
import logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from data_fixtures import REPOSITORY, SLICE, files_of_at_most

from gpufeed.core.compose import shipped
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import enough_disk
from gpufeed.datasets import download
from gpufeed.datasets.download import STAND_INS, SourceFile, fetch
from gpufeed.datasets.stand_ins import MADE_OF

BODY = np.random.default_rng(0).bytes(300_000)
SIZE = len(BODY)
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr(download, "BACKOFF_S", 0.01)


def source(*urls, sha256=SHA, size=SIZE) -> SourceFile:
    return SourceFile("data.bin", urls, sha256, size)


def get(file, tmp_path, archives=(), **least):
    return fetch(file, tmp_path / "out" / file.name, list(archives), **least)


def left(tmp_path) -> set[str]:
    return {path.name for path in (tmp_path / "out").iterdir()}


def test_whole_file_from_http(server, tmp_path):
    path = get(source(server.add("/data.bin", BODY)), tmp_path)
    assert path.read_bytes() == BODY
    assert left(tmp_path) == {"data.bin"}


@pytest.mark.parametrize("form", ["plain", "file://"])
def test_local_places(tmp_path, form):
    local = tmp_path / "with space.bin"
    local.write_bytes(BODY)
    place = str(local) if form == "plain" else local.as_uri()
    assert get(source(place), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("site", ["site", "~/site"])
def test_archived_copy_comes_before_the_urls(server, tmp_path, monkeypatch, site):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/data.bin").write_bytes(BODY)
    get(source(server.add("/data.bin", BODY)), tmp_path, [tmp_path / "missing", site])
    assert server.requests == []


def test_wrong_archived_copy_falls_back_to_the_url(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"x" * len(BODY))
    path = get(source(server.add("/data.bin", BODY)), tmp_path, [tmp_path])
    assert path.read_bytes() == BODY


def test_broken_connections_are_resumed(server, tmp_path):
    url = server.add("/data.bin", BODY, break_after=[100_000, 50_000])
    assert get(source(url), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _, _ in server.requests] == [None, "bytes=100000-", "bytes=150000-"]
    assert sum(sent for *_, sent in server.requests) == len(BODY)


def test_resume_without_checksum_size_or_range_support(server, tmp_path):
    url = server.add("/data.bin", BODY, break_after=[100_000], ranges=False)
    assert get(source(url, sha256=None, size=None), tmp_path).read_bytes() == BODY
    assert [status for _, _, status, _ in server.requests] == [200, 200]


def test_file_that_changes_between_attempts_is_fetched_anew(server, tmp_path):
    """If-Range: the new version must not be glued to bytes of the old one."""
    url = server.add("/data.bin", b"o" * 200_000, break_after=[100_000] + [0] * 5, etag='"old"')
    partial = tmp_path / "out/data.bin.partial"
    with pytest.raises(GpufeedError):
        get(source(url, sha256=None, size=None), tmp_path)
    assert partial.stat().st_size == 100_000
    server.add("/data.bin", BODY, etag='"new"')
    assert get(source(url, sha256=None, size=None), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("sha256", [SHA, None])
def test_unknown_partial_is_used_only_under_a_checksum(server, tmp_path, sha256):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.bin.partial").write_bytes(BODY[:1000])
    assert get(source(server.add("/data.bin", BODY), sha256=sha256), tmp_path).read_bytes() == BODY
    assert server.requests[0][1] == ("bytes=1000-" if sha256 else None)


def test_wrong_partial_is_thrown_away_after_the_checksum(server, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.bin.partial").write_bytes(b"x" * 1000)
    assert get(source(server.add("/data.bin", BODY)), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _, _ in server.requests] == ["bytes=1000-", None]


@pytest.mark.parametrize("size", [len(BODY), None])
def test_partial_longer_than_the_file(server, tmp_path, size):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.bin.partial").write_bytes(b"x" * (len(BODY) + 5))
    assert get(source(server.add("/data.bin", BODY), size=size), tmp_path).read_bytes() == BODY
    assert [status for _, _, status, _ in server.requests] == ([200] if size else [416, 200])


def test_complete_partial_needs_no_request(tmp_path, server):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.bin.partial").write_bytes(BODY)
    assert get(source(server.add("/data.bin", BODY)), tmp_path).read_bytes() == BODY
    assert server.requests == []


def test_answer_with_another_range_is_not_used(server, tmp_path):
    url = server.add("/data.bin", BODY, break_after=[1000], content_range=f"bytes 7-9/{len(BODY)}")
    assert get(source(url), tmp_path).read_bytes() == BODY
    assert [status for _, _, status, _ in server.requests] == [200, 206, 200]


@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_is_asked_again(server, tmp_path, status):
    assert get(source(server.add("/data.bin", BODY, status=[status, status])), tmp_path).exists()


def test_mirror_takes_over_where_the_first_url_stopped(server, tmp_path):
    first = server.add("/first", BODY, break_after=[100_000, 0, 0, 0, 0, 0])
    second = server.add("/second", BODY)
    assert get(source(first, second), tmp_path).read_bytes() == BODY
    assert server.requests[-1][:2] == ("/second", "bytes=100000-")


def test_not_found_is_not_asked_twice(server, tmp_path):
    missing = server.add("/data.bin", BODY).replace("data", "missing")
    with pytest.raises(GpufeedError, match="HTTP 404") as caught:
        get(source(missing), tmp_path)
    assert len(server.requests) == 1
    assert caught.value.expected == f"data.bin with sha256 {SHA}, {len(BODY)} bytes"


def test_wrong_checksum_tries_the_mirror_once_then_stops(server, tmp_path):
    bad = b"x" * len(BODY)
    urls = [server.add("/one", bad), server.add("/two", bad)]
    with pytest.raises(GpufeedError) as caught:
        get(source(*urls), tmp_path)
    found = hashlib.sha256(bad).hexdigest()
    assert caught.value.found == f"{urls[0]}: sha256 {found}; {urls[1]}: sha256 {found}"
    assert SHA in caught.value.expected
    assert [path for path, *_ in server.requests] == ["/one", "/two"]
    assert left(tmp_path) == set()


def test_wrong_size_is_found_before_the_body(server, tmp_path):
    with pytest.raises(GpufeedError, match=f"the server offers 9 bytes instead of {len(BODY)}"):
        get(source(server.add("/data.bin", b"not found")), tmp_path)


def test_wrong_local_size(tmp_path):
    (tmp_path / "local").write_bytes(b"short")
    with pytest.raises(GpufeedError, match=f"5 bytes instead of {len(BODY)}"):
        get(source(str(tmp_path / "local")), tmp_path)


def test_server_that_always_hangs_up_ends_in_an_error(server, tmp_path):
    url = server.add("/data.bin", BODY, break_after=[0] * 20)
    with pytest.raises(GpufeedError, match="5 attempts failed"):
        get(source(url), tmp_path)
    assert len(server.requests) == 5


def test_silent_server_ends_in_an_error(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "READ_S", 0.05)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    with pytest.raises(GpufeedError, match=r"2 attempts failed[\s\S]*timed out"):
        get(source(server.add("/data.bin", BODY, delay_s=0.3)), tmp_path)


def test_dripping_server_ends_in_an_error(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "WINDOW_S", 0.1)
    monkeypatch.setattr(download, "SLOWEST", 10_000_000)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with pytest.raises(GpufeedError, match="fewer than 10000000 bytes/s"):
        get(source(server.add("/data.bin", BODY, delay_s=0.05)), tmp_path)


@pytest.fixture
def short_minute(monkeypatch):
    """A window of 0.25 s. A slice of 16 KiB each 0.1 s is about 160 kB/s."""
    monkeypatch.setattr(download, "WINDOW_S", 0.25)


def asked(server) -> list[tuple[str, str | None]]:
    return [(path, range) for path, range, *_ in server.requests]


def test_mirror_that_drips_is_left_for_the_next_one(server, tmp_path, short_minute):
    slow, fast = server.add("/slow", BODY, delay_s=0.1), server.add("/fast", BODY)
    assert get(source(slow, fast), tmp_path, least_kb_s=400).read_bytes() == BODY
    assert sorted(path for path, _ in asked(server)) == ["/fast", "/slow"]
    went_on = int(dict(asked(server))["/fast"].removeprefix("bytes=").removesuffix("-"))
    assert 0 < went_on < SIZE / 2  # what had come is kept


def test_mirror_that_stalls_after_each_piece_is_left_for_the_next_one(server, tmp_path, monkeypatch):
    """It brings enough for another attempt each time, by Range, and then nothing."""
    monkeypatch.setattr(download, "READ_S", 0.1)
    monkeypatch.setattr(download, "GOOD_PROGRESS", SLICE)
    slow, fast = server.add("/slow", BODY, delay_s=0.4), server.add("/fast", BODY)
    assert get(source(slow, fast), tmp_path, least_kb_s=1).read_bytes() == BODY
    assert asked(server)[:2] in (
        [("/slow", None), ("/fast", f"bytes={SLICE}-")],
        [("/fast", f"bytes={SLICE}-"), ("/slow", None)],
    )
    assert len(server.requests) == 2


def test_slow_mirror_is_kept_where_there_is_no_other(server, tmp_path, short_minute):
    url = server.add("/slow", BODY, delay_s=0.1)
    assert get(source(url), tmp_path, least_kb_s=400).read_bytes() == BODY
    assert len(server.requests) == 1


def test_fastest_of_the_slow_mirrors_goes_on_where_all_others_fail(server, tmp_path, short_minute, caplog):
    slower, slow = server.add("/slower", BODY, delay_s=0.2), server.add("/slow", BODY, delay_s=0.05)
    missing = slow.replace("slow", "missing")
    caplog.set_level(logging.WARNING, "gpufeed")
    assert get(source(slower, slow, missing), tmp_path, least_kb_s=1000).read_bytes() == BODY
    paths = [path for path, *_ in server.requests]
    assert sorted(paths) == ["/missing", "/slow", "/slow", "/slower"]
    assert sum(sent for *_, status, sent in server.requests if status == 206) < SIZE
    assert caplog.text.count("fewer than 1000 kB/s") == 2


def test_what_a_slow_mirror_brought_stays_for_the_next_run(server, tmp_path, short_minute):
    slow = server.add("/slow", BODY, delay_s=0.1, break_after=[SIZE, 0, 0, 0, 0, 0])
    with pytest.raises(GpufeedError, match=r"fewer than 400 kB/s[\s\S]*HTTP 404[\s\S]*5 attempts failed"):
        get(source(slow, slow.replace("slow", "missing")), tmp_path, least_kb_s=400)
    have = (tmp_path / "out/data.bin.partial").stat().st_size
    assert 0 < have < SIZE
    server.add("/slow", BODY)
    assert get(source(slow), tmp_path).read_bytes() == BODY
    assert ("/slow", f"bytes={have}-") in asked(server)


def test_no_mirror_is_left_if_none_shall_be(server, tmp_path, short_minute):
    urls = server.add("/slow", BODY, delay_s=0.1), server.add("/fast", BODY)
    assert get(source(*urls), tmp_path, least_kb_s=0).read_bytes() == BODY
    assert asked(server) == [("/slow", None)]


def test_nowhere_to_get_it_from(tmp_path):
    with pytest.raises(GpufeedError) as caught:
        get(source(), tmp_path, [tmp_path / "site"])
    assert "its source has no URL" in caught.value.found
    assert caught.value.remedy == f"put data.bin into {tmp_path / 'site'}"
    with pytest.raises(GpufeedError, match=r"name a folder that holds data\.bin in `archives`"):
        get(source(), tmp_path)


@pytest.mark.parametrize("name", STAND_INS)
def test_nowhere_to_get_a_stand_in_from_is_answered_with_the_command_that_makes_it(tmp_path, name):
    with pytest.raises(GpufeedError) as caught:
        fetch(SourceFile(name), tmp_path / name, [])
    assert "python -m gpufeed.datasets.stand_ins" in caught.value.remedy
    assert name in {row["name"] for of in MADE_OF for row in shipped()["sources"][of]["files"]}


def test_unknown_scheme_and_missing_local_file(tmp_path):
    with pytest.raises(GpufeedError, match="use http"):
        get(source("s3://bucket/data.bin"), tmp_path)
    with pytest.raises(GpufeedError, match="No such file or directory"):
        get(source(str(tmp_path / "nothing")), tmp_path)


def test_no_connection(tmp_path, server):
    url = server.add("/data.bin", BODY)
    server.close()
    with pytest.raises(GpufeedError, match=r"5 attempts failed[\s\S]*check the network") as caught:
        get(source(url), tmp_path)
    assert "put data.bin" not in caught.value.found


@pytest.mark.parametrize("local", [True, False])
def test_full_disk(server, tmp_path, local):
    copy = tmp_path / "copy"
    copy.write_bytes(BODY)
    place = str(copy) if local else server.add("/data.bin", BODY)
    with (
        files_of_at_most(50_000),
        pytest.raises(GpufeedError, match=r"no room to write[\s\S]*free some space"),
    ):
        get(source(place), tmp_path)
    assert "data.bin" not in left(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_no_space_left_on_device(tmp_path):
    with (
        pytest.raises(GpufeedError, match="No space left on device"),
        enough_disk(tmp_path),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_killed_fetch_is_resumed(server, tmp_path):
    """SIGKILL in mid-download: no target, and the next run asks only for the missing bytes."""
    url = server.add("/data.bin", BODY, delay_s=0.1)
    target = tmp_path / "out/data.bin"
    code = (
        "import sys; from pathlib import Path; from gpufeed.datasets.download import SourceFile, fetch\n"
        "url, target, sha = sys.argv[1:]; fetch(SourceFile('data.bin', (url,), sha), Path(target), [])"
    )
    command = [sys.executable, "-c", code, url, str(target), SHA]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    partial = target.with_name("data.bin.partial")
    deadline = time.monotonic() + 30
    while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = partial.stat().st_size
    assert 0 < have < len(BODY)
    assert not target.exists()

    server.behaviours["/data.bin"].delay_s = 0
    assert get(source(url), tmp_path).read_bytes() == BODY
    resumed = [request for request in server.requests if request[1]]
    assert resumed == [("/data.bin", f"bytes={have}-", 206, len(BODY) - have)]
    assert len(server.requests) == 2
