"""A watched training is the unwatched one: losses equal bit by bit over 300 steps, whatever runs the loop."""

import json
import random

import pytest
import torch
import watch_fixtures as fixtures
from pytorch_lightning import LightningModule, Trainer
from torch import nn

STEPS, EPOCHS = 100, 3


pytestmark = pytest.mark.usefixtures("one_thread")


def check(watched, losses: list[float], unwatched: list[float], steps: int = STEPS) -> None:
    """The losses are the same, and there were bursts, those with a pause too: the machine may be busy."""
    assert losses == unwatched
    assert len(losses) == steps * EPOCHS
    watched.result()
    assert sum(one["kind"] == "compute_only" for one in watched.record.done) >= 2


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_a_plain_loop(tmp_path, accumulate, workers):
    unwatched = fixtures.train(fixtures.loader_of(STEPS, workers=workers), EPOCHS, accumulate)
    own = fixtures.loader_of(STEPS, workers=workers)
    watched = fixtures.watch(own, accumulate=accumulate, out=tmp_path / "watch.json")
    check(watched, fixtures.train(watched, EPOCHS, accumulate), unwatched)
    assert all(one["steps"] % accumulate == 0 for one in watched.record.done)
    assert json.loads((tmp_path / "watch.json").read_text())["steps"] == STEPS * EPOCHS


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = fixtures.model(), []

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimiser = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)
        return [optimiser], [torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100)]


def lightning_losses(loader, folder, accelerator: str = "cpu") -> list[float]:
    module = Module()
    torch.manual_seed(7)
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator=accelerator,
        devices=1,
        accumulate_grad_batches=2,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return module.losses


@pytest.mark.slow
def test_lightning(tmp_path):
    unwatched = lightning_losses(fixtures.loader_of(STEPS), tmp_path)
    watched = fixtures.watch(fixtures.loader_of(STEPS), accumulate=2)
    check(watched, lightning_losses(watched, tmp_path), unwatched)
    assert len(watched.result()["epoch_start_seconds"]) == EPOCHS


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_fastai(workers):
    import fastai.callback.progress
    import fastai.callback.schedule  # noqa: F401
    from fastai.callback.core import Callback
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner

    class Losses(Callback):
        def after_loss(self):
            if self.training:
                losses.append(self.loss.item())

    def trained(watch: bool) -> list:
        data = fixtures.samples(STEPS * 8)
        random.seed(9)  # fastai draws its order from Python's generator
        loaders = DataLoaders(
            DataLoader(data, bs=8, shuffle=True, num_workers=workers), DataLoader(fixtures.samples(16), bs=8)
        )
        if watch:
            loaders.loaders[0] = fixtures.watch(loaders.train)
        learner = Learner(loaders, fixtures.model(), loss_func=nn.CrossEntropyLoss(), cbs=[Losses()])
        losses.clear()
        with learner.no_bar(), learner.no_logging():
            learner.fit_one_cycle(EPOCHS, 0.01)
        return loaders.train

    losses: list[float] = []
    trained(watch=False)
    unwatched = list(losses)
    watched = trained(watch=True)
    check(watched, losses, unwatched)


@pytest.mark.slow
def test_accelerate():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not among the packages of the tests")

    def trained(watch: bool):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        net = fixtures.model()
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        # 98 steps are no multiple of 4: the last gradients of an epoch are applied earlier
        net, optimiser, loader = accelerator.prepare(net, optimiser, fixtures.loader_of(98))
        loader = fixtures.watch(loader, accumulate=4) if watch else loader
        losses = []
        torch.manual_seed(7)
        for _ in range(EPOCHS):
            for images, labels in loader:
                with accelerator.accumulate(net):
                    loss = nn.functional.cross_entropy(net(images), labels)
                    accelerator.backward(loss)
                    optimiser.step()
                    optimiser.zero_grad()
                losses.append(loss.item())
        return losses, loader

    unwatched, _ = trained(watch=False)
    losses, watched = trained(watch=True)
    check(watched, losses, unwatched, steps=98)
