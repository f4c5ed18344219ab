"""Images of any sizes in one buffer."""

import numpy as np
import torch
from window_fixtures import picture

from gpufeed.decoders.ragged import Ragged

SIZES = [(3, 5), (1, 1), (7, 2)]


def test_images_come_back_in_any_order_and_share_memory():
    images = [torch.from_numpy(picture(*size, seed)) for seed, size in enumerate(SIZES)]
    ragged = Ragged.pack(images)
    assert len(ragged) == 3
    for view, image in zip(ragged.views(), images, strict=True):
        assert torch.equal(view, image)
    chosen = ragged.select(torch.tensor([2, 0, 2]))
    assert [tuple(view.shape) for view in chosen.views()] == [(7, 2, 3), (3, 5, 3), (7, 2, 3)]
    chosen.views()[1][0, 0, 0] = 77
    assert ragged.flat[0] == 77


def test_planes_are_seen_as_pixels():
    image = picture(4, 6, 1)
    flat = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)).reshape(-1))
    ragged = Ragged(flat, torch.tensor([0]), torch.tensor([4]), torch.tensor([6]), planar=True)
    assert np.array_equal(ragged.views()[0].numpy(), image)


def test_images_of_one_size_are_one_view():
    images = [torch.from_numpy(picture(3, 5, seed)) for seed in range(3)]
    ragged = Ragged.pack(images)
    assert torch.equal(ragged.stacked(), torch.stack(images))
    assert ragged.stacked().data_ptr() == ragged.flat.data_ptr()
    assert torch.equal(ragged.select(torch.tensor([0, 2])).stacked(), torch.stack(images[::2]))
    assert torch.equal(ragged.select(torch.tensor([1])).stacked(), images[1][None])
    for rows in ([2, 0], [0, 2, 1], []):
        assert ragged.select(torch.tensor(rows, dtype=torch.int64)).stacked() is None
    assert Ragged.pack([images[0], torch.from_numpy(picture(5, 3, 0))]).stacked() is None
