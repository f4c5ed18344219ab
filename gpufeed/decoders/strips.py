"""Strips joined on the fly: files of one kind are joined and decoded in long calls, on threads.

Parsing a file costs more here than decoding it; the loader, the cache and the decoder benchmark read strips
that were built beforehand (`gpufeed.stores`). This form lets the decoders' contract tests run on strips.
"""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.encoded_file import JPEG_KINDS
from gpufeed.decoders.fallback import FallbackDecoder, Refused, isolate
from gpufeed.decoders.jpeg_parser import Jpeg, parse
from gpufeed.decoders.jpeg_parser import Refused as NotForStrips
from gpufeed.decoders.simplejpeg import decode_jpeg
from gpufeed.decoders.strip_joiner import join, kind_digest

IMAGES = 64  # files in a strip: enough for a long call, few enough that a batch fills several threads
MAX_ROWS = 16_384  # as in strips_build


class StripsDecoder(FallbackDecoder):
    """libjpeg-turbo behind simplejpeg, one call for up to 64 files; files that fit no strip are
    decoded alone.
    """

    name = "strips"
    needs = {"simplejpeg": "simplejpeg"}  # noqa: RUF012
    parallel = "own threads"
    takes = JPEG_KINDS
    # Colour that is subsampled vertically is smoothed over the seams: an image's top and bottom row differ,
    # by up to 91 on the real JPEGs of 64 x 64 pixels; the smaller an image, the larger its mean difference.
    tolerance = Tolerance(140, 4.0)

    def __init__(self, threads: int = 1):
        super().__init__(threads)
        self.pool = ThreadPoolExecutor(threads)

    def decode_taken(self, files: list[bytes]) -> list[np.ndarray | None]:
        tasks = list(self._tasks(files))
        images: list[np.ndarray | None] = [None] * len(files)
        for task, found in zip(tasks, self.pool.map(decode_task, tasks), strict=True):
            for place, image in zip(task.places, found, strict=True):
                images[place] = image
        return images

    def _tasks(self, files: list[bytes]) -> Iterator["Task"]:
        """Yield a task for files of one kind together, and one for each file that fits no strip."""
        groups = defaultdict(list)
        for place, data in enumerate(files):
            try:
                jpeg = parse(data)
            except NotForStrips:
                yield Task([place], data)
            else:
                groups[kind_digest(jpeg.kind)].append((place, jpeg))
        for group in groups.values():
            size = max(1, min(IMAGES, MAX_ROWS // group[0][1].kind.height))
            for start in range(0, len(group), size):
                places, jpegs = zip(*group[start : start + size], strict=True)
                yield Task(list(places), list(jpegs))

    def version(self) -> str:
        return f"{self.name} by simplejpeg {self.library.__version__}"


@dataclass(frozen=True)
class Task:
    """The input of one call, and the places of its images. source: a whole file, or parsed files to join."""

    places: list[int]
    source: bytes | list[Jpeg]


def decode_task(task: Task) -> list[np.ndarray | None]:
    """Return uint8 (H, W, 3) for each place, None for a damaged file."""
    if isinstance(task.source, bytes):
        return isolate(decode_alone, [task.source])
    return isolate(decode_joined, task.source)


def decode_alone(files: list[bytes]) -> list[np.ndarray]:
    return [rows_of(file) for file in files]


def decode_joined(jpegs: list[Jpeg]) -> list[np.ndarray]:
    kind = jpegs[0].kind
    return list(rows_of(join(jpegs)).reshape(len(jpegs), kind.height, kind.width, 3))


def rows_of(data: bytes) -> np.ndarray:
    """Decode one JPEG to uint8 (rows, W, 3); raise Refused if it is damaged."""
    try:
        return decode_jpeg(data, fancy=True)
    except ValueError as error:
        raise Refused(str(error)) from error
