"""The trainer fastai: its steps beside those of trainer plain, its callbacks and its options."""

import pytest
import torch
from fastai.callback.core import Callback
from fastai_fixtures import FASTAI_OPTIONS, prepared, toy_job
from measure_fixtures import CLASSES
from test_trainer_contract import Watched
from torch import nn

from gpufeed.augment.reference import TorchAugment
from gpufeed.core.cells import Cell, impossible
from gpufeed.core.config import read_hyper
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.training.engines.fastai import FastaiTrainer
from gpufeed.training.engines.plain import PlainTrainer


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.1), ("adam", 0.01), ("adamw", 0.01)])
def test_it_learns_with_torchs_optimiser(tmp_path, optimiser, rate):
    options = {"optimiser": optimiser, "learning_rate": rate, "optimiser_of": "torch"}
    result = prepared(toy_job(tmp_path, options=options, epochs=25)).run()
    assert result.epochs[0]["train_loss"] > 0.7
    assert result.epochs[-1]["train_loss"] < 0.05


class AtTheEnd(Callback):
    """Keeps how many epochs the loader had ended when training of one was over."""

    order, run_valid = 101, False  # after StepRecorder, which closes the epoch

    def __init__(self, loader):
        super().__init__()
        self.loader, self.ended = loader, []

    def after_train(self):
        self.ended.append(self.loader.ended)


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_the_loaders_epoch_has_ended_before_its_results_are_read(tmp_path, steps):
    trainer = prepared(toy_job(tmp_path, loader=Watched, steps=steps))
    watch = AtTheEnd(trainer.job.loader)
    trainer.learner.add_cb(watch)
    result = trainer.run()
    assert watch.ended == list(range(1, len(result.epochs) + 1))


@pytest.mark.parametrize("event", ["after_pred", "after_batch"])
def test_an_error_in_a_callback_ends_the_loaders_epoch(tmp_path, event):
    def fail(self):
        raise OSError("the callback went away")

    trainer = prepared(toy_job(tmp_path, loader=Watched, epochs=2))
    trainer.learner.add_cb(type("Failing", (Callback,), {event: fail})())
    with pytest.raises(OSError, match="the callback went away"):
        trainer.run()
    assert trainer.job.loader.ended == 1


class Seen(nn.Module):
    """Keeps what the model got."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, CLASSES)
        self.inputs = []

    def forward(self, images):
        self.inputs.append(images.detach().clone())
        return self.head(images.mean((2, 3)))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_model_sees_the_pixels_that_it_sees_with_the_plain_trainer(tmp_path, channels_last):
    seen = {}
    for trainer in (PlainTrainer, FastaiTrainer):
        augment = TorchAugment((0.5,) * 3, (0.25,) * 3, 7, {"crop_padding": 2, "salt_pepper": 0.1})
        job = toy_job(tmp_path, model=Seen(), augment=augment, epochs=2, channels_last=channels_last)
        prepared(job, trainer).run()
        seen[trainer] = job.model.inputs
    plain, fastai = seen[PlainTrainer], seen[FastaiTrainer]
    assert len(plain) == len(fastai) == 8
    for one, other in zip(plain, fastai, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    assert not torch.equal(plain[0], plain[4])


def test_with_torchs_optimiser_it_takes_the_steps_of_the_plain_trainer(tmp_path):
    """The two schedules differ a little after the first step, and so do the losses."""
    options = {"optimiser_of": "torch", "optimiser": "sgd", "schedule": "one_cycle", "learning_rate": 0.01}
    plain = prepared(toy_job(tmp_path, options=options, epochs=2), PlainTrainer).run().steps
    fastai = prepared(toy_job(tmp_path, options=options, epochs=2)).run().steps
    assert fastai[0]["loss"] == pytest.approx(plain[0]["loss"], rel=1e-5)
    assert fastai[-1]["loss"] == pytest.approx(plain[-1]["loss"], rel=0.05)


class Rates(Callback):
    run_valid = False

    def __init__(self):
        super().__init__()
        self.rates, self.momenta = [], []

    def before_step(self):
        self.rates.append(self.opt.hypers[0]["lr"])
        self.momenta.append(self.opt.hypers[0]["mom"])


@pytest.mark.parametrize("length", [{"epochs": 3}, {"steps": 10}])
def test_one_cycle_rises_and_falls_over_the_whole_run(tmp_path, length):
    trainer = prepared(toy_job(tmp_path, options={"learning_rate": 0.01}, **length))
    watch = Rates()
    trainer.learner.add_cb(watch)
    trainer.run()
    top = watch.rates.index(max(watch.rates))
    assert 0.008 < watch.rates[top] <= 0.01
    assert watch.rates[0] == pytest.approx(0.01 / 25)
    assert watch.rates[:top] == sorted(watch.rates[:top])
    assert watch.rates[top:] == sorted(watch.rates[top:], reverse=True)
    assert watch.rates[-1] < 0.001
    assert set(watch.momenta) == {0.9}


@pytest.mark.parametrize("recorder", [True, False])
def test_the_recorder_is_there_if_asked_for(tmp_path, recorder):
    trainer = prepared(toy_job(tmp_path, options={"recorder": recorder}))
    assert hasattr(trainer.learner, "recorder") == recorder
    assert len(trainer.run().steps) == 4
    if recorder:
        assert len(trainer.learner.recorder.losses) == 4


def test_what_it_cannot_do_is_told(tmp_path):
    with pytest.raises(Skip, match="mixed precision on CUDA GPUs only, and this cell's device is cpu"):
        FastaiTrainer(toy_job(tmp_path, precision="bf16"))
    with pytest.raises(GpufeedError, match=r"trainer\.optimiser 'adma'"):
        prepared(toy_job(tmp_path, options={"optimiser": "adma"}))


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"trainer": "fastai", "cuda_graphs": True}, "trainer fastai calls Python between the parts"),
        ({"trainer": "fastai", "precision": "bf16", "device": "cpu"}, "trainer fastai has bf16 on CUDA"),
        ({"loader": "fastai", "workers": 2, "persistent_workers": True}, "fastai starts new workers"),
        ({"trainer": "fastai"}, None),
        ({"trainer": "fastai", "loader": "fastai", "workers": 2, "device": "cpu"}, None),
    ],
)
def test_the_planner_leaves_out_what_is_impossible(axes, sentence):
    found = impossible(Cell(**{"experiment": "e", "dataset": "d", "loader": "dataloader_sync", **axes}))
    assert found == sentence or found.startswith(sentence)


def test_a_cells_name_tells_its_trainer():
    cell = Cell("e", "d", "dataloader_sync", trainer="fastai")
    assert "-simple_cnn-fastai-auto-" in cell.id


def test_the_defaults_are_options_that_the_trainer_reads(tmp_path):
    assert set(read_hyper("trainer", "fastai")) == set(FASTAI_OPTIONS) - {"schedule"}
    result = prepared(toy_job(tmp_path, options=read_hyper("trainer", "fastai"))).run()
    assert len(result.steps) == 4
