"""A training that ended before its time goes on where it was, to the very same weights."""

import logging
import os
import sys
from pathlib import Path

import measure_fixtures as toys
import pytest
import torch
from torch import nn

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.core import registry
from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import fetch
from gpufeed.training.checkpoints import KEY, Checkpoints, remove_if_done, resumable
from gpufeed.training.engines.plain import load_optimiser
from gpufeed.training.runtime_context import Stores

TRAINERS = ("plain", "lightning")
OPTIONS = {"schedule": "one_cycle", "weight_decay": 0.01, "evaluate": "last"}


class PowerCut(Exception):
    pass


class EndingLoader(toys.ToyLoader):
    """Fails when it is asked for one batch more than `left`."""

    left = 10**9

    def batches(self, order):
        for batch in super().batches(order):
            if not self.left:
                raise PowerCut
            self.left -= 1
            yield batch


def made(tmp_path, trainer, checkpoints=None, options=None, **job):
    torch.manual_seed(0)
    job = toys.toy_job(
        tmp_path,
        model=toys.NoisyModel(),
        loader=EndingLoader,
        options={**OPTIONS, **(options or {})},
        checkpoints=checkpoints,
        **{"epochs": 3, **job},
    )
    return toys.prepared(job, fetch("trainer", trainer))


def essence(trainer, result) -> tuple:
    """What must be equal, bit by bit."""
    rows = [{key: row[key] for key in ("epoch", "step", "images", "loss")} for row in result.steps]
    epochs = [
        {key: entry[key] for key in ("epoch", "steps", "images", "train_loss")} for entry in result.epochs
    ]
    weights = {name: tensor.tolist() for name, tensor in trainer.job.model.state_dict().items()}
    return rows, epochs, weights


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    ("every", "ends_after", "job"),
    [  # an epoch has four steps
        (1, 2, {}),
        (1, 4, {}),
        (3, 5, {}),  # resumed in mid-epoch
        (4, 7, {}),  # resumed at the end of an epoch
        (2, 11, {"options": {"optimiser": "sgd"}}),
        (5, 9, {"steps": 10}),
        (3, 2, {}),  # before the first checkpoint
    ],
)
def test_it_goes_on_to_the_same_weights(tmp_path, trainer, every, ends_after, job):
    whole = made(tmp_path, trainer, **job)
    expected = essence(whole, whole.run())
    checkpoints = Checkpoints(tmp_path / "kept", every)
    cut = made(tmp_path, trainer, checkpoints, **job)
    cut.job.loader.left = ends_after
    with pytest.raises(PowerCut):
        cut.run()
    assert checkpoints.path.exists() == (every <= ends_after)
    again = made(tmp_path, trainer, checkpoints, **job)
    kept = ends_after // every * every
    again.job.loader.left = len(expected[0]) - kept  # no batch is asked for twice
    result = again.run()
    assert essence(again, result) == expected
    assert result.resumed == ([kept] if kept else [])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_it_may_end_again_and_again(tmp_path, trainer):
    whole = made(tmp_path, trainer)
    expected = essence(whole, whole.run())
    for _ in range(12):
        one_more = made(tmp_path, trainer, Checkpoints(tmp_path / "kept", 1))
        one_more.job.loader.left = 1
        try:
            result = one_more.run()
            break
        except PowerCut:
            pass
    assert essence(one_more, result) == expected
    assert result.resumed == list(range(1, 12))


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    "damage", ["cut", "noise", "no file of ours", "other seed", "other trainer", "owner"]
)
def test_a_file_that_cannot_be_gone_on_with_is_left_out(tmp_path, trainer, damage, caplog):
    checkpoints = Checkpoints(tmp_path / "kept", 2, "me")
    cut = made(tmp_path, trainer, checkpoints)
    cut.job.loader.left = 3
    with pytest.raises(PowerCut):
        cut.run()
    path, told = checkpoints.path, "is no checkpoint"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "noise":
        path.write_bytes(os.urandom(1000))
    elif damage == "no file of ours":
        torch.save({"model": torch.zeros(3)}, path)
    else:
        state, told = torch.load(path, weights_only=True), f"is of another training ({damage.split()[-1]})"
        about = state[KEY]["about"]
        about |= {"other seed": {"seed": 5}, "other trainer": {"trainer": "x"}, "owner": {"owner": "you"}}[
            damage
        ]
        torch.save(state, path)
    whole = made(tmp_path, trainer)
    expected = essence(whole, whole.run())
    again = made(tmp_path, trainer, checkpoints)
    with caplog.at_level(logging.WARNING, "gpufeed"):
        assert essence(again, again.run()) == expected
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [told in message for message in warned] == [True]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_file_that_was_asked_for_is_an_error_where_it_cannot_be_gone_on_with(tmp_path, trainer):
    cut = made(tmp_path, trainer, Checkpoints(tmp_path / "first", 2, "me"))
    cut.job.loader.left = 7
    with pytest.raises(PowerCut):
        cut.run()
    asked = Checkpoints(tmp_path / "second", 2, "you", required=True)
    with pytest.raises(GpufeedError, match="is no checkpoint"):
        made(tmp_path, trainer, asked).run()
    assert [entry["steps"] for entry in asked.take(tmp_path / "first")] == [4]
    before = asked.path.read_bytes()
    with pytest.raises(GpufeedError, match=r"is of another training \(owner\)"):
        made(tmp_path, trainer, asked).run()
    assert asked.path.read_bytes() == before == (tmp_path / "first/checkpoint.pt").read_bytes()


