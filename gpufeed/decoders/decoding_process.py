"""A decoding process: it reads files and decodes them into memory that it shares with its parent.

It does not import torch, so that it is ready in 0.2 s instead of 3 s.
"""

import mmap
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import numpy as np

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import load
from gpufeed.decoders.base import Decoder, bad_file
from gpufeed.decoders.encoded_file import read_file
from gpufeed.decoders.image_transfer import split
from gpufeed.system.host_memory import keep_freed_blocks


@dataclass(frozen=True)
class Opening:
    """Files, the shapes of their images, and the shape of the shared memory, uint8 (slots, bytes).

    The descriptor of that memory follows on the same connection.
    """

    paths: list[str]
    shapes: list[tuple[int, int, int]]
    shape: tuple[int, int]


@dataclass(frozen=True)
class Task:
    """Decode `count` files from number `first` on, wrapping around after the last, into a slot.

    start: the first byte of the first image there; the others follow without a gap.
    """

    slot: int
    start: int
    first: int
    count: int


def serve(connection: Connection, decoder_name: str, cores: list[int] | None) -> None:
    """Answer each Opening and each Task until the other end closes.

    cores: the ids of the cores that this process may use. It first sends the decoder's version, then for each
    task the number of images that another decoder had to decode; or an error, as GpufeedError or Skip.
    """
    keep_freed_blocks()  # the fork server that started this process does not inherit it from the parent
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        decoder = load("decoder", decoder_name)()
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
        connection.send(decoder.version())
    except Exception as error:
        connection.send(sendable_error(error))
        return
    paths, shapes, target = [], [], np.empty((0, 0), np.uint8)
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if isinstance(message, Opening):
                paths, shapes = message.paths, message.shapes
                target = shared_array(recv_handle(connection), message.shape)
                answer = 0
            else:
                chosen = [(message.first + i) % len(paths) for i in range(message.count)]
                rows = split(target[message.slot, message.start :], [shapes[i] for i in chosen])
                answer = decode_into(decoder, [paths[i] for i in chosen], rows)
        except Exception as error:
            answer = sendable_error(error)
        connection.send(answer)


def sendable_error(error: Exception) -> Exception:
    """Return the error in a form that can be sent to another process."""
    if isinstance(error, GpufeedError | Skip):
        return error
    return GpufeedError(
        f"a decoding process raised {type(error).__name__}: {error}", "decoded images", "see the log"
    )


def shared_array(descriptor: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the memory of an open file as uint8 of this shape, and close the descriptor."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, int(np.prod(shape))), np.uint8).reshape(shape)
    finally:
        os.close(descriptor)


def decode_into(decoder: Decoder, paths: list[str], rows: Iterable[np.ndarray]) -> int:
    """Decode files into uint8 (H, W, 3) each; return how many another decoder had to decode.

    Raises GpufeedError for a file that cannot be read or decoded, or has another size.
    """
    fell_back = 0
    for row, path in zip(rows, paths, strict=True):  # one at a time, while the cache still holds it
        decoded = decoder.decode([read_file(path)])
        image, outcome = decoded.images[0], decoded.outcomes[0]
        check_image(image, outcome.reason, path, row.shape)
        row[...] = image
        fell_back += outcome.decoder != decoder.name
    return fell_back


def check_image(image, reason: str | None, path: str, shape: tuple[int, ...]) -> None:
    """Raise GpufeedError unless the file gave an image of this shape (H, W, 3)."""
    if image is None:
        raise bad_file(path, str(reason))
    if tuple(image.shape) != tuple(shape):
        raise bad_file(path, f"decoded to {tuple(image.shape)}, the manifest says {tuple(shape)}")
