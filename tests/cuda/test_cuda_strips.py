"""What only a GPU shows of strips: its JPEG decoders take them, and each image has the pixels of its file."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from test_strips_write import files

from gpufeed.decode.nvimgcodec_cpu import OPTIONS, decode_streams
from gpufeed.registry import load
from gpufeed.strips.parse import parse
from gpufeed.strips.write import join

DEVICE = torch.device("cuda", 0)
COUNT, SIDE = 256, 64  # 16,384 rows, the tallest strip that is built


def by_torchvision(encoded: list[bytes]) -> list[np.ndarray]:
    """uint8 (H, W, 3) each."""
    library = pytest.importorskip("torchvision.io", exc_type=ImportError)
    data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in encoded]
    torch.cuda.synchronize(DEVICE)  # sync point: the JPEG engine does not wait for the stream
    planes = library.decode_jpeg(data, mode="RGB", device=DEVICE)  # each (3, H, W)
    torch.cuda.synchronize(DEVICE)
    return [image.permute(1, 2, 0).cpu().numpy() for image in planes]


def by_nvimgcodec(encoded: list[bytes]) -> list[np.ndarray]:
    """The JPEG engine alone. uint8 (H, W, 3) each."""
    library = pytest.importorskip("nvidia.nvimgcodec", exc_type=ImportError)
    engine = library.Backend(library.HW_GPU_ONLY, load_hint=1.0)
    codec = library.Decoder(device_id=DEVICE.index, backends=[engine], options=OPTIONS)
    images = decode_streams(library, codec, encoded)
    if all(image is None for image in images):
        pytest.skip(
            "this GPU's JPEG engine decodes none of these files: it has none, or lacks their sampling"
        )
    assert all(image is not None for image in images)
    copies = [torch.from_dlpack(image).clone() for image in images]
    torch.cuda.synchronize(DEVICE)
    return [image.cpu().numpy() for image in copies]


@pytest.mark.parametrize(
    ("decode", "name"), [(by_torchvision, "torchvision_cuda"), (by_nvimgcodec, "nvimgcodec")]
)
@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4", "grayscale"])
def test_images_of_a_strip_are_those_of_their_files(decode, name, subsampling):
    encoded = files(subsampling, COUNT, height=SIDE, width=SIDE)
    alone = np.stack(decode(encoded))  # (N, H, W, 3)
    (tall,) = decode([join([parse(file) for file in encoded])])
    assert tall.shape == (COUNT * SIDE, SIDE, 3)
    joined = tall.reshape(alone.shape)
    difference = np.abs(joined.astype(np.int16) - alone)
    assert difference[:, 1:-1].max() == 0
    if subsampling != "4:2:0":  # colour is smoothed over a seam only where it is halved vertically
        assert difference.max() == 0
    tolerance = load("decoder", name).tolerance
    for image, file in zip(joined, encoded, strict=True):
        reference = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
        assert tolerance.exceeded(image[1:-1], reference[1:-1]) is None
