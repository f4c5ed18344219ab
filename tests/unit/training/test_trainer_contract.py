"""What every trainer of the registry must do with the same job; each runs on the toys of measure_fixtures."""

import inspect
import time

import measure_fixtures as toys
import pytest
import torch
from measure_fixtures import CLASSES, LossyLoader, NaNModel, SlowLoader, SlowModel, ToyLoader
from torch import nn

from gpufeed.core.config import read_hyper
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import TRAINERS, fetch
from gpufeed.system.timing import warmup
from gpufeed.training import recorder
from gpufeed.training.engines.base import Trainer

SMALL = (8, 16)


@pytest.fixture(params=TRAINERS)
def trainer(request, tmp_path):
    """(fields of a toy job) -> a prepared trainer of one name of the registry, with its own options."""

    def make(*parts, options=None, **job) -> Trainer:
        wanted = {**read_hyper("trainer", request.param), **toys.OPTIONS, **(options or {})}
        known = {key: value for key, value in wanted.items() if key in read_hyper("trainer", request.param)}
        return toys.prepared(
            toys.toy_job(tmp_path, *parts, options=known, **job), fetch("trainer", request.param)
        )

    return make


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.1), ("adam", 0.01), ("adamw", 0.01)])
def test_it_learns(trainer, optimiser, rate):
    result = trainer(options={"optimiser": optimiser, "learning_rate": rate}, epochs=25).run()
    assert result.epochs[0]["train_loss"] > 0.7
    assert result.epochs[-1]["train_loss"] < 0.05


def test_rows_and_epochs_agree(trainer):
    toys.check_rows_and_epochs(trainer(epochs=3).run())


class Watched(ToyLoader):
    """Counts the epochs that were closed: nothing else ends their generators, which are kept here."""

    def __init__(self, request):
        super().__init__(request)
        self.held, self.ended = [], 0

    def batches(self, order):
        self.held.append(self.noted(order))
        return self.held[-1]

    def noted(self, order):
        try:
            yield from super().batches(order)
        finally:
            self.ended += 1


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 9])
def test_it_stops_after_the_steps_asked_for_and_closes_the_loader(trainer, steps):
    made = trainer(loader=Watched, steps=steps)
    result = made.run()
    assert len(result.steps) == steps == sum(epoch["steps"] for epoch in result.epochs)
    assert [epoch["steps"] for epoch in result.epochs[:-1]] == [4] * (len(result.epochs) - 1)
    assert made.job.loader.ended == len(result.epochs)


@pytest.mark.parametrize("synchronise", ["epoch", "step"])
def test_a_slow_loader_is_load_and_wait(trainer, monkeypatch, synchronise):
    made = trainer(loader=SlowLoader, synchronise=synchronise)
    toys.Clock(monkeypatch)
    result = made.run()
    for row in result.steps:
        times = {name: row[name] for name in ("load_ms", "wait_ms", "total_ms", "train_ms")}
        assert times == pytest.approx({"load_ms": 30, "wait_ms": 30, "total_ms": 30, "train_ms": 0}, abs=1e-6)
    assert result.first_batch_s == pytest.approx(0.03)


def slow_augment(images, ids, epoch):
    time.sleep(0.03)
    return toys.Normalise((0.5,) * 3, (0.25,) * 3, 0, {})(images, ids, epoch)


@pytest.mark.parametrize("part", ["model", "augment"])
def test_a_slow_model_or_augment_is_train(trainer, monkeypatch, part):
    slow = {"model": SlowModel(CLASSES, channels=SMALL), "augment": slow_augment}
    made = trainer(**{part: slow[part]})
    toys.Clock(monkeypatch)
    for row in made.run().steps:
        assert (row["train_ms"], row["wait_ms"]) == (pytest.approx(30), pytest.approx(0, abs=1e-6))


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_reach_the_model_in_the_layout_asked_for(trainer, channels_last):
    layouts = []

    class Watch(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, CLASSES)

        def forward(self, images):
            layouts.append((images.is_contiguous(memory_format=torch.channels_last), images.is_contiguous()))
            return self.head(images.mean((2, 3)))

    trainer(model=Watch(), channels_last=channels_last).run()
    assert set(layouts) == {(channels_last, not channels_last)}


def test_a_loss_that_is_not_finite_ends_the_run(trainer):
    with pytest.raises(GpufeedError, match=r"training loss nan at step 0 \(epoch 0\)"):
        trainer(model=NaNModel(CLASSES, channels=SMALL), epochs=3).run()


