"""What only a GPU shows of strips: its JPEG decoders take them, and each image has the pixels of its file."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from stream_fixtures import wrong_beside_a_busy_stream
from test_strips_set import dataset
from test_strips_write import files

from gpufeed.core.errors import Skip
from gpufeed.decoders.jpeg_parser import parse
from gpufeed.decoders.nvimgcodec_cpu import decode_streams
from gpufeed.decoders.pillow import rgb
from gpufeed.decoders.strip_joiner import join
from gpufeed.stores.strip_backends import backend_class
from gpufeed.stores.strips_build import build
from gpufeed.stores.strips_reader import StripReader
from gpufeed.stores.strips_store import Strip

DEVICE = torch.device("cuda", 0)
COUNT, SIDE = 256, 64  # 16,384 rows, the tallest strip that is built
CALLS = 300


@pytest.fixture(params=["nvimgcodec", "torchvision_cuda", "cpu"])
def backend(request):
    try:
        return backend_class(request.param)(DEVICE, 4)
    except Skip as skip:
        pytest.skip(str(skip))


def alone(backend, encoded: list[bytes]) -> np.ndarray:
    """The files by the same library, each alone: uint8 (N, H, W, 3)."""
    if backend.name == "cpu":
        return np.stack([rgb(data) for data in encoded])
    if backend.name == "torchvision_cuda":
        data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in encoded]
        torch.cuda.synchronize(DEVICE)  # sync point: the JPEG engine does not wait for the stream
        planes = backend.library.io.decode_jpeg(data, mode="RGB", device=DEVICE)  # each (3, H, W)
        return torch.stack(planes).permute(0, 2, 3, 1).cpu().numpy()
    images = decode_streams(backend.library, backend.codec, encoded)
    return torch.stack([torch.from_dlpack(image) for image in images]).cpu().numpy()


def strip_of(encoded: list[bytes]) -> tuple[np.ndarray, Strip]:
    jpegs = [parse(file) for file in encoded]
    kind, data = jpegs[0].kind, np.frombuffer(bytearray(join(jpegs)), np.uint8)
    ids = np.arange(len(encoded))
    return data, Strip(
        0, len(data), "train", kind.height, kind.width, len(kind.components), kind.sampling, ids
    )


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4", "grayscale"])
def test_images_of_a_strip_are_those_of_their_files(backend, subsampling):
    encoded = files(subsampling, COUNT, height=SIDE, width=SIDE)
    data, strip = strip_of(encoded)
    out = torch.empty(strip.shape, dtype=torch.uint8, device=DEVICE)
    if backend.decode_into([data], [strip], out):
        pytest.skip(f"{backend.version()} refuses strips of {subsampling} on this GPU")
    joined, by_file = out.cpu().numpy(), alone(backend, encoded)
    difference = np.abs(joined.astype(np.int16) - by_file)
    assert difference[:, 1:-1].max() == 0
    if subsampling != "4:2:0" or not backend.seams:
        assert difference.max() == 0
    for image, file in zip(joined, encoded, strict=True):
        reference = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
        assert backend.tolerance.exceeded(image, reference) is None


def test_reader_gives_every_sample_of_a_mixed_set(tmp_path, backend):
    kinds = ["colour"] * 70 + ["grayscale"] * 9 + ["444"] * 6 + ["png", "progressive", "colour"]
    manifest = dataset(tmp_path, kinds)
    build(manifest, tmp_path / "strips.bin", images_per_strip=16)
    reader = StripReader(manifest, tmp_path / "strips.bin", DEVICE, 4, backend.name)
    seen = []
    for ids, images in reader.batches("train", 3):
        assert images.device == DEVICE
        assert images.is_contiguous()
        for id, image in zip(ids, images.cpu().numpy(), strict=True):
            assert reader.backend.tolerance.exceeded(image, rgb(manifest.paths()[id].read_bytes())) is None
        seen += ids.tolist()
    assert sorted(seen) == list(range(len(kinds)))
    reader.close()


def test_a_damaged_strip_does_not_take_the_others_with_it(backend):
    good, strip = strip_of(files("4:2:0", 4, height=SIDE, width=SIDE))
    bad = np.zeros_like(good)  # no header that anybody could read
    out = torch.zeros((8, SIDE, SIDE, 3), dtype=torch.uint8, device=DEVICE)
    assert backend.decode_into([bad, good], [strip, strip], out) == [0]
    again = torch.zeros_like(out[:4])
    assert backend.decode_into([good], [strip], again) == []
    assert torch.equal(out[4:], again)


def test_many_calls_beside_a_busy_stream(backend):
    """Memory that queued kernels still read is not overwritten, and every image is whole when read."""
    data, strip = strip_of(files("4:2:0", 16, height=SIDE, width=SIDE))
    expected = torch.empty(strip.shape, dtype=torch.uint8, device=DEVICE)
    assert backend.decode_into([data], [strip], expected) == []

    def make() -> torch.Tensor:
        out = torch.empty_like(expected)
        backend.decode_into([data], [strip], out)
        return out

    assert wrong_beside_a_busy_stream(make, expected, CALLS) == 0
