"""What only a GPU shows of the trainer fastai: precisions, warm-up, kernels in batch_tfms, times, waits."""

import numpy as np
import pandas as pd
import pytest
import torch
from fastai_fixtures import FASTAI_OPTIONS
from image_fixtures import MEAN, STD, pixels

# what the tests of the plain trainer train on
from test_cuda_trainer import BATCH, CLASSES, IMAGES, SIDE, DeviceLoader, StrictLoader, augment, need

# These run again here, with the `device` fixture of this folder.
from test_fastai_transform import (  # noqa: F401
    dls,
    manifest,
    ordinary,
    test_an_ordinary_learner_augments_what_it_trains_on_and_nothing_else,
    test_interpretation_finds_what_was_wrong,
    test_predictions_are_in_the_order_of_the_items,
    test_showing_takes_no_batch_from_the_epoch_that_follows,
    test_what_was_exported_predicts_without_loader_and_data,
)
from torch import nn

from gpufeed.augment.fastai_transform import GPUPipelineTransform
from gpufeed.core.errors import Skip
from gpufeed.core.registry import fetch
from gpufeed.datasets.manifest import DatasetInfo, Manifest
from gpufeed.loaders.base import LoadRequest
from gpufeed.models.simple_cnn import SimpleCNN
from gpufeed.system.devices import apply_precision
from gpufeed.training.engines.base import TrainJob
from gpufeed.training.engines.fastai import FastaiTrainer
from gpufeed.training.engines.plain import PlainTrainer

OPTIONS = {**FASTAI_OPTIONS, "learning_rate": 3e-3, "schedule": "one_cycle"}


def new_model() -> SimpleCNN:
    torch.manual_seed(0)
    return SimpleCNN(CLASSES, channels=(16, 32), batch_norm=True)


