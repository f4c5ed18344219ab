"""Joined images decode to the very pixels of their files, but for the rows at a seam that are stated."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import frombuffer, uint8
from torchvision.io import ImageReadMode, decode_image

from gpufeed.core.errors import GpufeedError
from gpufeed.decoders.jpeg_parser import Refused, parse
from gpufeed.decoders.strip_joiner import join, kind_digest

SUBSAMPLINGS = ("4:2:0", "4:2:2", "4:4:4", "grayscale")


def picture(seed: int, height: int = 32, width: int = 48) -> np.ndarray:
    """Smooth colours with some noise, uint8 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    return np.clip(smooth + rng.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)


def files(subsampling: str, count: int, seed: int = 0, **size) -> list[bytes]:
    encoded = []
    for number in range(count):
        buffer, image = io.BytesIO(), Image.fromarray(picture(1000 * seed + number, **size))
        if subsampling == "grayscale":
            image.convert("L").save(buffer, "JPEG")
        else:
            image.save(buffer, "JPEG", subsampling=subsampling)
        encoded.append(buffer.getvalue())
    return encoded


def decode(data: bytes, fancy: bool) -> np.ndarray:
    return simplejpeg.decode_jpeg(data, "RGB", fastupsample=not fancy, strict=True)


def pair(data: list[bytes], fancy: bool) -> tuple[np.ndarray, np.ndarray]:
    """(in a strip, alone), both uint8 (N, H, W, 3)."""
    alone = np.stack([decode(file, fancy) for file in data])
    return decode(join([parse(file) for file in data]), fancy).reshape(alone.shape), alone


@settings(max_examples=60)
@given(
    subsampling=st.sampled_from(SUBSAMPLINGS),
    count=st.integers(1, 20),
    seed=st.integers(0, 1000),
    height=st.integers(1, 4),
    width=st.integers(1, 4),
)
def test_plain_upsampling_is_bit_exact(subsampling, count, seed, height, width):
    joined, alone = pair(files(subsampling, count, seed, height=16 * height, width=16 * width), fancy=False)
    assert np.array_equal(joined, alone)


@pytest.mark.parametrize("subsampling", ["4:2:2", "4:4:4", "grayscale"])
def test_fancy_upsampling_is_bit_exact_where_colour_is_not_halved_vertically(subsampling):
    joined, alone = pair(files(subsampling, 10), fancy=True)
    assert np.array_equal(joined, alone)


def test_fancy_upsampling_of_420_differs_in_two_rows_a_seam_and_nowhere_else():
    joined, alone = pair(files("4:2:0", 10), fancy=True)
    rows = np.flatnonzero((joined != alone).any(axis=(2, 3)).ravel())  # rows of the tall image
    height = alone.shape[1]
    seams = [row for seam in range(height, 10 * height, height) for row in (seam - 1, seam)]
    assert rows.tolist() == seams


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_other_decoders_read_strips(subsampling):
    data = files(subsampling, 10)
    strip = join([parse(file) for file in data])
    expected = decode(strip, fancy=True)
    with Image.open(io.BytesIO(strip)) as image:
        assert image.size == (48, 320)
        by_pillow = np.asarray(image.convert("RGB"))
    by_torchvision = decode_image(frombuffer(bytearray(strip), dtype=uint8), ImageReadMode.RGB)
    # both bring a libjpeg-turbo of their own; its versions may round differently
    assert np.abs(by_pillow.astype(int) - expected).max() <= 2
    assert np.abs(by_torchvision.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 2


def test_entropy_coded_bytes_are_copied():
    data = [parse(file) for file in files("4:2:0", 11)]
    strip = join(data)
    place = 0
    for number, image in enumerate(data):
        place = strip.index(image.entropy, place) + len(image.entropy)
        follows = b"\xff\xd9" if number == 10 else bytes([0xFF, 0xD0 + number % 8])
        assert strip[place : place + 2] == follows
    assert place + 2 == len(strip)


def test_strip_of_one_and_digests_of_kinds():
    with pytest.raises(Refused, match="restart intervals"):  # a strip is not joined again by mistake
        parse(join([parse(files("4:2:0", 1)[0])]))
    one, other = (parse(file) for file in files("4:2:0", 2))
    assert np.array_equal(decode(join([one]), True), decode(files("4:2:0", 1)[0], True))
    assert kind_digest(one.kind) == kind_digest(other.kind)
    assert kind_digest(parse(files("4:4:4", 1)[0]).kind) != kind_digest(one.kind)


def test_a_strip_is_at_most_as_tall_as_libjpeg_takes():
    image = parse(files("4:2:0", 1)[0])  # 32 rows
    assert decode(join([image] * 2046), fancy=False).shape == (65_472, 48, 3)
    with pytest.raises(GpufeedError, match="65500 rows"):
        join([image] * 2047)


def test_different_kinds_are_not_joined():
    with pytest.raises(ValueError, match="different kinds"):
        join([parse(files("4:2:0", 1)[0]), parse(files("4:4:4", 1)[0])])
    with pytest.raises(ValueError, match="no images"):
        join([])
