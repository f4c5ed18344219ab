"""What GPUOnlyDataset hands out: values, types, and samples by their numbers."""

import numpy as np
import pytest
import torch
from gpu_only_fixtures import dataset, expected, normalised
from image_fixtures import MEAN, STD, pixels
from torch.utils.data import DataLoader

from gpufeed.decoders.pillow import resized


@pytest.mark.parametrize("image_size", [(5, 11), (20, 16), (8, 8)])
def test_images_are_stretched_as_pillow_does(manifest, image_size):
    data = dataset(manifest, image_size=image_size)
    for place, sample_id in enumerate(data.ids):
        right = torch.from_numpy(resized(pixels(sample_id, 8), image_size)).permute(2, 0, 1)
        assert torch.equal(data[place][0], right)


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-5)]
)
@pytest.mark.parametrize("normalise", [True, False])
def test_what_is_handed_out(manifest, dtype, within, normalise):
    data = dataset(manifest, dtype=dtype, normalise=normalise)
    mean, std = (MEAN, STD) if normalise else ((0.0,) * 3, (1.0,) * 3)
    right = torch.stack([normalised(expected(i), mean, std) for i in data.ids])
    (whole, labels), single = data[:], data[4][0]
    batches = torch.cat([images for images, _ in data.batches(5, shuffle=False)])
    for found in (whole, batches):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), right, atol=within, rtol=within)
    assert single.shape == (3, 8, 8)
    assert torch.equal(single, whole[4])
    assert labels.tolist() == manifest.labels()[data.ids].tolist()
    assert data.images.dtype == torch.uint8


def test_normalised_as_dali_does(manifest):
    """crop_mirror_normalize behind DALI's decoder, as the guide to GPU decoding has it."""
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import fn, types

    from gpufeed.decoders.dali_pipeline import DecodePipeline

    class Normalised:
        inputs = ()

        def part(self, values):
            return {}

        def graph(self, images, values):
            scaled = {"mean": [255 * mean for mean in MEAN], "std": [255 * std for std in STD]}
            return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", **scaled)

    data, paths = dataset(manifest, dtype=torch.float32), manifest.paths()
    out = torch.empty((len(data), 3, 8, 8))
    pipeline = DecodePipeline(None, 1, Normalised(), device="cpu")
    assert pipeline.fill([paths[i].read_bytes() for i in data.ids], out)
    torch.testing.assert_close(data[:][0], out, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "index",
    [
        slice(10, 20),
        slice(None),
        slice(20, 2, -3),
        slice(-4, None),
        slice(30, 40),
        slice(1, 9, 4),
        [3, -1, 3],
        np.array([22, 0]),
        torch.tensor([5, -23]),
        range(4, 0, -1),
        [],
    ],
)
def test_several_at_once(manifest, index):
    data = dataset(manifest)
    everyone = np.arange(23)
    chosen = data.ids[everyone[index if isinstance(index, slice) else np.array(list(index), int)]]
    images, labels = data[index]
    assert images.shape == (len(chosen), 3, 8, 8)
    assert labels.tolist() == manifest.labels()[chosen].tolist()
    assert all(torch.equal(image, expected(i)) for image, i in zip(images, chosen, strict=True))


@pytest.mark.parametrize("index", [23, -24, [0, 23], [-24], np.int64(1000)])
def test_numbers_out_of_range(manifest, index):
    with pytest.raises(IndexError):
        dataset(manifest)[index]


@pytest.mark.parametrize("index", [1.5, "3", [0.5], [True, False], None])
def test_what_is_no_number(manifest, index):
    with pytest.raises((TypeError, ValueError)):
        dataset(manifest)[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffling_dataloader_has_every_sample_once(manifest, workers):
    """With workers, too, while the images are on the host."""
    data = dataset(manifest, dtype=torch.float16, normalise=False)
    seen = []
    for images, labels in DataLoader(data, batch_size=5, shuffle=True, num_workers=workers):
        assert images.dtype == torch.float16
        ids = (images[:, 0, 0, 0].float() * 255).round().long().tolist()
        assert labels.tolist() == manifest.labels()[ids].tolist()
        assert torch.equal(images, data[np.searchsorted(data.ids, ids)][0])
        seen += ids
    assert sorted(seen) == data.ids.tolist()
