"""SPDL's pipeline in processes of its own, held against the one in this process; on the CPU.

A server forks them, but where a test asks for `spawn`, by which a user's processes start.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from data_fixtures import REPOSITORY
from hostile_fixtures import hostile_files, photo, saved
from image_fixtures import MEAN, STD, request, write_files
from process_fixtures import fork_spdls_processes, is_server, left_after, wait_until, words
from transform_fixtures import (
    brief,
    exiting,
    failing,
    failing_oddly,
    pid,
    slow,
)

from gpufeed.augment.cpu import CpuAugment
from gpufeed.augment.random_resized_crop import RandomResizedCrop
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest

pytest.importorskip("spdl.pipeline")
pytestmark = pytest.mark.slow  # every test starts processes that import torch
HELPERS = ("resource_tracker",)  # of Python's: stays as long as the process that first needed it
OWN = {"workers": 2, "persistent_workers": True, "batch_size": 4}
THREADS = {"name": "spdl", "persistent_workers": False}  # of this process
KINDS = {"own process": ("spdl", 1), "pool": ("spdl_processes", 2)}  # loader, processes


@pytest.fixture
def manifest(tmp_path):
    """Twelve JPEGs, and hostile ones that FFmpeg leaves to Pillow: batches of more than a page."""
    usual = [saved("JPEG", photo() // (2 + i)) for i in range(12)]
    others = [file.data for file in hostile_files().values() if file.damaged]
    jpegs = [data for data in others if data.startswith(b"\xff\xd8")]
    return write_files(tmp_path / "files", [*usual, *jpegs], "JPEG", (48, 64))


@pytest.fixture
def start():
    return "forkserver"


@pytest.fixture(autouse=True)
def forked(start, monkeypatch):
    if start == "forkserver":
        fork_spdls_processes(monkeypatch)


@pytest.fixture(params=list(KINDS))
def kind(request):
    return request.param


@pytest.fixture
def count(kind):
    """How many processes a loader has."""
    return KINDS[kind][1]


@pytest.fixture
def no_thread_stays():
    """Fails where a pool's thread has not ended once the loaders are closed."""
    yield
    for thread in threading.enumerate():
        if "ExecutorManager" in type(thread).__name__:  # of a pool: it may ask for ever who lives
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def make(manifest, kind, no_thread_stays, open_loader):
    """(changes of the request) -> an open loader with processes of its own."""

    def make(of=manifest, name=KINDS[kind][0], **changes):
        return open_loader(name, request(of, None, **{**OWN, **changes}))

    return make


def processes() -> set[psutil.Process]:
    """Those that this one has started, without Python's helpers."""
    found = [one for one in psutil.Process().children(recursive=True) if not is_server(one)]
    return {one for one in found if not any(helper in " ".join(words(one)) for helper in HELPERS)}


def shared(process: psutil.Process) -> set[Path]:
    """What it maps of shared memory and has a name still, or had one."""
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    return {Path(line.split()[5]) for line in maps if "/dev/shm/" in line}


CHANGES = {
    "short queue": {"prefetch_factor": 1, "batch_size": 5, "workers": 3},
    "augment cpu": {"sample_transform": CpuAugment(MEAN, STD, 3, {"crop_padding": 2})},
    "decoded": {
        "workers": 1,
        "decoded": np.random.default_rng(1).integers(0, 256, (7, 48, 64, 3), dtype=np.uint8),
    },
    "random resized crop": {"workers": 1, "recipe": RandomResizedCrop(20, short_side=24, seed=3)},
}
SPAWN = pytest.mark.parametrize("start", ["spawn"])
POOL = pytest.mark.parametrize("kind", ["pool"])  # which sends errors as the other kind does


@pytest.mark.parametrize(
    ("kind", "changes", "start"),
    [
        ("own process", "augment cpu", "forkserver"),
        ("own process", "random resized crop", "spawn"),
        *(("pool", name, "forkserver") for name in CHANGES if name != "random resized crop"),
        ("pool", "random resized crop", "spawn"),
    ],
)
def test_batches_are_those_of_the_threads_of_this_process(make, changes):
    changes = CHANGES[changes]
    own, threads = make(**changes), make(**{**changes, **THREADS})
    for _ in range(2):
        pairs = list(zip(own, threads, strict=True))
        assert len(pairs) == len(own)
        for found, expected in pairs:
            for name in ("images", "labels", "ids"):
                assert torch.equal(getattr(found, name), getattr(expected, name))
            assert found.images.dtype == expected.images.dtype
    assert own.decode_counts.asdict() == threads.decode_counts.asdict()
    assert "decoded" in changes or own.decode_counts.asdict()["fell_back"]["pillow"] > 0


