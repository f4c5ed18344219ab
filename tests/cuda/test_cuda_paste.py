"""The code to paste on a GPU: each script runs alone there, and its pixels are the library's."""

import numpy as np
import pytest
import torch
from paste_fixtures import MEAN, STD, cell, check, lacks, run, write_photos

pytestmark = pytest.mark.slow

RECIPE = {"size": 32, "short_side": 40}
# how far whole images may be from Pillow's, largest and mean: decoders/device_decoder.py, torchvision_cuda.py
EXACT, NVJPEG, REPEATS_CHROMA, FFMPEG, ENCODED_AGAIN = (0.51, 0.01), (16, 1.5), (160, 12), (160, 12), (60, 6)
ON_GPU = {"device": "cuda"}
# group: packages that it needs, tolerance, loaders with their settings
GROUPS = {
    "dataloader": (
        (),
        EXACT,
        cell("dataloader_sync", **ON_GPU),
        cell("dataloader_workers", "torch", RECIPE, workers=2, options={"dtype": "bfloat16"}, **ON_GPU),
        cell("dataloader_workers", "cpu", workers=2, persistent_workers=True, pin_memory=False, **ON_GPU),
    ),
    "dataloader by torchcodec": (
        ("torchcodec",),
        EXACT,
        cell("dataloader_workers", workers=1, decoder="torchcodec_cpu", **ON_GPU),
    ),
    "fastai": (
        ("fastai",),
        EXACT,
        cell("fastai", workers=1, **ON_GPU),
        cell("fastai", "torch", RECIPE, workers=2, **ON_GPU),
    ),
    "webdataset": (
        ("webdataset",),
        EXACT,
        cell("webdataset", workers=2, **ON_GPU),
        cell("webdataset_resampled", "torch", workers=2, persistent_workers=True, **ON_GPU),
    ),
    "spdl": (
        ("spdl.io",),
        FFMPEG,
        cell("spdl", workers=2, **ON_GPU),
        cell("spdl", "torch", RECIPE, workers=2, persistent_workers=True, **ON_GPU),
        cell("spdl_processes", "torch", RECIPE, workers=2, persistent_workers=True, **ON_GPU),
    ),
    "ffcv": (("ffcv",), ENCODED_AGAIN, cell("ffcv", workers=1, **ON_GPU)),
    "dali_cpu": (
        ("nvidia.dali",),
        EXACT,
        cell("dali_cpu", **ON_GPU),
        cell("dali_cpu", "torch", RECIPE, **ON_GPU),
        cell("dali_cpu_reader", "torch", RECIPE, **ON_GPU),
    ),
    "dali_gpu": (
        ("nvidia.dali",),
        NVJPEG,
        cell("dali_gpu", **ON_GPU),
        cell("dali_gpu", "dali", **ON_GPU),
        cell("dali_gpu", "torch", RECIPE, hw_decoder_load=0.65, **ON_GPU),
        cell("dali_gpu_reader", hw_decoder_load=0.0, **ON_GPU),
        cell("dali_gpu_reader", "none", RECIPE, channels_last=False, **ON_GPU),
    ),
    "torchvision_cuda": (
        (),
        REPEATS_CHROMA,
        cell("torchvision_cuda", **ON_GPU),
        cell("torchvision_cuda", "torch", RECIPE, **ON_GPU),
    ),
    "torchcodec_cuda": (
        ("torchcodec",),
        REPEATS_CHROMA,
        cell("torchcodec_cuda", **ON_GPU),
        cell("torchcodec_cuda", "torch", RECIPE, **ON_GPU),
    ),
    "nvimgcodec": (
        ("nvidia.nvimgcodec",),
        NVJPEG,
        cell("nvimgcodec", **ON_GPU),
        cell("nvimgcodec", "torch", RECIPE, **ON_GPU),
    ),
    "gpufeed": (
        (),
        EXACT,
        *(
            cell(name, **ON_GPU)
            for name in ("overlap", "resident", "host_cache", "resident_jpeg", "cuda_jpeg")
        ),
        *(
            cell(name, "torch", RECIPE, **ON_GPU)
            for name in ("overlap", "resident", "host_cache", "cuda_jpeg")
        ),
        cell("resident", "fused", RECIPE, options={"brightness": 0.2, "dtype": "bfloat16"}, **ON_GPU),
    ),
    "strips": (("nvidia.nvimgcodec",), (140, 4), cell("strips", **ON_GPU), cell("strips", "torch", **ON_GPU)),
    "our kernels behind a library": (
        (),
        EXACT,
        cell("dataloader_sync", "fused", options={"brightness": 0.2, "dtype": "bfloat16"}, **ON_GPU),
    ),
}
OWN = ("gpufeed", "strips", "our kernels behind a library")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paste") / "photos"
    return folder, write_photos(folder)


# first: where nobody has built the extension, this does, and scripts find it on the disk
def test_decode_jpegs_gives_libjpegs_pixels_on_the_gpu(photos):
    from gpufeed import decode_jpegs

    folder, pixels = photos
    files = [path.read_bytes() for path in sorted(folder.glob("*/*.jpg"))]
    images = decode_jpegs(files)
    assert len(images) == len(pixels)
    for label, image in enumerate(images):
        assert image.device.type == "cuda"
        assert np.array_equal(image.cpu().numpy().transpose(2, 0, 1), pixels[label])


def test_batch_augment_by_one_kernel_is_the_reference(photos):
    from gpufeed import batch_augment

    _, pixels = photos
    images = torch.from_numpy(np.stack(list(pixels.values()))).cuda()
    options = {"brightness": 0.2, "crop_padding": 2}
    reference, fused = (batch_augment(name, seed=3, options=options)(images) for name in ("torch", "fused"))
    assert fused.shape == images.shape
    assert (reference - fused).abs().max() < 1e-3
    values = fused.cpu().numpy() * STD + MEAN
    assert -0.001 < values.min() < values.max() < 1.001


def test_bias_gelu_on_the_gpu():
    from gpufeed import bias_gelu

    x, bias = torch.randn(64, 48, device="cuda"), torch.randn(48, device="cuda")
    assert torch.allclose(bias_gelu(x, bias), torch.nn.functional.gelu(x + bias), atol=1e-5)


@pytest.mark.parametrize("group", GROUPS)
def test_pasted_code_runs_alone_on_the_gpu(group, photos, tmp_path):
    (folder, pixels), (packages, tolerance, *cells) = photos, GROUPS[group]
    for package in packages:
        if sentence := lacks(package):
            pytest.skip(sentence)
    for of, batches in zip(cells, run(tmp_path / "run", folder, cells, group in OWN), strict=True):
        check(batches, of, pixels, *tolerance)
