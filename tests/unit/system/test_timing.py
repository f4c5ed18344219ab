import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.system.timing import STEP_COLUMNS, Mark, Span, StepMarks, summary, throughput, warmup

CPU = torch.device("cpu")
times = st.floats(0, 1e6, allow_nan=False)


def test_a_row_splits_a_step_into_wait_and_train():
    previous = Mark(CPU)
    time.sleep(0.02)
    begin = Mark(CPU)
    time.sleep(0.01)
    row = StepMarks(0, 4, 8, previous, Span(begin, Mark(CPU)), load_ms=20.0, transfer=None).row(loss=1.5)
    assert set(row) == set(STEP_COLUMNS)
    assert row["total_ms"] == pytest.approx(row["train_ms"] + row["wait_ms"])
    assert row["train_ms"] >= 10
    assert row["wait_ms"] >= 20
    assert (row["transfer_ms"], row["step"], row["loss"]) == (0.0, 4, 1.5)


@given(st.lists(times, min_size=1, max_size=50))
def test_summary_agrees_with_numpy_and_is_ordered(values):
    found = summary(values)
    assert found["min"] <= found["p05"] <= found["median"] <= found["p95"] <= found["max"]
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["std"] == pytest.approx(np.std(values, ddof=1) if len(values) > 1 else 0.0)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 99))
def test_warmup_never_leaves_everything_out(steps, batches, ahead):
    found = warmup([{"steps": n} for n in steps], batches, ahead)
    assert 0 <= found["steps"] < sum(steps)


@pytest.mark.parametrize(
    ("steps", "left_out"),
    [([5, 5], 5), ([5, 5, 2], 5), ([5, 2], 3), ([5], 3), ([2], 1), ([1], 0), ([1, 1, 1], 1)],
)
def test_warmup_is_the_first_epoch_if_two_are_whole(steps, left_out):
    assert warmup([{"steps": n} for n in steps], steps[0])["steps"] == left_out


@pytest.mark.parametrize(
    ("total", "ahead", "left_out"), [(100, 32, 32), (40, 32, 20), (40, 2, 3), (6, 32, 3)]
)
def test_batches_made_ahead_are_warmup_where_no_epoch_is(total, ahead, left_out):
    assert warmup([{"steps": total}], 500, ahead)["steps"] == left_out


def test_throughput_counts_images_over_wall_time():
    rows = [
        {"images": 10, "total_ms": 40.0, "wait_ms": 10.0},
        {"images": 5, "total_ms": 10.0, "wait_ms": 5.0},
    ]
    expected = {"images": 15, "seconds": 0.05, "images_per_s": 300.0, "wait_share": 0.3}
    assert throughput(rows) == pytest.approx(expected)
