"""Windows are read off crops of images whose colours are their coordinates."""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from simplejpeg import decode_jpeg

from gpufeed.benchmarks.equivalence.window_check import coordinate_image, coordinate_jpeg, read_windows


def crop(picture: Image.Image, window: tuple[int, int, int, int], size: int, flip: bool) -> np.ndarray:
    """The window (top, left, height, width) as a loader gives it, uint8 (size, size, 3)."""
    top, left, height, width = window
    cut = picture.crop((left, top, left + width, top + height))
    image = np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR))
    return image[:, ::-1] if flip else image


def errors(picture: Image.Image, windows: list, flips: list[bool], size: int) -> np.ndarray:
    """Pixels of the image by which top, left, height and width were read wrong, (n, 4)."""
    asked = zip(windows, flips, strict=True)
    found = read_windows(np.stack([crop(picture, window, size, flip) for window, flip in asked]))
    assert found.flip.tolist() == flips
    edges = np.stack([found.top, found.left, found.height, found.width], axis=1)
    return edges * (picture.height, picture.width, picture.height, picture.width) - windows


@settings(max_examples=30)
@given(st.data(), st.integers(256, 1024), st.integers(256, 1024), st.sampled_from([64, 160, 224]))
def test_any_window_is_read_to_a_pixel(data, height, width, size):
    picture = Image.open(io.BytesIO(coordinate_jpeg(height, width)))
    tall, wide = data.draw(st.integers(64, height)), data.draw(st.integers(64, width))
    window = (data.draw(st.integers(0, height - tall)), data.draw(st.integers(0, width - wide)), tall, wide)
    assert np.abs(errors(picture, [window], [data.draw(st.booleans())], size)).max() < 1.5


def test_windows_are_read_to_a_fraction_of_a_pixel_in_the_mean():
    random, picture = np.random.default_rng(0), Image.open(io.BytesIO(coordinate_jpeg(375, 500)))
    sides = random.integers((80, 120), (376, 501), (100, 2))
    corners = random.integers(0, np.array((375, 500)) - sides + 1)
    wrong = errors(picture, np.hstack([corners, sides]).tolist(), (random.random(100) < 0.5).tolist(), 224)
    assert np.sqrt(np.square(wrong).mean(axis=0)).max() < 0.2
    assert np.abs(wrong.mean(axis=0)).max() < 0.05  # no bias


def test_a_decoder_that_makes_red_and_blue_darker_moves_no_window():
    buffer = io.BytesIO()
    Image.fromarray(coordinate_image(300, 320)).save(buffer, "JPEG", quality=90)
    fast = decode_jpeg(buffer.getvalue(), fastdct=True)
    darker = (fast.astype(float) - coordinate_image(300, 320)).mean(axis=(0, 1))
    assert darker[0] < -1 > darker[2]
    windows = [(top, left, 120, 140) for top in (0, 90, 180) for left in (0, 100, 180)]
    assert np.abs(errors(Image.fromarray(fast), windows, [False] * 9, 64)).max() < 0.4