def test_a_state_is_taken_from_where_it_is_already(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1)
    with pytest.raises(GpufeedError, match=r"is no checkpoint \(FileNotFoundError\)"):
        checkpoints.take(tmp_path)
    state = {KEY: {"about": {}, "step": 1, "recorder": {"epochs": []}}}
    checkpoints.write(lambda path: torch.save(state, path))
    assert checkpoints.take(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_the_file_is_replaced_whole_or_not_at_all(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.write(lambda path: path.write_text("first"))

    def fails(path: Path) -> None:
        path.write_text("half of the sec")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        checkpoints.write(fails)
    assert checkpoints.path.read_text() == "first"
    checkpoints.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("optimiser", [torch.optim.AdamW, torch.optim.SGD])
def test_an_optimisers_state_is_put_back_in_place(optimiser):
    def stepped(steps: int):
        torch.manual_seed(1)
        weight = nn.Parameter(torch.ones(3))
        made = optimiser([weight], lr=0.1, **({"momentum": 0.9} if optimiser is torch.optim.SGD else {}))
        for step in range(steps):
            weight.grad = torch.full((3,), 1.0 + step)
            made.step()
        return made, weight

    (saved, _), (other, weight) = stepped(3), stepped(1)
    tensors = {name: value for name, value in other.state[weight].items() if torch.is_tensor(value)}
    load_optimiser(other, saved.state_dict())
    for name, tensor in tensors.items():
        assert other.state[weight][name] is tensor
        assert torch.equal(tensor, saved.state_dict()["state"][0][name])


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """trainer -> a toy cell whose EndingLoader interrupts the process, and where its data is."""
    toys.register(monkeypatch)
    monkeypatch.setitem(registry.LOADERS, "ending", registry.LoaderEntry("test_checkpoints:EndingLoader"))
    monkeypatch.setattr(sys.modules[__name__], "PowerCut", KeyboardInterrupt)  # no error that a job explains
    manifest = toys.toy_manifest(tmp_path).write()
    return lambda trainer: (toys.toy_cell(loader="ending", trainer=trainer, epochs=3), manifest)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_kept_model_that_was_interrupted_is_gone_on_with(
    interrupted, tmp_path, monkeypatch, trainer, caplog
):
    cell, manifest = interrupted(trainer)

    def trained(checkpoints: Checkpoints | None, left: int):
        monkeypatch.setattr(EndingLoader, "left", left)
        return train_model(cell, manifest, Stores(), None, "login1", checkpoints=checkpoints)

    expected = trained(None, 12)
    checkpoints = Checkpoints(tmp_path / "model", 2, "this cell")
    with pytest.raises(KeyboardInterrupt):
        trained(checkpoints, 7)
    caplog.set_level(logging.INFO, "gpufeed")
    found = trained(checkpoints, 6)
    assert any("resuming after step 6" in message for message in caplog.messages)
    assert found.about["status"] == "done", found.about["sentence"]
    assert found.about["epochs"] == expected.about["epochs"]
    weights = found.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.model.state_dict().items())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_repeat_that_was_interrupted_is_gone_on_with_and_is_no_timing(
    interrupted, tmp_path, monkeypatch, trainer
):
    cell, manifest = interrupted(trainer)

    def measured(checkpoints: Checkpoints | None, left: int):
        monkeypatch.setattr(EndingLoader, "left", left)
        return measure(cell, 1, manifest, None, "login1", least_s=0.0, checkpoints=checkpoints)

    whole, expected = measured(None, 10**9)
    checkpoints = Checkpoints(tmp_path / "kept", 2, "this repeat")
    with pytest.raises(KeyboardInterrupt):
        measured(checkpoints, 7)
    found, steps = measured(checkpoints, 10**9)
    found.write(tmp_path / "0.json")  # by the schema
    assert (whole.resumed, found.resumed) == (None, [6])
    assert whole.throughput["images_per_s"] > 0
    assert [getattr(found, name) for name in ("throughput", "steps", "warmup", "telemetry")] == [None] * 4
    assert steps["loss"].tolist() == expected["loss"].tolist()
    assert [epoch["train_loss"] for epoch in found.epochs] == [epoch["train_loss"] for epoch in whole.epochs]
    assert found.accuracy == whole.accuracy


def test_a_repeat_that_keeps_checkpoints_ends_where_it_was_planned_to(tmp_path, monkeypatch):
    toys.register(monkeypatch)
    toys.hundred_steps_a_second(monkeypatch)
    manifest, cell = toys.toy_manifest(tmp_path).write(), toys.toy_cell(epochs=2)
    checkpoints = Checkpoints(tmp_path / "kept", 200)
    lengths = [
        len(measure(cell, 0, manifest, None, "login1", least_s=0.2, checkpoints=kept)[1])
        for kept in (None, checkpoints)
    ]
    assert lengths[0] > lengths[1] == 8


@pytest.mark.parametrize("beside", [False, True])
def test_what_a_job_keeps_is_removed_once_it_has_written_what_it_makes(tmp_path, beside):
    kept = tmp_path / "kept"

    with resumable(kept, "cell", "code") as checkpoints:  # and then nothing: as a job that was killed
        checkpoints.write(lambda path: path.write_text("state"))
    with resumable(kept, "cell", "code") as checkpoints:
        if beside:
            (kept / "model.pt").write_text("made")
        assert checkpoints.path.exists()
    for status in ("skipped", "failed"):  # they are tried again, and go on from here
        remove_if_done(checkpoints, status)
        assert checkpoints.path.exists()
    remove_if_done(checkpoints, "done")
    assert checkpoints.owner == "cell, code"
    assert [path.name for path in tmp_path.rglob("*")] == (["kept", "model.pt"] if beside else [])
