import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpufeed.analysis.statistics import ENOUGH_FOR_INTERVAL, overlap, summarise, unpaired_ratio

numbers = st.floats(min_value=1e-3, max_value=1e9)


def test_below_six_repeats_there_is_no_interval():
    summary = summarise([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (summary["n"], summary["median"], summary["min"], summary["max"]) == (5, 3.0, 1.0, 5.0)
    assert math.isnan(summary["ci95_low"])
    assert math.isnan(summary["ci95_high"])


def test_the_interval_is_seeded_and_narrower_than_the_range_of_many_repeats():
    values = [float(value) for value in range(100)]
    first, second = summarise(values), summarise(values)
    assert first == second
    assert 0 < first["ci95_low"] < first["median"] < first["ci95_high"] < 99
    # the exact binomial interval of the median of 100 ordered values runs from the 40th to the 61st
    assert first["ci95_low"] == pytest.approx(39.5, abs=3)
    assert first["ci95_high"] == pytest.approx(59.5, abs=3)


def test_missing_values_do_not_count():
    assert summarise([None, float("nan"), 7.0])["n"] == 1
    empty = summarise([])
    assert empty["n"] == 0
    assert math.isnan(empty["median"])


@settings(max_examples=25)
@example([1.0, 1.0, 1.0, 1.0, 0.84, 0.84])
@given(st.lists(numbers, min_size=ENOUGH_FOR_INTERVAL, max_size=12))
def test_order_of_the_numbers(values):
    s = summarise(values)
    assert s["min"] <= s["ci95_low"] <= s["ci95_high"] <= s["max"]
    assert s["min"] <= s["median"] <= s["max"]


@given(numbers, numbers, numbers, numbers)
def test_overlap_is_symmetric_and_means_a_common_point(a, b, c, d):
    (a, b), (c, d) = sorted((a, b)), sorted((c, d))
    assert overlap(a, b, c, d) == overlap(c, d, a, b) == (max(a, c) <= min(b, d))


@pytest.mark.parametrize(
    ("others", "apart"),
    [
        ([103, 104], False),
        ([103.2, 104.2], False),
        ([106.2, 109], True),
        ([93, 96.9], True),
        ([97.2, 99], False),
    ],
)
def test_ranges_are_apart_only_beyond_three_percent(others, apart):
    assert unpaired_ratio(others, [100, 103]).apart is apart
    assert unpaired_ratio([100, 103], others).apart is apart
