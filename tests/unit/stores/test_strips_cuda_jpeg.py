"""The strip backend of our own kernels, run on the CPU: an image has the very pixels of its file."""

import numpy as np
import pytest
import torch
from jpeg_fixtures import encoded, picture, turbo

from gpufeed.decoders.jpeg_parser import parse
from gpufeed.decoders.strip_joiner import join
from gpufeed.stores.strip_backends.cuda_jpeg import CudaJpegStrips
from gpufeed.stores.strips_store import Strip

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("extension")


def strip_of(files: list[bytes]) -> tuple[np.ndarray, Strip]:
    jpegs = [parse(file) for file in files]
    kind, data = jpegs[0].kind, np.frombuffer(bytearray(join(jpegs)), np.uint8)
    ids = np.arange(len(files))
    return data, Strip(
        0, len(data), "train", kind.height, kind.width, len(kind.components), kind.sampling, ids
    )


def files(sampling: str, count: int, first: int = 0, quality: int = 85) -> list[bytes]:
    return [encoded(sampling, picture(32, 48, 60, first + seed), quality) for seed in range(count)]


def decoded(pairs: list[tuple[np.ndarray, Strip]]) -> tuple[np.ndarray, list[int]]:
    data, strips = map(list, zip(*pairs, strict=True))
    out = torch.zeros((sum(len(strip.ids) for strip in strips), 32, 48, 3), dtype=torch.uint8)
    refused = CudaJpegStrips(CPU, 1).decode_into(data, strips, out)
    return out.numpy(), refused


def alone(*groups: list[bytes]) -> np.ndarray:
    return np.stack([turbo(file, True) for group in groups for file in group])


def test_strips_of_several_kinds_and_lengths_between_each_other():
    groups = [
        files("4:2:0", 11),
        files("grayscale", 1),
        files("4:2:0", 9, 11),
        files("4:2:0", 1, 20),
        files("4:2:0", 3, 30, quality=95),
        files("grayscale", 4, 5),
    ]
    images, refused = decoded([strip_of(group) for group in groups])
    assert refused == []
    assert np.array_equal(images, alone(*groups))


@pytest.mark.parametrize(
    "what", ["no header", "a marker less", "a marker more", "other bytes", "cut", "empty"]
)
def test_a_damaged_strip_is_refused_alone(what):
    groups = [files("4:2:0", 4, first) for first in (0, 4, 8)]
    pairs = [strip_of(group) for group in groups]
    bad, strip = pairs[1]
    start = bytes(bad).index(b"\xff\xd0")  # the first restart marker
    if what == "no header":
        bad = np.zeros_like(bad)
    elif what == "a marker less":
        bad[start : start + 2] = 7
    elif what == "a marker more":
        bad[start + 20 : start + 22] = [0xFF, 0xD3]
    elif what == "other bytes":
        bad[start + 10 : start + 60] = [0xFF, 0] * 25  # ones alone, which are no code
    else:
        bad = bad[: start + 1] if what == "cut" else bad[:0]
    images, refused = decoded([pairs[0], (bad, strip), pairs[2]])
    assert refused == [1]
    right = alone(*groups)
    assert np.array_equal(images[:4], right[:4])
    assert np.array_equal(images[8:], right[8:])


def test_a_marker_that_moved_to_the_next_strip():
    groups = [files("4:2:0", 4, first) for first in (0, 4, 8)]
    pairs = [strip_of(group) for group in groups]
    less, more = pairs[0][0], pairs[1][0]
    start = bytes(less).index(b"\xff\xd0")
    less[start : start + 2] = 7
    more[start + 20 : start + 22] = [0xFF, 0xD3]
    images, refused = decoded(pairs)
    assert refused == [0, 1]
    assert np.array_equal(images[8:], alone(groups[2]))
