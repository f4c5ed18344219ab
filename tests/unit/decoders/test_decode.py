import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile_fixtures import available, hostile_files, photo, saved
from hypothesis import given
from hypothesis import strategies as st
from image_fixtures import encode, pixels
from photo_fixtures import of_many_sizes
from PIL import Image, ImageCms

from gpufeed.core.errors import Skip
from gpufeed.core.registry import DECODERS, load
from gpufeed.decoders.base import Tolerance
from gpufeed.decoders.dali_gpu import share_of_engines, size_for_engines
from gpufeed.decoders.encoded_file import mean_size
from gpufeed.decoders.fallback import Refused, isolate
from gpufeed.decoders.image_transfer import split, to_host, together
from gpufeed.decoders.pillow import PillowDecoder

PHOTO = np.add.outer(np.arange(40) * 3, np.arange(40) * 2)[..., None].repeat(3, axis=2).astype(np.uint8)

# those of Pillow's manual, Concepts: Modes; I;16 stands for its three byte orders
MODES = (
    "1",
    "L",
    "LA",
    "La",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "RGBa",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "I;16",
)


def decode_one(data: bytes):
    decoded = PillowDecoder().decode([data])
    return decoded.images[0], decoded.outcomes[0]


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


@pytest.mark.parametrize(
    ("kilobytes", "engines", "used"),
    [
        (2, 7, False),
        (24, 7, False),
        (86, 7, True),
        (86, None, True),
        (110, 0, False),
        (2, None, False),
        (0, 7, False),
    ],
)
def test_dali_uses_the_jpeg_engines_for_large_files_where_there_are_some(kilobytes, engines, used):
    share = share_of_engines(1000 * kilobytes, engines)
    assert 0 <= share <= 1
    assert (share > 0) == used


def test_the_first_files_tell_whether_engines_are_for_them():
    small, large = saved("JPEG", photo(20, 30)), saved("JPEG", photo(60, 50))
    assert size_for_engines([small, large, b"no image"]) == (len(small) + len(large)) / 2
    assert size_for_engines([large, hostile_files()["gray JPEG with factors 2x2"].data]) == 0
    assert size_for_engines([b"no image"]) is None


