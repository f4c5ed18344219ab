"""Predicted rates and what binds them, by numbers that one can check in one's head."""

from dataclasses import replace

import pytest
from advice_fixtures import probe
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.advice.rate_model import COMPUTE, CPU, DEVICE, HOST, INPUT, Demands, bounds, predicted


@pytest.mark.parametrize(
    ("changes", "bound", "rate"),
    [
        ({"compute_s": 0.004}, COMPUTE, 250),
        ({"input_s": 0.004}, INPUT, 250),
        ({"loader": "dataloader_sync"}, HOST, 1 / 0.003),  # first load, then train
        ({"input": {"main_s": 0.003}, "together_s": 0.004}, HOST, 250),  # of the thread that trains
        ({"cpu_s": (0.004, 0.006), "together_s": 0.005}, CPU, 200),  # 10 ms of two cores
        ({"busy": (1.0, 0.8), "together_s": 0.003}, DEVICE, 1 / 0.003),
        ({"busy": (1.0, 0.4), "loader": "dataloader_sync"}, HOST, 1 / 0.003),
        # the training alone would be the longest, and both together take half as long again
        (
            {"compute_s": 0.004, "cpu_s": (0.006, 0.001), "together_s": 0.006, "input": {"main_s": 0.0}},
            HOST,
            1 / 0.006,
        ),
    ],
)
def test_what_binds(changes, bound, rate):
    found = predicted(probe(**{"loader": "overlap", **changes}))
    assert found["bound"] == bound
    assert found["median"] == pytest.approx(rate)
    assert found["low"] == pytest.approx(rate)  # rounds alike


def test_a_step_that_is_soon_queued_leaves_the_host_its_time_for_the_loader():
    slow = {"compute_s": 0.004, "input_s": 0.002, "busy": (1.0, 0.0), "loader": "dataloader_sync"}
    found = predicted(probe(**slow, together_s=0.004, compute={"host_s": 0.0005}))
    assert (found["bound"], found["median"]) == (COMPUTE, pytest.approx(250))


def test_an_epoch_begins_with_its_start():
    starts = {"starts": [{"first_batch_s": 0.5, "lead_s": 0.9, "lead_images": 100}] * 3}
    late = probe("overlap", compute_s=0.004, input_s=0.002, input=starts, together=starts)
    found = predicted(late)
    assert found["median"] == pytest.approx(1000 / 4.5)  # 0.5 s beyond the 0.4 s of 100 images
    assert found["input_share"] == pytest.approx(0.5 / 4.5)
    assert bounds(Demands.of(late)) == pytest.approx(
        {COMPUTE: 4.5, INPUT: 2.7, HOST: 4.5, CPU: 0.7, DEVICE: 0.5}
    )


def test_rounds_that_differ_count_by_their_seconds_and_give_the_interval():
    found = predicted(probe("overlap", input_s=0.002, jitter=0.1))
    assert found["median"] == pytest.approx(1 / 0.002)
    assert found["low"] == pytest.approx(1 / 0.0022)
    assert found["high"] == pytest.approx(1 / 0.0018)
    uneven = [{"images": 300, "seconds": 3.0}, *[{"images": 100, "seconds": 0.5}] * 5]
    assert predicted(probe("overlap", together={"rounds": uneven}))["median"] == pytest.approx(800 / 5.5)


def test_a_round_says_nothing_of_the_images_of_the_start():
    half = {"starts": [{"first_batch_s": 0.1, "lead_s": 0.5, "lead_images": 500}] * 3}
    found = predicted(probe("overlap", together_s=0.001, together=half, jitter=0.2))
    assert found["median"] == pytest.approx(1000)
    assert (found["low"], found["high"]) == pytest.approx((1000 / 1.1, 1000 / 0.9))


seconds = st.floats(1e-6, 10)
many = st.builds(
    Demands,
    **dict.fromkeys(("compute_s", "input_s", "host_s"), seconds),
    **dict.fromkeys(("main_s", "cpu_compute_s", "cpu_input_s"), st.floats(0, 10)),
    **dict.fromkeys(("busy_compute_s", "busy_input_s", "first_batch_s", "start_s"), st.floats(0, 10)),
    cores=st.integers(1, 256),
    works_ahead=st.booleans(),
    images=st.integers(1, 10**7),
)


@given(many)
def test_more_demand_never_lowers_a_bound(demands):
    for field in ("compute_s", "input_s", "cpu_input_s", "busy_input_s", "first_batch_s", "main_s"):
        more = bounds(replace(demands, **{field: 2 * getattr(demands, field)}))
        assert all(more[name] >= one for name, one in bounds(demands).items())
    ahead = bounds(replace(demands, works_ahead=True, main_s=0.0, first_batch_s=0.0))
    assert bounds(replace(demands, works_ahead=False))[HOST] >= ahead[HOST]
