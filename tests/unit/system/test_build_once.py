"""Files that several want to build at once: one builds them, and nobody writes into another's file."""

import errno
import fcntl
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
from data_fixtures import REPOSITORY
from image_fixtures import pixels, write_dataset
from test_strips_set import dataset

from gpufeed.core.file_writes import own_partial
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.stores import strips_build as strips_building
from gpufeed.stores.cache_format import open_cache
from gpufeed.stores.decoded_cache import build
from gpufeed.stores.strips_build import build as build_strips
from gpufeed.stores.strips_store import open_strips
from gpufeed.system import build_once
from gpufeed.system.build_once import one_builder

HOLDER = """
import sys, time
from pathlib import Path
from gpufeed.system.build_once import one_builder
with one_builder(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(60)
"""


def slowly(monkeypatch, owner, name: str, seconds: float) -> list[str]:
    """Lets a function take its time; returns the list to which each call adds its thread's name."""
    calls, whole = [], getattr(owner, name)

    def slow(*arguments):
        calls.append(threading.current_thread().name)
        time.sleep(seconds)
        return whole(*arguments)

    monkeypatch.setattr(owner, name, slow)
    return calls


def entered(path) -> bool:
    with one_builder(path) as waited:
        return waited


def at_once(function, count: int = 3) -> list:
    """What `function` returns in each of some threads that call it at once, or its error."""
    found, start = [], threading.Barrier(count)

    def call():
        start.wait()
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_of_several_builders_of_a_cache_one_builds(tmp_path, monkeypatch):
    manifest, path = write_dataset(tmp_path / "tiny"), tmp_path / "pillow.npy"
    calls = slowly(monkeypatch, PillowDecoder, "decode", 0.5)
    found = at_once(lambda: build(manifest, "pillow", path))
    assert found == [found[0]] * 3
    assert len(calls) == 1
    assert np.array_equal(open_cache(path, manifest, verify=True), [pixels(i, 8) for i in range(29)])
    build(manifest, "pillow", path)  # nobody else builds: whoever asks for it gets it anew
    assert len(calls) == 2


def test_of_several_builders_of_strips_one_builds(tmp_path, monkeypatch):
    manifest, path = dataset(tmp_path, ["colour"] * 9), tmp_path / "strips/strips.bin"
    calls = slowly(monkeypatch, strips_building, "join_files", 0.3)
    found = at_once(lambda: build_strips(manifest, path, images_per_strip=9))
    assert found == [found[0]] * 3
    assert len(calls) == 1
    open_strips(path, manifest, verify=True)


def test_another_wish_than_what_was_waited_for_is_built(tmp_path, monkeypatch):
    manifest, path = dataset(tmp_path, ["colour"] * 9), tmp_path / "strips/strips.bin"
    slowly(monkeypatch, strips_building, "join_files", 0.2)
    sizes = iter([3, 9])
    found = at_once(lambda: build_strips(manifest, path, images_per_strip=next(sizes)), 2)
    assert {info.images_per_strip: info.strips for info in found} == {3: 3, 9: 1}
    cache, names = tmp_path / "cache.npy", iter(["pillow", "opencv"])
    slowly(monkeypatch, PillowDecoder, "decode", 0.2)
    built = at_once(lambda: build(manifest, next(names), cache), 2)
    assert {info.decoder for info in built} == {"pillow", "opencv"}
    open_cache(cache, manifest, verify=True)


def test_without_locks_each_builds_into_a_file_of_its_own(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    manifest, path = write_dataset(tmp_path / "tiny"), tmp_path / "pillow.npy"
    calls = slowly(monkeypatch, PillowDecoder, "decode", 0.5)
    found = at_once(lambda: build(manifest, "pillow", path), 2)
    assert found == [found[0]] * 2
    assert len(calls) == 2
    assert "has no locks (No locks available)" in caplog.text
    assert np.array_equal(open_cache(path, manifest, verify=True), [pixels(i, 8) for i in range(29)])
    assert not list(tmp_path.glob("*.partial"))


def test_a_killed_builder_holds_nobody_up(tmp_path, caplog):
    caplog.set_level(logging.INFO, "gpufeed")
    path = tmp_path / "cache/a.npy"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout.readline() == "holds\n"
    threading.Timer(0.5, process.send_signal, [signal.SIGKILL]).start()
    begin = time.monotonic()
    with one_builder(path) as waited:
        assert waited
    assert 0.3 < time.monotonic() - begin < 20
    assert "this one waits for it" in caplog.text
    process.wait()
    process.stdout.close()


def test_a_process_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    with one_builder(tmp_path / "a.npy"):
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
    try:
        with one_builder(tmp_path / "a.npy") as waited:
            assert not waited
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_its_own_thread_may_ask_again_and_an_error_frees_it(tmp_path):
    path = tmp_path / "a.npy"
    with one_builder(path) as first, one_builder(path) as again:
        assert (first, again) == (False, False)
    with suppress(ValueError), one_builder(path):
        raise ValueError
    (waited,) = at_once(lambda: entered(path), 1)
    assert not waited


def test_a_lock_file_that_it_may_only_read(tmp_path):
    with one_builder(tmp_path / "a.npy"):
        (lock,) = tmp_path.iterdir()
        lock.chmod(0o444)  # as one of another user
        assert at_once(lambda: entered(tmp_path / "b.npy"), 1) == [False]
    assert not entered(tmp_path / "a.npy")


def test_what_killed_builders_left_is_cleared_away(tmp_path):
    path, node = tmp_path / "a.npy", platform.node()
    ours, theirs = own_partial(path), tmp_path / "a.npy.elsewhere-12345678.partial"
    old, other = tmp_path / "a.npy.partial", tmp_path / f"a.b.npy.{node}-12345678.partial"
    assert own_partial(path) != ours
    for left in (ours, theirs, old, other):
        left.touch()
    long_ago = time.time() - build_once.STALE_S - 60
    os.utime(old, (long_ago, long_ago))
    with one_builder(path):
        mine = own_partial(path)
        mine.touch()
        assert sorted(tmp_path.glob("*.partial")) == sorted([theirs, other, mine])
