"""The data modules for a user's own script on a GPU: batches come there, whatever loader brings them."""

import pytest
import torch
from test_lightning_data import Tiny, fit

from gpufeed.core.errors import Skip
from gpufeed.core.registry import fetch


@pytest.mark.parametrize(
    ("loader", "augment"),
    [("resident", "torch"), ("resident", "fused"), ("dataloader_workers", "cpu"), ("dali_gpu", "dali")],
)
def test_a_fit_of_ones_own_trains_on_the_gpu(tmp_path, loader, augment):
    try:
        fetch("loader", loader)
        fetch("augment", augment)
    except Skip as skip:
        pytest.skip(str(skip))
    dm = Tiny(tmp_path / "data", batch_size=7, num_workers=2, loader=loader, augment=augment)
    module, _ = fit(tmp_path, dm, accelerator="gpu", devices=1)
    labels = sorted(dm.manifest.labels()[dm.manifest.ids("train")].tolist())
    for epoch in (0, 1):
        assert sorted(label for at, _, batch in module.seen if at == epoch for label in batch) == labels
    dm.setup()
    images, labels = next(iter(dm.train_dataloader()))
    assert (images.device.type, labels.device.type, images.dtype) == ("cuda", "cuda", torch.float32)
    assert images.shape == (7, 3, 16, 16)
    dm.teardown()