@pytest.mark.parametrize("job", [{"epochs": 1}, {"epochs": 2}, {"steps": 6}])
def test_a_lost_sample_ends_the_run(trainer, job):
    with pytest.raises(GpufeedError, match="29 images from LossyLoader in epoch 0"):
        trainer(loader=LossyLoader, **job).run()


def test_an_error_of_the_loader_ends_the_run(trainer):
    with pytest.raises(OSError, match="the disk went away"):
        trainer(loader=toys.BreakingLoader).run()


def test_same_seed_same_losses(trainer):
    first, second = (trainer(epochs=2).run().steps for _ in range(2))
    assert [row["loss"] for row in first] == [row["loss"] for row in second]


def test_the_augment_gets_each_epochs_number(trainer):
    seen = []

    class Noting(toys.Normalise):
        def __call__(self, images, ids, epoch):
            seen.append(int(epoch))
            return super().__call__(images, ids, epoch)

    trainer(augment=Noting((0.5,) * 3, (0.25,) * 3, 0, {}), epochs=2).run()
    assert seen[-8:] == [0] * 4 + [1] * 4


def test_nothing_is_printed_and_nothing_is_written(trainer, capfd, tmp_path, monkeypatch):
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    trainer(epochs=2).run()
    assert capfd.readouterr() == ("", "")
    assert not list(place.iterdir())


@pytest.mark.parametrize("name", TRAINERS)
def test_every_trainer_says_what_it_is(name):
    assert issubclass(fetch("trainer", name), Trainer)
    assert inspect.getdoc(fetch("trainer", name))


def counted(result):
    """How many steps come after the warm-up."""
    return len(result.steps) - warmup(result.epochs, 4)["steps"]


def test_a_short_run_goes_on_by_epochs_and_leaves_the_model_as_planned(trainer, monkeypatch):
    toys.hundred_steps_a_second(monkeypatch)
    planned, longer = trainer(epochs=2), trainer(epochs=2)
    before, after = planned.run(), longer.run(least_s=0.2)
    assert 20 <= counted(after) <= 24
    assert {epoch["images"] for epoch in after.epochs} == {30}
    assert [row["step"] for row in after.steps] == list(range(4 * len(after.epochs)))
    losses = [row["loss"] for row in after.steps[:8]]
    assert losses == pytest.approx([row["loss"] for row in before.steps], rel=1e-4)
    for name, tensor in longer.job.model.state_dict().items():
        torch.testing.assert_close(tensor, planned.job.model.state_dict()[name])


@pytest.mark.parametrize("steps", [4, 6])
def test_a_short_run_of_steps_goes_on_within_its_epoch(trainer, monkeypatch, steps):
    toys.hundred_steps_a_second(monkeypatch)
    made = trainer(loader=Watched, steps=steps)
    result = made.run(least_s=0.2)
    assert counted(result) >= 20
    assert [epoch["steps"] for epoch in result.epochs[:-1]] == [4] * (len(result.epochs) - 1)
    assert made.job.loader.ended == len(result.epochs)


class LoadedAhead(ToyLoader):
    """After its first epoch a batch takes 30 ms."""

    def batches(self, order):
        for batch in super().batches(order):
            time.sleep(0.03 * (self.epoch > 0))
            yield batch


def test_a_run_of_steps_ends_when_its_time_is_up_whatever_its_first_steps_promise(trainer, monkeypatch):
    true = recorder.throughput
    quick = {"seconds": 0.001}  # of the one step after warm-up: as it were, 150 of them are missing
    monkeypatch.setattr(recorder, "throughput", lambda rows: true(rows) if len(rows) > 1 else quick)
    rows = trainer(loader=LoadedAhead, steps=4).run(least_s=0.15).steps
    assert sum(row["total_ms"] for row in rows[3:]) / 1e3 >= 0.15
    assert len(rows) < 4 + 40  # which is what the first steps promise, ten times as many at once


@pytest.mark.parametrize("least_s", [0.03, 0.04, 0.05])  # four steps count
def test_a_run_that_is_long_enough_ends_as_planned(trainer, monkeypatch, least_s):
    toys.hundred_steps_a_second(monkeypatch)
    result = trainer(epochs=2).run(least_s=least_s)
    assert len(result.steps) == (8 if least_s <= 0.04 else 12)
