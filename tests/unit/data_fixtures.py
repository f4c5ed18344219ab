"""A local HTTP server that can misbehave, and small archives in the layouts of the real ones."""

import gzip
import io
import pickle
import resource
import struct
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[2]
REAL_DATA = REPOSITORY.parent / "shared/data"
SLICE = 1 << 14


@dataclass
class Behaviour:
    """How the server answers for one path."""

    body: bytes
    etag: str | None = '"v1"'
    ranges: bool = True
    status: list[int] = field(default_factory=list)  # answered first, one a request
    break_after: list[int] = field(default_factory=list)  # body bytes before it hangs up, one a request
    announce: int | None = None  # Content-Length, if it lies
    content_range: str | None = None  # Content-Range, if it lies
    delay_s: float = 0.0  # after each slice of the body


class Server:
    """Serves `behaviours` by path and keeps (path, Range header, status, body bytes sent) of each request."""

    def __init__(self):
        self.behaviours: dict[str, Behaviour] = {}
        self._requests: list[tuple[str, str | None, int, int]] = []
        self._active, self._changed = 0, threading.Condition()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with server._answering():
                    server._requests.append(server._answer(self))

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def add(self, path: str, body: bytes, **behaviour) -> str:
        """Serves `body` at `path`; returns the URL."""
        self.behaviours[path] = Behaviour(body, **behaviour)
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def requests(self) -> list[tuple[str, str | None, int, int]]:
        """All requests, once the last one is answered: the client may be faster than the server's notes."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._active, timeout=10)
        return self._requests

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with self._changed:
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def _answer(self, handler: BaseHTTPRequestHandler) -> tuple[str, str | None, int, int]:
        how = self.behaviours.get(handler.path)
        asked = handler.headers.get("Range")
        if how is None or how.status:
            status = how.status.pop(0) if how else 404
            handler.send_error(status)
            return handler.path, asked, status, 0
        start, status = self._start(how, asked, handler.headers.get("If-Range"))
        body = how.body[start:]
        handler.send_response(status)
        if status == 206:
            given = how.content_range or f"bytes {start}-{len(how.body) - 1}/{len(how.body)}"
            handler.send_header("Content-Range", given)
        if status == 416:
            body = b""
            handler.send_header("Content-Range", f"bytes */{len(how.body)}")
        if how.etag:
            handler.send_header("ETag", how.etag)
        handler.send_header("Content-Length", str(len(body) if how.announce is None else how.announce))
        handler.end_headers()
        return handler.path, asked, status, self._send(handler, how, body)

    @staticmethod
    def _start(how: Behaviour, asked: str | None, if_range: str | None) -> tuple[int, int]:
        if not asked or not how.ranges or (if_range and if_range != how.etag):
            return 0, 200
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        return (start, 206) if start < len(how.body) else (start, 416)

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, how: Behaviour, body: bytes) -> int:
        body = body[: how.break_after.pop(0)] if how.break_after else body
        for begin in range(0, len(body), SLICE):
            try:
                handler.wfile.write(body[begin : begin + SLICE])
            except OSError:  # the client was killed
                return begin
            time.sleep(how.delay_s)
        return len(body)


def noise(height: int, width: int, seed: int, channels: int = 3) -> np.ndarray:
    """Random uint8 pixels, (H, W, 3) or (H, W)."""
    shape = (height, width, 3) if channels == 3 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def jpeg(seed: int, channels: int = 3, side: int = 8) -> bytes:
    """A small JPEG of noise."""
    buffer = io.BytesIO()
    Image.fromarray(noise(side, side, seed, channels)).save(buffer, "JPEG")
    return buffer.getvalue()


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def tiny_files(top: str = "tiny-imagenet-200/") -> dict[str, bytes]:
    """Two classes, unsorted; two training images (one grayscale), one validation, one test image each."""
    files = {"wnids.txt": b"n02\nn01\n", "words.txt": b"n01\tgoldfish\nn02\tbee\n"}
    rows = []
    for number, wnid in enumerate(("n01", "n02")):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for index in range(2):
            name = f"train/{wnid}/images/{wnid}_{index}.JPEG"
            files[name] = jpeg(10 * number + index, channels=1 if index else 3)
        files[f"val/images/val_{number}.JPEG"] = jpeg(100 + number)
        rows.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t7\t7\n")
        files[f"test/images/test_{number}.JPEG"] = jpeg(200 + number)
    files["val/val_annotations.txt"] = "".join(rows).encode()
    return {top + name: data for name, data in files.items()}


def cifar_pixels(batch: int, count: int = 4) -> np.ndarray:
    """Pixels of a batch in its stored order, uint8 (count, 3072)."""
    return np.random.default_rng(batch).integers(0, 256, (count, 3072), dtype=np.uint8)


def cifar_files(protocol: int = 2) -> dict[str, bytes]:
    """Five training batches and a test batch of four images, labels 0, 1, 0, 1, and two class names."""
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    files = {}
    for number, name in enumerate(names):
        batch = {b"labels": [0, 1, 0, 1], b"data": cifar_pixels(number), b"batch_label": name.encode()}
        files[name] = pickle.dumps(batch, protocol)
    files["batches.meta"] = pickle.dumps({b"label_names": [b"airplane", b"truck"]}, protocol)
    return {f"cifar-10-batches-py/{name}": data for name, data in files.items()}


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 array in the idx format, not yet compressed."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_fashion(folder: Path, train: int = 20, test: int = 10) -> list[Path]:
    """The four files, 6x5 pixels, labels going round."""
    paths = []
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, 6, 5), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            paths.append(folder / f"{prefix}-{kind}-ubyte.gz")
            paths[-1].write_bytes(gzip.compress(idx_bytes(array)))
    return paths


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit that the kernel enforces: writing past `size` bytes of a file fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