def test_the_same_processes_serve_all_epochs_and_end_on_close(make, count):
    before = processes()
    loader = make(sample_transform=pid, batch_size=1)
    own = processes() - before
    assert len(own) == count
    found = {int(value) for _ in range(2) for batch in loader for value in batch.images.unique()}
    assert found == {process.pid for process in own}
    assert processes() - before == own
    loader.close()
    assert not any(process.is_running() for process in own)


@pytest.mark.parametrize("kind", ["own process"])
def test_the_memory_of_its_batches_has_no_name(make):
    before, of_others = processes(), shared(psutil.Process()) | set(Path("/dev/shm").iterdir())
    loader = make()
    (process,) = processes() - before
    list(loader)
    # a forked process has the shared memory and semaphores of earlier tests mapped, too
    memory = [path for path in shared(process) if path not in of_others]
    assert len([path for path in memory if path.name.startswith("psm_")]) == 6
    # batches lie in memory without a name; semaphores, of a page each, have theirs while they are in use
    assert {path.name.split(".")[0] for path in memory if path.exists()} <= {"sem"}
    loader.close()
    assert not process.is_running()
    # a semaphore's name goes with its object, which the thread of a queue may still hold
    wait_until(lambda: gc.collect() >= 0 and not any(path.exists() for path in memory))


@POOL
def test_its_processes_leave_a_request_to_end_to_their_parent(make):
    before = processes()
    loader = make()
    own = processes() - before
    for process in own:
        process.terminate()
    assert sum(len(batch.ids) for batch in loader) == loader.share
    assert all(process.is_running() for process in own)


def test_an_epoch_that_was_left_is_followed_by_a_whole_one(make):
    loader = make()
    expected = [batch.ids.tolist() for batch in make(**THREADS)]
    for _ in range(3):  # more often than there are segments
        for _ in loader:
            break
        loader.load_state_dict({"epoch": 0, "next_batch": 0, "seed": 3})
    assert [batch.ids.tolist() for batch in loader] == expected


def test_a_loader_left_in_mid_epoch_leaves_nothing(make):
    before, threads = processes(), set(threading.enumerate())
    loader = make(batch_size=1)
    iterator = iter(loader)
    next(iterator)
    memory = set().union(*map(shared, processes() - before))
    loader.close()
    assert not processes() - before
    # a semaphore's name goes with its object, which the thread of a queue may still hold
    wait_until(lambda: gc.collect() >= 0 and not any(path.exists() for path in memory))
    left = {thread.name for thread in set(threading.enumerate()) - threads if thread.is_alive()}
    assert {name for name in left if "(_serve)" not in name} == set()  # multiprocessing's own stays


def test_a_killed_process_is_an_error_and_the_next_epoch_has_another(make, count):
    before = processes()
    loader = make(batch_size=1, prefetch_factor=1, sample_transform=brief)
    victim = (processes() - before).pop()
    begun = time.monotonic()
    with pytest.raises(
        GpufeedError, match=r"a process of SPDL's pipeline is gone.*(unexpectedly|abruptly)"
    ) as error:
        [victim.kill() for _ in loader]
    assert time.monotonic() - begun < 60
    assert "out-of-memory" in error.value.remedy
    loader.load_state_dict({"epoch": 1, "next_batch": 0, "seed": 3})
    assert sum(len(batch.ids) for batch in loader) == loader.share
    assert len(processes() - before) == count
    loader.close()  # while the error, and with it its frames, is kept
    assert not processes() - before


def test_processes_killed_after_an_epoch_was_left_are_an_error_too(make):
    before = processes()
    loader = make(batch_size=1, prefetch_factor=1)
    for _ in loader:
        break
    for process in processes() - before:
        process.kill()
    loader.load_state_dict({"epoch": 1, "next_batch": 0, "seed": 3})
    begun = time.monotonic()
    with pytest.raises(GpufeedError, match="a process of SPDL's pipeline is gone"):
        list(loader)
    loader.load_state_dict({"epoch": 1, "next_batch": 0, "seed": 3})
    assert sum(len(batch.ids) for batch in loader) == loader.share
    loader.close()
    assert time.monotonic() - begun < 60
    assert not processes() - before


