"""`trainer.evaluate: epoch`: held-out images are asked about after each epoch, and nothing else changes."""

from dataclasses import asdict

import measure_fixtures as toys
import pytest

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core.record import RECORD
from gpufeed.training import cell_training


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Measures a toy cell of three epochs that is asked about at its `last` or at each `epoch`."""
    toys.register(monkeypatch)
    manifest = toys.toy_manifest(tmp_path).write()

    def run(evaluate: str, **axes):
        cell = toys.toy_cell(**{"epochs": 3, **axes})
        options = {} if axes.get("model") == "NoisyModel" else cell["hyper"]["model"]
        trainer = {**cell["hyper"]["trainer"], "evaluate": evaluate}
        cell["hyper"] = {**cell["hyper"], "model": options, "trainer": trainer}
        record, steps = measure(cell, 0, manifest, None, "login1")
        RECORD.check(asdict(record), tmp_path)
        assert record.status == "done", record.sentence
        return record, steps

    return run


@pytest.mark.parametrize("trainer", ["plain", "lightning"])
def test_each_epoch_has_its_accuracy_and_the_last_is_that_of_the_run(run, trainer):
    record, steps = run("epoch", trainer=trainer)
    assert len(steps) == 12
    told = [epoch["accuracy"] for epoch in record.epochs]
    assert [one["images"] for one in told] == [12, 12, 12]
    assert len({one["loss"] for one in told}) == 3  # the model went on learning
    assert told[-1] == record.accuracy


def test_asked_at_the_end_only_the_last_epoch_has_an_accuracy(run):
    record, _ = run("last")
    assert [epoch["accuracy"] for epoch in record.epochs] == [None, None, record.accuracy]


@pytest.mark.parametrize("model", ["simple_cnn", "NoisyModel"])
def test_asking_changes_nothing_of_the_training(run, model):
    (asked, each), (left, last) = (run(evaluate, model=model) for evaluate in ("epoch", "last"))
    assert each["loss"].tolist() == last["loss"].tolist()
    assert asked.accuracy == left.accuracy


def test_the_time_of_asking_is_not_in_the_epochs(run, monkeypatch):
    clock, answers = toys.Clock(monkeypatch), cell_training.answers

    def slow(*arguments):
        clock.sleep(100.0)
        return answers(*arguments)

    monkeypatch.setattr(cell_training, "answers", slow)
    record, steps = run("epoch", loader="SlowLoader")
    assert sum(epoch["epoch_s"] for epoch in record.epochs) == pytest.approx(12 * 0.03)
    assert steps["total_ms"].sum() == pytest.approx(12 * 30)


def test_a_ceiling_and_a_run_of_steps_are_never_asked(run):
    for axes in ({"steps": 9}, {"loader": "ceiling"}):
        record, _ = run("epoch", **axes)
        assert record.accuracy is record.phases["evaluation_s"] is None
        assert {epoch["accuracy"] for epoch in record.epochs} == {None}
