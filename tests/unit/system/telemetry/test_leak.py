"""The slope of Theil and Sen, and the rule that tells a leak from memory that fills up."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpufeed.system.statistics import FEWEST_POINTS, MOST_POINTS, slope
from gpufeed.system.telemetry.summary import FEWEST_EPOCHS, WHOLE_MIB, leaked_mib

NUMBERS = st.floats(-1e6, 1e6)
LENGTHS = st.integers(FEWEST_EPOCHS, 60)


@given(rate=NUMBERS, base=NUMBERS, n=st.integers(FEWEST_POINTS, 50))
def test_the_slope_of_a_line_is_its_rate(rate, base, n):
    x = np.arange(n)
    assert slope(x, base + rate * x) == pytest.approx(rate, rel=1e-6, abs=1e-6)


@given(rate=st.floats(-100, 100), n=st.integers(12, 40), wild=NUMBERS, data=st.data())
def test_a_wild_point_does_not_bend_it(rate, n, wild, data):
    y = rate * np.arange(n)
    y[data.draw(st.integers(0, n - 1))] = wild
    assert slope(range(n), y) == pytest.approx(rate, abs=1e-6)


@given(st.lists(NUMBERS, min_size=FEWEST_POINTS, max_size=30), st.floats(-1e3, 1e3), st.floats(-10, 10))
def test_it_moves_with_the_values(values, shift, factor):
    x, y = range(len(values)), np.array(values)
    found = slope(x, y)
    assert slope(x, y + shift) == pytest.approx(found, abs=1e-6 * (1 + abs(found)))
    assert slope(x, y * factor) == pytest.approx(found * factor, rel=1e-9, abs=1e-6)
    assert slope(x, y[::-1]) == pytest.approx(-found, rel=1e-9, abs=1e-9)
    assert min(np.diff(y)) - 1e-6 <= found <= max(np.diff(y)) + 1e-6


def test_few_points_have_none_and_many_are_thinned():
    assert slope([0, 1], [0, 1]) is None
    assert slope([2, 2, 2], [0, 1, 2]) is None
    assert slope(range(10 * MOST_POINTS), [3.0 * i for i in range(10 * MOST_POINTS)]) == pytest.approx(3)


@given(n=LENGTHS, rate=st.floats(2, 1e4), base=st.floats(0, 1e5), data=st.data())
def test_what_is_kept_of_every_epoch_is_a_leak(n, rate, base, data):
    assume(rate * (n - 1) > 1.2 * WHOLE_MIB)
    noise = data.draw(st.lists(st.floats(-0.05 * rate, 0.05 * rate), min_size=n, max_size=n))
    levels = base + rate * np.arange(n) + noise
    assert leaked_mib(levels) == pytest.approx(rate * (n - 1), rel=0.15)


@given(n=LENGTHS, rate=st.floats(0, 1e4))
def test_a_leak_too_small_or_too_short_to_tell_is_none(n, rate):
    assert leaked_mib(rate * np.arange(FEWEST_EPOCHS - 1)) is None
    assert leaked_mib(np.arange(n) * min(rate, 0.99 * WHOLE_MIB / (n - 1))) is None


@given(n=LENGTHS, at=st.integers(0, 59), size=st.floats(0, 1e5), wobble=st.floats(0, 50))
def test_memory_that_grows_once_and_then_stays_is_none(n, at, size, wobble):
    assert leaked_mib(1000 + size * (np.arange(n) >= at) + wobble * (np.arange(n) % 2)) is None


@given(n=LENGTHS, size=st.floats(1, 1e5))
def test_memory_that_settles_is_none(n, size):
    assert leaked_mib(1000 + size * np.log(np.arange(1, n + 1))) is None
    assert leaked_mib(1000 + size * (1 - 0.5 ** np.arange(n))) is None


@given(n=LENGTHS, rate=st.floats(0, 1e4))
def test_memory_that_is_given_back_is_none(n, rate):
    assert leaked_mib(1e6 - rate * np.arange(n)) is None
    assert leaked_mib(1e6 + rate * (np.arange(n) % 2)) is None


def test_a_long_leak_shows_though_single_epochs_dip():
    levels = 10.0 * np.arange(60)
    levels[::7] -= 25
    assert leaked_mib(levels) == pytest.approx(590, rel=0.1)