def trainer(tmp_path, engine=FastaiTrainer, loader=DeviceLoader, model=None, options=None, **job):
    """A prepared trainer; fields of TrainJob by keyword."""
    device = torch.device("cuda", torch.cuda.current_device())
    columns = {"path": [f"{i}.png" for i in range(IMAGES)], "label": np.arange(IMAGES) % CLASSES}
    table = pd.DataFrame({**columns, "split": "train", "height": SIDE, "width": SIDE, "channels": 3})
    info = DatasetInfo("toy", "toy", list("abcd"), "test", (0.5,) * 3, (1.0,) * 3)
    source = loader(LoadRequest(Manifest(tmp_path, info, table), "train", BATCH, device))
    source.open()
    parts = {
        "model": (model or new_model()).to(device),
        "loader": source,
        "augment": augment,
        "device": device,
        "precision": "fp32",
        "options": {**OPTIONS, **(options or {})},
        "epochs": 4,
        **job,
    }
    apply_precision(parts["precision"])
    made = engine(TrainJob(**parts))
    made.prepare(torch.zeros((BATCH, SIDE, SIDE, 3), dtype=torch.uint8, device=device))
    return made


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize("of", ["fastai", "torch"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_every_precision_learns(tmp_path, precision, of, recorder):
    need(precision)
    options = {"optimiser_of": of, "recorder": recorder}
    made = trainer(tmp_path, precision=precision, options=options, epochs=12, channels_last=True)
    result = made.run()
    assert [epoch["images"] for epoch in result.epochs] == [IMAGES] * 12
    assert result.epochs[-1]["train_loss"] < 0.7 * result.epochs[0]["train_loss"]
    assert all(weight.dtype == torch.float32 for weight in made.job.model.parameters())


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_the_forward_pass_runs_in_the_precision_asked_for(tmp_path, precision, dtype):
    need(precision)
    seen = []
    made = trainer(tmp_path, precision=precision, epochs=1)
    made.job.model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    made.run()
    assert seen == [dtype] * 3


def test_preparing_leaves_weights_and_random_numbers_as_they_were(tmp_path):
    fresh = new_model().state_dict()
    expected = torch.rand(1, device="cuda").item(), torch.rand(1).item()
    made = trainer(tmp_path)
    found = torch.rand(1, device="cuda").item(), torch.rand(1).item()
    for name, tensor in made.job.model.state_dict().items():
        assert torch.equal(tensor.cpu(), fresh[name]), name
    assert all(weight.grad is None for weight in made.job.model.parameters())
    assert found == expected


class Seen(nn.Module):
    """Keeps what the model got in training."""

    def __init__(self):
        super().__init__()
        self.head, self.inputs = nn.Linear(3, CLASSES), []

    def forward(self, images):
        self.inputs.append(images.detach().clone())
        return self.head(images.float().mean((2, 3)))


@pytest.mark.parametrize("name", ["torch", "chain", "fused"])
def test_the_model_sees_the_pixels_that_it_sees_with_the_plain_trainer(tmp_path, name):
    seen = {}
    for engine in (PlainTrainer, FastaiTrainer):
        options = {"crop_padding": 2, "brightness": 0.3, "salt_pepper": 0.05}
        try:
            kernels = fetch("augment", name)((0.5,) * 3, (0.25,) * 3, 7, options)
        except Skip as skip:
            pytest.skip(str(skip))
        made = trainer(tmp_path, engine, model=Seen(), augment=kernels, epochs=2, channels_last=True)
        made.job.model.inputs.clear()  # of the warm-up
        made.run()
        seen[engine] = made.job.model.inputs
    plain, fastai = seen[PlainTrainer], seen[FastaiTrainer]
    assert len(plain) == len(fastai) == 6
    for one, other in zip(plain, fastai, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    assert not torch.equal(plain[0], plain[3])


@pytest.mark.parametrize("name", ["torch", "chain", "fused"])
def test_every_augment_runs_in_an_ordinary_learner(manifest, device, name):  # noqa: F811
    """With the pixels that it gives itself, in fastai's 0..1."""
    try:
        kernels = fetch("augment", name)(MEAN, STD, 7, {"crop_padding": 2, "brightness": 0.3})
    except Skip as skip:
        pytest.skip(str(skip))
    learner = ordinary(manifest, device, GPUPipelineTransform(augment=kernels))
    with learner.no_bar(), learner.no_logging():
        learner.fit(1)
    found = learner.model.images(True)
    whole = torch.stack([torch.from_numpy(pixels(i, 8)) for i in range(29)]).to(device)
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    for place, image in enumerate(found):
        key = torch.full((29,), place, device=device)  # which image it was is not known: one of them
        made = kernels(whole, key, 0) * std + mean
        assert (made - image).abs().amax((1, 2, 3)).min() < 1e-5
    assert len(found) == 20


@pytest.mark.parametrize("of", ["fastai", "torch"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_without_its_recorder_nothing_waits_inside_a_step(tmp_path, precision, of):
    need(precision)
    options = {"recorder": False, "optimiser_of": of}
    made = trainer(tmp_path, loader=StrictLoader, precision=precision, options=options)
    assert len(made.run().steps) == 4 * 3


@pytest.mark.parametrize("change", [{"options": {"recorder": True}}, {"precision": "fp16"}])
def test_with_it_and_with_fp16_every_step_waits(tmp_path, change):
    """Without this the test above could pass for nothing."""
    made = trainer(tmp_path, loader=StrictLoader, **{"options": {"recorder": False}, **change})
    with pytest.raises(RuntimeError, match="synchroniz"):
        made.run()
    assert torch.cuda.get_sync_debug_mode() == 0


@pytest.mark.alone
@pytest.mark.parametrize("synchronise", ["epoch", "step"])
def test_a_long_kernel_in_the_transform_counts_as_train(tmp_path, synchronise):
    def slow(images, ids, epoch):
        torch.cuda._sleep(20_000_000)  # about 10 ms at 2 GHz
        return augment(images, ids, epoch)

    result = trainer(tmp_path, augment=slow, synchronise=synchronise).run()
    assert all(row["train_ms"] > 5 > row["wait_ms"] for row in result.steps[1:] if row["step"] % 3)
    for epoch in result.epochs:
        total = sum(row["total_ms"] for row in result.steps if row["epoch"] == epoch["epoch"])
        assert total == pytest.approx(epoch["epoch_s"] * 1e3, rel=1e-3)