@POOL
@SPAWN
def test_processes_that_die_before_they_read_a_long_list_of_files_are_an_error(
    make, manifest, tmp_path, monkeypatch
):
    make(**THREADS).close()  # a skip where this node cannot run it
    before = processes()
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    long = Manifest(manifest.root, manifest.info, pd.concat([manifest.table] * 5000, ignore_index=True))
    found = []

    def opening():
        try:
            make(long)
        except GpufeedError as error:
            found.append(str(error))

    thread = threading.Thread(target=opening, daemon=True)
    thread.start()
    thread.join(60)
    assert "a process of SPDL's pipeline is gone" in found[0]
    assert not left_after(10, processes() - before)


@POOL
def test_a_bad_file_is_named_in_the_same_words_and_a_whole_epoch_may_follow(make, manifest):
    bad = manifest.paths()[7]
    whole, before = bad.read_bytes(), processes()
    loader, threads = make(), make(**THREADS)
    own = processes() - before
    bad.write_bytes(whole[:700])
    errors = []
    for one in (loader, threads):
        with pytest.raises(GpufeedError, match=str(bad)) as error:
            list(one)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    bad.write_bytes(whole)
    loader.load_state_dict({"epoch": 1, "next_batch": 0, "seed": 3})
    assert sum(len(batch.ids) for batch in loader) == loader.share
    assert all(process.is_running() for process in own)
    loader.close()  # while the error is kept, and with it the frames that it went through
    assert error.value
    assert not any(process.is_running() for process in own)


@POOL
def test_an_error_in_a_transform_keeps_its_type_and_its_traceback(make):
    with pytest.raises(ValueError, match="planted at") as error:
        list(make(workers=1, sample_transform=failing))
    assert "in failing" in error.value.__notes__[0]


@POOL
def test_a_transform_that_ends_its_thread_is_an_error(make):
    for where in ({"workers": 1}, THREADS):
        with pytest.raises(GpufeedError, match=r"SystemExit: planted"):
            list(make(**where, sample_transform=exiting))


@POOL
def test_an_error_that_pickle_refuses_keeps_its_words(make):
    with pytest.raises(RuntimeError, match="Odd: odd 1 2"):
        list(make(workers=1, sample_transform=failing_oddly))


@POOL
def test_a_transform_that_cannot_be_sent_is_refused(make):
    with pytest.raises(GpufeedError, match="cannot be sent to a process") as error:
        make(sample_transform=lambda image, sample_id, epoch: image)
    assert "persistent_workers" in error.value.remedy


@pytest.mark.parametrize("kind", ["own process"])
def test_a_process_that_gives_nothing_is_an_error(make):
    before = processes()
    loader = make(sample_transform=slow, batch_size=1)
    loader.pipeline.batches._interface.timeout = 0.3  # in place of STUCK_S
    with pytest.raises(GpufeedError, match="no batch from SPDL's pipeline"):
        list(loader)
    assert not processes() - before


TRAINS = """
import signal, sys, time
sys.path[:0] = [{root!r}, {root!r} + "/tests/fixtures"]
from pathlib import Path
from image_fixtures import request, write_dataset
from gpufeed.core.registry import load
if __name__ == "__main__":
    import psutil
    # a shell in the background may have told everybody to ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    made = write_dataset(Path({folder!r}), size=40)
    asked = request(made, None, workers=2, persistent_workers=True)
    with load("loader", "spdl")(asked) as own, load("loader", "spdl_processes")(asked) as pool:
        for _ in zip(own, pool):
            children = psutil.Process().children()
            print(*(child.pid for child in children), flush=True)
            time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_they_end_with_their_parent(manifest, open_loader, tmp_path, number):
    open_loader("spdl", request(manifest, None)).close()  # a skip where this node cannot run it
    script = tmp_path / "trains.py"
    script.write_text(TRAINS.format(root=str(REPOSITORY), folder=str(tmp_path / "tiny")))
    training = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = [psutil.Process(int(word)) for word in training.stdout.readline().split()]
    memory = [found for child in children if (found := shared(child))]
    assert (len(memory), len(children)) == (3, 4)  # the fourth is Python's tracker of resources
    if number == signal.SIGKILL:
        training.kill()
    else:
        os.killpg(training.pid, number)  # as a terminal does
    _, said = training.communicate(timeout=60)
    assert not psutil.wait_procs(children, timeout=20)[1]
    assert not [path for path in set().union(*memory) if path.exists()]
    if number == signal.SIGINT:
        assert said.count("Traceback") == 1, said
        # Python's own tracker of semaphores may have more to say, of one whose name has gone already
        lines = [line for line in said.splitlines() if "resource_tracker" not in line]
        assert lines[-1] == "KeyboardInterrupt", said
