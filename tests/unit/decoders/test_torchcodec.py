"""torchcodec's decoders without torchcodec, whose packages want CUDA 13: its call is played by Pillow."""

import io
import sys
import types

import numpy as np
import pytest
import torch
from hostile_fixtures import photo, saved, textured
from PIL import Image, ImageOps

from gpufeed.core.errors import Skip
from gpufeed.core.registry import load
from gpufeed.decoders import device_decoder
from gpufeed.decoders.encoded_file import without_exif
from gpufeed.decoders.pillow import rgb

TURNS = range(1, 9)
REFUSED = b"not by this library"
NAMES = ("torchcodec_cpu", "torchcodec_cuda")


def turned(turn: int, image: np.ndarray | None = None) -> bytes:
    """A JPEG that asks to be shown in one of Exif's orientations."""
    exif = Image.Exif()
    exif[0x0112] = turn
    return saved("JPEG", textured() if image is None else image, exif=exif)


def decode_jpeg(source, *, mode="RGB", device="cpu"):
    """As torchcodec 0.17: (3, H, W) as Exif data says, of bytes or tensors; all fail with one bad file."""
    if isinstance(source, list):
        return [decode_jpeg(one, mode=mode, device=device) for one in source]
    data = source if isinstance(source, bytes) else bytes(source.numpy())
    if REFUSED in data:
        raise RuntimeError("a file that the library refuses")
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.fixture
def torchcodec(monkeypatch):
    """Puts a torchcodec into this process, and a GPU that is the CPU."""
    module = types.ModuleType("torchcodec")
    module.__version__, module.decoders = "0.17.0", types.SimpleNamespace(decode_jpeg=decode_jpeg)
    monkeypatch.setitem(sys.modules, "torchcodec", module)
    monkeypatch.setattr(device_decoder, "current_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(synchronize=int))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_images_lie_as_they_are_stored_and_one_bad_file_harms_no_other(torchcodec, name):
    square = [turned(turn, photo(40, 40)) for turn in TURNS]  # turned by 90 degrees, it has the same size
    refused, gray = saved("JPEG", comment=REFUSED), saved("JPEG", Image.fromarray(photo()).convert("L"))
    files = [*map(turned, TURNS), *square, refused, gray, b""]
    decoded = load("decoder", name)().decode_to(files, torch.device("cpu"))
    by = [outcome.decoder for outcome in decoded.outcomes]
    assert by == [name] * 16 + ["pillow", name, None]
    for data, image in zip(files, decoded.images, strict=True):
        if image is not None:
            assert np.array_equal(image.numpy(), rgb(data))


def test_version_is_that_of_torchcodec(torchcodec):
    assert [load("decoder", name)().version() for name in NAMES] == [f"{name} 0.17.0" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_built_for_another_torch_is_a_sentence(name, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torchcodec", raising=False)
    (tmp_path / "torchcodec.py").write_text("raise OSError('Could not load this library: libnvrtc.so.13')")
    monkeypatch.syspath_prepend(tmp_path)
    said = rf"^Decoder {name} needs the package torchcodec of the CUDA 13 stack, .*libnvrtc\.so\.13\).*cuda13"
    with pytest.raises(Skip, match=said):
        load("decoder", name)()


def test_exif_data_is_hidden_and_nothing_else_changes():
    for turn in TURNS:
        data = turned(turn)
        hidden = without_exif(data)
        assert Image.open(io.BytesIO(data)).getexif()
        assert not Image.open(io.BytesIO(hidden)).getexif()
        assert np.array_equal(rgb(hidden), rgb(data))
        assert sum(a != b for a, b in zip(data, hidden, strict=True)) == 1
        filled = data[:2] + b"\xff\xff" + data[2:]  # bytes that may stand before a marker
        assert without_exif(filled) == filled[:4] + hidden[2:]
    plain = saved("JPEG", comment=b"Exif\0\0 in a comment")
    assert without_exif(plain) == plain
    assert without_exif(plain[:20]) == plain[:20]