def test_the_mean_size_of_files_is_of_some_of_them_all_along_the_list(tmp_path):
    paths = [str(tmp_path / str(number)) for number in range(1000)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(bytes(number))
    assert mean_size(paths) == pytest.approx(499.5, abs=2)
    assert mean_size([*paths[10:12], str(tmp_path / "gone")]) == 10.5
    assert mean_size([]) == 0


def in_mode(mode: str, ramp: np.ndarray) -> Image.Image:
    """A ramp of grays, uint8 (H, W), as an image of this mode; 16 bits and more have values up to 65,535."""
    wide = {"I": np.int32, "F": np.float32, "I;16": np.uint16}
    if mode in wide:
        return Image.fromarray(ramp.astype(wide[mode]) * 257)
    if mode == "LAB":
        srgb, lab = (ImageCms.createProfile(name) for name in ("sRGB", "LAB"))
        return ImageCms.profileToProfile(Image.fromarray(ramp).convert("RGB"), srgb, lab, outputMode="LAB")
    by_way_of = {"La": "LA", "PA": "P", "RGBa": "RGBA"}.get(mode, "RGB")
    return Image.fromarray(ramp).convert(by_way_of).convert(mode)


@pytest.mark.parametrize("format", ["TIFF", "PNG", "PPM", "BMP", "JPEG2000"])
def test_every_mode_of_a_file_is_right_or_has_a_reason(format):
    ramp = np.linspace(0, 255, 64).round().astype(np.uint8).reshape(8, 8)
    refused = {}
    for mode in MODES:
        try:
            data = saved(format, in_mode(mode, ramp))
        except (OSError, ValueError, KeyError):  # Pillow writes no such file
            continue
        image, outcome = decode_one(data)
        if image is None:
            refused[mode] = outcome.reason
            continue
        tolerance = {"1": 255, "LAB": 3, "YCbCr": 2, "P": 40, "PA": 40}.get(mode, 1)  # 1 and P are dithered
        assert np.abs(image - ramp[..., None].astype(int)).max() <= tolerance, mode
    assert set(refused) == {"TIFF": {"I", "F"}, "PPM": {"I", "F", "I;16"}}.get(format, set())
    assert all("which values are black" in reason for reason in refused.values())


def test_decompression_bomb_is_a_reason(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 40 // 2 - 1)
    image, outcome = decode_one(encode(PHOTO))
    assert image is None
    assert "DecompressionBombError" in outcome.reason


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_keep_the_contract(name):
    decoder = available(name)
    decoded = decoder.decode([encode(PHOTO), b"", encode(pixels(1, 8), mode="L")])
    assert decoder.name == name
    assert decoder.version().startswith(f"{name} ")
    assert decoder.version()[-1].isalnum()
    assert decoded.images[0].shape == (40, 40, 3)
    assert decoded.images[1] is None
    assert decoded.images[2].shape == (8, 8, 3)
    assert decoder.decode([]).images == []


@pytest.mark.parametrize("name", DECODERS)
def test_device_form_is_the_host_form(name):
    decoder, files = available(name), [encode(PHOTO, "JPEG"), b"", encode(pixels(1, 8))]
    host, device = decoder.decode(files), decoder.decode_to(files, torch.device("cpu"))
    assert device.outcomes == host.outcomes
    assert device.images[1] is None
    for place in (0, 2):
        tensor = device.images[place]
        assert tensor.dtype == torch.uint8
        assert tensor.is_contiguous()
        assert np.array_equal(tensor.numpy(), host.images[place])
    assert decoder.decode_to([], torch.device("cpu")).images == []


@pytest.mark.parametrize("name", DECODERS)
def test_a_batch_of_any_sizes_is_decoded_in_order_around_a_broken_file(name):
    decoder, files = available(name), of_many_sizes()
    files.insert(4, hostile_files()["overwritten PNG"].data)
    files.insert(7, hostile_files()["GIF"].data)  # for Pillow, whoever decodes the others
    right = PillowDecoder().decode(files).images
    for found in (decoder.decode(files), decoder.decode_to(files, torch.device("cpu"))):
        assert [outcome.decoder for outcome in found.outcomes if outcome.decoder != name][:1] == [None]
        assert found.outcomes[7].decoder == "pillow"
        for place, (image, expected) in enumerate(zip(found.images, right, strict=True)):
            assert (image is None) == (expected is None) == (place == 4)
            if image is not None:
                assert decoder.tolerance.exceeded(np.asarray(image), expected) is None, place


@given(st.integers(1, 40), st.sets(st.integers(0, 39)))
def test_files_that_a_library_refuses_are_found_by_halves(count, bad):
    calls = []

    def decode(files):
        calls.append(len(files))
        if bad.intersection(files):
            raise Refused
        return list(files)

    assert isolate(decode, list(range(count))) == [None if i in bad else i for i in range(count)]
    spoilt = len(bad.intersection(range(count)))
    assert len(calls) <= 1 + 2 * spoilt * math.ceil(math.log2(count) if count > 1 else 0)


@pytest.mark.parametrize("planes", [False, True])
def test_images_are_put_together_in_one_piece_of_memory(planes):
    """planes: as torchvision gives images, a channel after the other."""
    right = [None, *(photo(*size) for size in ((1, 1), (7, 300), (40, 9))), None]
    given = [None if image is None else torch.from_numpy(image) for image in right]
    if planes:
        given = [None if g is None else g.permute(2, 0, 1).contiguous().permute(1, 2, 0) for g in given]
    found = together(given)
    assert [image is None for image in found] == [True, False, False, False, True]
    images = found[1:4]
    assert len({image.untyped_storage().data_ptr() for image in images}) == 1
    assert all(image.is_contiguous() for image in images)
    assert all(np.array_equal(image, photo) for image, photo in zip(images, right[1:4], strict=True))
    assert together([None]) == [None]
    pairs = zip(to_host(given), right, strict=True)
    assert all(image is expected is None or np.array_equal(image, expected) for image, expected in pairs)


@pytest.mark.parametrize("name", DECODERS)
def test_missing_package_is_a_sentence(name, monkeypatch):
    decoder = load("decoder", name)
    for module, package in decoder.needs.items():
        with monkeypatch.context() as node:
            node.setitem(sys.modules, module, None)  # as if it were not installed
            with pytest.raises(Skip, match=f"Decoder {name} needs the package {package}"):
                decoder()
    assert (name == "pillow") == (not decoder.needs)


@pytest.mark.parametrize("name", ["torchvision_cuda", "dali_gpu", "nvimgcodec", "cuda_jpeg"])
def test_missing_gpu_is_a_sentence(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Skip, match=f"Decoder {name} needs a CUDA GPU"):
        load("decoder", name)()


@pytest.mark.parametrize("name", DECODERS)
def test_tolerances_let_no_wrong_image_pass(name):
    tolerance, right = load("decoder", name).tolerance, photo(64, 64)
    assert tolerance.exceeded(right, right) is None
    wrong = {
        "BGR": right[..., ::-1],
        "turned": right.transpose(1, 0, 2),
        "upside down": right[::-1],
        "eight rows down": np.roll(right, 8, axis=0),
        "gray": right.mean(2, keepdims=True).astype(np.uint8).repeat(3, 2),
        "cut": right[:-1],
        "other type": right.astype(np.int16),
    }
    passed = [what for what, image in wrong.items() if tolerance.exceeded(image, right) is None]
    assert passed == []


@given(st.lists(st.none() | st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=6))
def test_images_of_several_sizes_cross_whole(sizes):
    images = [None if size is None else pixels(i, 5)[: size[0], : size[1]] for i, size in enumerate(sizes)]
    tensors = [None if image is None else torch.from_numpy(image.copy()) for image in images]
    for there in (to_host(tensors), list(split_again(images))):
        assert [image is None for image in there] == [image is None for image in images]
        assert all(np.array_equal(a, b) for a, b in zip(there, images, strict=True) if b is not None)


def split_again(images):
    """The images through `split`, the half of to_device that needs no device."""
    present = [image for image in images if image is not None]
    pieces = split(
        np.concatenate([np.empty(0, np.uint8), *(i.ravel() for i in present)]), [i.shape for i in present]
    )
    return (None if image is None else next(pieces) for image in images)


def test_a_mean_just_beyond_the_tolerance_is_given_with_its_digits():
    expected = np.zeros((32, 32, 3), np.uint8)
    found = np.ones((32, 32, 3), np.uint8)
    found[0, 0, 0] += 10  # a mean of 3082 / 3072
    assert "1.003" in Tolerance(16, 1.0).exceeded(found, expected)
    assert Tolerance(16, 1.5).exceeded(found, expected) is None
