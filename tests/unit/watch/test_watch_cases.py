"""Planted slowdowns: the utilization that each leaves; what gpufeed.watch says of the cheapest, and why."""

from dataclasses import replace

import pytest
import watch_cases as planted
from watch_fixtures import watch

TOLERANCE = 0.06  # of AU: fetching a batch, and what a framework does between steps, are planted by nobody
BY_NAME = {case.name: case for case in planted.KINDS}


pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_truth_follows_from_what_is_planted(monkeypatch):
    monkeypatch.setattr(planted, "cores_allowed", lambda: 2)
    found = {name: round(case.truth(), 3) for name, case in BY_NAME.items()}
    assert found == {
        "compute-bound": 1.0,
        "slow read": 0.333,
        "slow decode": 0.5,
        "slow transform": 0.5,
        "slow collate": 0.5,
        "too few workers": 0.5,
        "more workers than cores": 0.5,
        "workers anew each epoch": 1.0,
        "one slow sample in a thousand": 0.845,
        "growth": 0.472,
        "Python-bound step": 1.0,
    }
    assert round(BY_NAME["workers anew each epoch"].with_starts(), 3) == 0.8
    assert round(replace(BY_NAME["too few workers"], workers=4).truth(), 3) == 1.0
    assert len({(case.name, case.framework) for case in planted.CASES}) == 44


def test_every_sample_comes_once_and_in_order():
    case = replace(BY_NAME["too few workers"], batches=5, read_s=0.0, workers=2)
    labels = [label for _, labels in planted.made_loader(case) for label in labels.tolist()]
    assert labels == list(range(20))


# Of those that wait, and slower: late by a millisecond, as a busy machine is, they are still near the truth.
SLOWER = {"slow read": 3, "too few workers": 3}
# in a plain loop: test_utilization_is_near_the_truth
CHEAP = (
    ("slow read", "lightning"),
    ("too few workers", "fastai"),
)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("name", "framework"), CHEAP)
def test_watch_finds_the_planted_utilization(name, framework):
    case, times = BY_NAME[name], SLOWER[name]
    longer = {"read_s": times * case.read_s, "step_s": times * case.step_s, "batches": 60}
    case = replace(case, framework=framework, **longer)
    watched = watch(planted.made_loader(case), burst=4)
    planted.train(case, watched)
    found = watched.result()
    assert found["steps"] == case.batches
    assert found["method"] == "stock_and_burst"
    assert found["au"]["n"] >= 4
    assert found["au"]["value"] == pytest.approx(case.truth(), abs=TOLERANCE)


# shorter than in the bench, which runs them all: tests/bench/watch_causes.py
CAUSES = {
    "slow transform": {"batches": 80},
    "too few workers": {"batches": 80},
    "Python-bound step": {"batches": 80},
    "compute-bound": {"batches": 60},
}


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_watch_names_the_planted_cause(name):
    case = replace(BY_NAME[name], **CAUSES[name])
    watched = watch(planted.made_loader(case), burst=planted.BURST, deep=True)
    planted.train(case, watched)
    found = watched.result()
    first = found["causes"][0]["name"] if found["causes"] else None
    # a machine that is too busy may leave it open
    assert first == case.cause or (first is None and case.cause == planted.NOTHING), found["causes"]
