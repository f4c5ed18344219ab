"""Normalised images of a cell's dataset, from the cell's own loader."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from gpufeed.core.cells import Cell
from gpufeed.datasets.manifest import Manifest
from gpufeed.loaders.base import LoadRequest, make_loader
from gpufeed.training.runtime_context import Stores, load_request, make_augment

Pair = tuple[torch.Tensor, torch.Tensor]


def requested(cell: Cell, samples: Manifest, stores: Stores, device: torch.device, batch: int) -> LoadRequest:
    """Return the request for batches of this size of the training split."""
    normalise = make_augment("none", cell, samples, cell.seed)
    return load_request(replace(cell, batch_size=batch), samples, stores, device, cell.seed, normalise)


@contextmanager
def opened(cell: Cell, request: LoadRequest) -> Iterator[Iterator[Pair]]:
    """Yield the batches of one epoch.

    Images are float32 (N, 3, H, W), contiguous, and labels int64 (N,), both on the device.
    """
    normalise = make_augment("none", cell, request.manifest, request.seed)
    with make_loader(cell.loader, request) as loader:
        yield (
            (normalise(batch.images, batch.ids, 0).float().contiguous(), batch.labels.clone())
            for batch in loader
        )


def for_evaluation(request: LoadRequest) -> LoadRequest:
    """Return the request for the evaluation split, in the order of the manifest."""
    return replace(request, split=request.manifest.info.evaluation_split, shuffle=False)


def first(cell: Cell, request: LoadRequest, n: int) -> torch.Tensor:
    """Return the first n images, float32 (n, 3, H, W), repeated from the start if there are fewer."""
    found: list[torch.Tensor] = []
    with opened(cell, request) as batches:
        for images, _ in batches:
            found.append(images)
            if sum(map(len, found)) >= n:
                break
    images = torch.cat(found)
    return images.repeat(-(-n // len(images)), 1, 1, 1)[:n]
