import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_fixtures import encode, pixels
from PIL import Image

from gpufeed.decode.pillow import PillowDecoder
from gpufeed.registry import DECODERS, load

PHOTO = np.add.outer(np.arange(40) * 3, np.arange(40) * 2)[..., None].repeat(3, axis=2).astype(np.uint8)


def decode_one(data: bytes):
    decoded = PillowDecoder().decode([data])
    return decoded.images[0], decoded.outcomes[0]


def test_lossless_pixels_come_back():
    image, outcome = decode_one(encode(pixels(300, 9)))
    assert np.array_equal(image, pixels(300, 9))
    assert outcome.decoder == "pillow"
    assert outcome.reason is None


@pytest.mark.parametrize(
    ("format", "mode"),
    [("PNG", "L"), ("PNG", "P"), ("PNG", "RGBA"), ("PNG", "1"), ("JPEG", "L"), ("JPEG", "CMYK")],
)
def test_every_mode_becomes_rgb(format, mode):
    image, _ = decode_one(encode(PHOTO, format, mode))
    assert image.shape == (40, 40, 3)
    assert image.dtype == np.uint8
    # means of 8 x 8 pixels, since palettes and 1-bit images are dithered
    found, expected = (array.reshape(5, 8, 5, 8, 3).mean((1, 3)) for array in (image, PHOTO))
    assert np.abs(found - expected).max() <= 12


def test_sixteen_bit_grayscale_keeps_its_range():
    buffer = io.BytesIO()
    Image.fromarray(np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)).save(buffer, "PNG")
    image, _ = decode_one(buffer.getvalue())
    assert np.array_equal(image[..., 0].ravel(), np.arange(0, 256, 4))


def test_bad_images_have_a_reason_and_leave_the_others_alone():
    whole = encode(PHOTO, "JPEG")
    decoded = PillowDecoder().decode([b"", whole, whole[: len(whole) // 2], b"not an image", whole])
    assert [image is not None for image in decoded.images] == [False, True, False, False, True]
    assert [outcome.decoder for outcome in decoded.outcomes] == [None, "pillow", None, None, "pillow"]
    assert "0 bytes" in decoded.outcomes[0].reason
    assert "truncated" in decoded.outcomes[2].reason.lower()


def test_decompression_bomb_is_a_reason(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 40 // 2 - 1)
    image, outcome = decode_one(encode(PHOTO))
    assert image is None
    assert "DecompressionBombError" in outcome.reason


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["PNG", "JPEG", "GIF", "BMP"]))
def test_damaged_files_never_crash(data, format):
    damaged = bytearray(encode(PHOTO, format))
    for place, value in data.draw(
        st.dictionaries(st.integers(0, len(damaged) - 1), st.integers(0, 255))
    ).items():
        damaged[place] = value
    image, outcome = decode_one(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    assert (image is None) == (outcome.reason is not None)
    if image is not None:
        assert image.dtype == np.uint8
        assert image.shape[2] == 3


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_keep_the_contract(name):
    decoder = load("decoder", name)()
    decoded = decoder.decode([encode(PHOTO), b"", encode(pixels(1, 8), mode="L")])
    assert decoder.name == name
    assert name in decoder.version()
    assert decoded.images[0].shape == (40, 40, 3)
    assert decoded.images[1] is None
    assert decoded.images[2].shape == (8, 8, 3)
    assert decoder.decode([]).images == []
