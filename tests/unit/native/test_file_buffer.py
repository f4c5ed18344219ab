"""FileBuffer and its op read_files: whole files in one buffer, names of any bytes, errors by file."""

import contextlib
import itertools
import os
import threading

import numpy as np
import pytest
import torch

from gpufeed.native.file_buffer import FileBuffer

pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture
def files(tmp_path):
    """Contents by path, as bytes: empty, tiny and larger than a page; a name is not UTF-8."""
    random, found = np.random.default_rng(0), {}
    for number, size in enumerate((0, 1, 4096, 700_001, 3, *random.integers(0, 9000, 60).tolist())):
        path = os.fsencode(tmp_path) + b"/\xff\xfe name " + str(number).encode()
        found[path] = random.bytes(size)
        with open(path, "wb") as file:
            file.write(found[path])
    return found


def read(buffer: FileBuffer, paths) -> list[bytes]:
    data, offsets = buffer.read(list(paths))
    assert (offsets.dtype, len(offsets), len(data)) == (torch.int64, len(paths) + 1, int(offsets[-1]))
    return [data[start:end].numpy().tobytes() for start, end in itertools.pairwise(offsets)]


@pytest.mark.parametrize("threads", [1, 4, 100])
def test_files_stand_one_behind_the_other(files, threads):
    buffer = FileBuffer(threads)
    for order in (list(files), [*files][::-1], [*files][1:2] * 3):
        assert read(buffer, order) == [files[path] for path in order]


def test_the_buffer_grows_and_stays(files):
    buffer, paths = FileBuffer(), list(files)
    read(buffer, paths[:3])
    small = len(buffer.memory)
    read(buffer, paths)
    memory = buffer.memory
    assert small < sum(map(len, files.values())) <= len(memory)
    read(buffer, paths[:3])
    assert buffer.memory is memory


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("gone", FileNotFoundError, "No such file or directory"),
        ("folder", OSError, "it is no regular file"),
        ("pipe", OSError, "it is no regular file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(files, tmp_path, what, error, said):
    paths, bad = list(files), os.fsencode(tmp_path) + b"/\xe4 bad"
    if what == "folder":
        os.mkdir(bad)
    elif what == "pipe":
        os.mkfifo(bad)
    buffer = FileBuffer()
    with pytest.raises(error, match=said) as found:
        buffer.read([*paths[:7], bad, *paths[7:]])
    assert found.value.filename == os.fsdecode(bad)
    assert read(buffer, paths) == list(files.values())


def test_a_file_that_nobody_may_read_is_named(files):
    path = list(files)[3]
    os.chmod(path, 0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(PermissionError, match="Permission denied"):
        FileBuffer().read([path])


def test_sizes_that_cannot_be_are_an_error_and_no_sum_of_them_overflows(tmp_path):
    """Sparse files say any size: a sum beyond 63 bits would be negative, for which every buffer is enough."""
    path = os.fsencode(tmp_path / "sparse")
    with open(path, "wb") as file:
        for size in (2**62, 2**43, 2**31 + 1):  # what the file system has
            with contextlib.suppress(OSError):
                file.truncate(size)
                break
        else:
            pytest.skip("this file system has no sparse files of 2 GiB")
    with pytest.raises(OSError, match="File too large"):
        FileBuffer().read([path, path])


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path):
    places, stop = [tmp_path / name for name in ("path", "file", "pipe", "next")], threading.Event()
    path, file, pipe, following = map(os.fsencode, places)
    places[1].write_bytes(b"content")
    os.mkfifo(pipe)

    def change():
        for kind in itertools.cycle((pipe, file)):
            os.link(kind, following)
            os.replace(following, path)
            if stop.is_set():
                return

    os.link(file, path)
    writer = threading.Thread(target=change)
    writer.start()
    found, both = set(), {b"content", "it is no regular file"}
    try:
        for number in itertools.count():
            try:
                found.update(read(FileBuffer(1), [path]))
            except OSError as error:
                found.add(error.strerror)
            if number >= 5000 and both <= found:
                break
    finally:
        stop.set()
        writer.join()
    assert found <= {*both, "its size changed while it was read"}


@pytest.mark.parametrize("path", [b"/proc/self/status", b"/sys/devices/system/cpu/online"])
def test_a_file_with_more_or_fewer_bytes_than_it_says_is_an_error(path):
    """The kernel says 0 and 4,096 bytes of these."""
    if not os.path.isfile(path):
        pytest.skip("no such file on this system")
    with pytest.raises(OSError, match="its size changed while it was read"):
        FileBuffer().read([path])


def test_a_file_that_grows_or_is_replaced_meanwhile_never_comes_with_wrong_bytes(tmp_path):
    path, other, stop = os.fsencode(tmp_path / "file"), os.fsencode(tmp_path / "other"), threading.Event()
    parts = (5000, 70_000, 300_000)

    def change():
        for number in itertools.cycle(range(1, 251)):
            if stop.is_set():
                return
            for part in parts:
                with open(other, "ab") as file:
                    file.write(bytes([number]) * part)
                if part == parts[0]:
                    os.replace(other, path)
                    os.link(path, other)  # the same file, which grows
            os.unlink(other)

    with open(path, "wb") as file:
        file.write(bytes([7]) * parts[0])
    writer = threading.Thread(target=change)
    writer.start()
    reasons, found = set(), set()
    try:
        for _ in range(1000):
            try:
                (data,) = read(FileBuffer(2), [path])
            except OSError as error:
                reasons.add(error.strerror)
            else:
                found.add((parts[0] <= len(data) <= sum(parts), len(set(data))))
    finally:
        stop.set()
        writer.join()
    assert found == {(True, 1)}
    assert reasons <= {"its size changed while it was read"}


def test_others_have_the_interpreter_meanwhile(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(2**20))
    steps, reading, done = [0], threading.Event(), threading.Event()

    def step():
        reading.wait()
        while not done.is_set():
            steps[0] += 1

    thread = threading.Thread(target=step)
    thread.start()
    names = torch.frombuffer(bytearray((os.fsencode(path) + b"\0") * 200), dtype=torch.uint8)
    memory = torch.empty(200 * 2**20, dtype=torch.uint8)
    reading.set()
    before = steps[0]
    torch.ops.gpufeed.read_files(names, memory, 1)
    during = steps[0] - before
    done.set()
    thread.join()
    assert during > 100


def test_what_is_no_buffer_is_refused():
    names, good = torch.zeros(0, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(TypeError, match="found: data of Float"):
        torch.ops.gpufeed.read_files(names, torch.zeros(4), 1)
    with pytest.raises(ValueError, match="one dimension without gaps"):
        torch.ops.gpufeed.read_files(names, good[::2], 1)
    with pytest.raises(ValueError, match="found: a last name without an end"):
        torch.ops.gpufeed.read_files(good + 65, good, 1)
