"""Every trainer tells of each epoch as soon as it is over."""

import measure_fixtures as toys
import pytest

from gpufeed.core.config import read_hyper
from gpufeed.core.registry import TRAINERS, fetch


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize(("length", "steps"), [({"epochs": 3}, [4, 4, 4]), ({"steps": 6}, [4, 2])])
def test_each_epochs_entry_is_told_once_in_order(tmp_path, name, length, steps):
    told = []
    job = toys.toy_job(
        tmp_path,
        options=read_hyper("trainer", name),
        on_epoch=lambda entry: told.append((entry, dict(entry))),
        **length,
    )
    result = toys.prepared(job, fetch("trainer", name)).run()
    assert [entry["steps"] for _, entry in told] == steps
    assert [entry for entry, _ in told] == result.epochs
    assert [then for _, then in told] == [{**entry, "accuracy": None} for entry in result.epochs]


def test_an_accuracy_between_epochs_is_in_what_is_told(tmp_path):
    told = []
    job = toys.toy_job(
        tmp_path,
        epochs=2,
        judge=lambda: {"top1": 0.5, "loss": 1.0},
        on_epoch=lambda entry: told.append(dict(entry)),
    )
    toys.prepared(job).run()
    assert [entry["accuracy"] for entry in told] == [{"top1": 0.5, "loss": 1.0}, None]
