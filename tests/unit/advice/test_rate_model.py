"""Predicted rates: each bound by numbers that one can check in one's head, and what holds of any."""

import math
from dataclasses import replace

import pytest
from advice_fixtures import probe
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.advice.rate_model import COMPUTE, CPU, DEVICE, HOST, INPUT, Demands, bounds, epoch_s, predicted


@pytest.mark.parametrize(
    ("changes", "bound", "rate"),
    [
        ({"compute_s": 0.004}, COMPUTE, 250),
        ({"input_s": 0.004}, INPUT, 250),
        ({"loader": "dataloader_sync"}, HOST, 1 / 0.003),  # first load, then train
        ({"input": {"main_s": 0.003}}, HOST, 250),  # what the thread that trains must unpack
        ({"cpu_s": (0.004, 0.006)}, CPU, 200),  # 10 ms of two cores
        ({"busy": (1.0, 0.8)}, DEVICE, 1 / (0.001 + 0.0016)),
        ({"busy": (1.0, 0.4), "loader": "dataloader_sync"}, HOST, 1 / 0.003),
    ],
)
def test_what_binds(changes, bound, rate):
    found = predicted(probe(**{"loader": "overlap", **changes}))
    assert found["bound"] == bound
    assert found["median"] == pytest.approx(rate)
    assert found["low"] == pytest.approx(rate)  # rounds alike


def test_a_step_that_is_soon_queued_leaves_the_host_its_time_for_the_loader():
    slow = {"compute_s": 0.004, "input_s": 0.002, "busy": (1.0, 0.0), "loader": "dataloader_sync"}
    found = predicted(probe(**slow, compute={"host_s": 0.0005}))
    assert (found["bound"], found["median"]) == (COMPUTE, pytest.approx(250))


def test_an_epoch_begins_with_its_first_batch_and_an_input_with_its_start():
    starts = {"starts": [{"first_batch_s": 0.5, "lead_s": 0.7, "lead_images": 100}] * 3}
    late = Demands.of(probe("overlap", compute_s=0.004, input_s=0.002, input=starts))
    assert (late.first_batch_s, late.start_s) == (0.5, pytest.approx(0.5))
    assert epoch_s(late) == (pytest.approx(0.5 + 4), COMPUTE)
    assert bounds(late)[INPUT] == pytest.approx(0.5 + 2)
    found = predicted(probe("overlap", compute_s=0.004, input=starts))
    assert found["input_share"] == pytest.approx(0.5 / 4.5)


def test_the_interval_is_that_of_the_rounds():
    found = predicted(probe("overlap", input_s=0.002, jitter=0.1))
    assert found["low"] == pytest.approx(1 / 0.0022)
    assert found["high"] == pytest.approx(1 / 0.0018)
    assert found["low"] < found["median"] < found["high"]


def test_bounds_that_lie_close_are_both_felt():
    even = Demands.of(probe("overlap", compute_s=0.002, input_s=0.002, compute={"host_s": 0.0}))
    even = replace(even, host_s=0.0)
    assert epoch_s(even)[0] == pytest.approx(2.0)
    assert epoch_s(even, sharpness=8)[0] == pytest.approx(2.0 * 2 ** (1 / 8))


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


@given(many, st.one_of(st.just(math.inf), st.floats(1, 64)))
def test_no_bound_is_passed_and_more_demand_is_never_faster(demands, sharpness):
    whole, name = epoch_s(demands, sharpness)
    found = bounds(demands)
    assert whole >= max(found.values()) * (1 - 1e-9)
    assert whole <= sum(found.values()) * (1 + 1e-9)
    assert found[name] == max(found.values())
    assert whole >= demands.images * max(demands.compute_s, demands.input_s) * (1 - 1e-9)
    for field in ("compute_s", "input_s", "cpu_input_s", "busy_input_s", "first_batch_s", "main_s"):
        more = replace(demands, **{field: 2 * getattr(demands, field)})
        assert epoch_s(more, sharpness)[0] >= whole * (1 - 1e-9)
    assert epoch_s(replace(demands, works_ahead=False, main_s=0.0), math.inf)[0] >= (
        epoch_s(replace(demands, works_ahead=True, main_s=0.0, first_batch_s=0.0), math.inf)[0] * (1 - 1e-9)
    )
