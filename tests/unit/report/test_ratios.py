"""Ratios of rates: what may be called faster, and which repeats belong together."""

import math
import random
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_fixtures import beside, cell, elsewhere, record, write

from gpufeed.report.load_records import read_records
from gpufeed.report.significance import paired_repeats, ratio_of_repeats, standing
from gpufeed.system.statistics import (
    ENOUGH_FOR_INTERVAL,
    FASTER,
    FEW,
    MATTERS,
    SAME,
    SLOWER,
    UNLIKE,
    difference,
    paired_ratio,
    unpaired_ratio,
)

# close enough together that all verdicts come up
rates = st.floats(min_value=90, max_value=112)
samples = st.lists(rates, max_size=12)
INVERSE = {FASTER: SLOWER, SLOWER: FASTER, SAME: SAME, FEW: FEW, UNLIKE: UNLIKE}


def assert_mirrored(there, back):
    """Exact, so that no verdict at the edge of 1.03 can differ."""
    assert difference(back) == INVERSE[difference(there)]
    assert back.apart == there.apart
    if there.n:
        assert back.log_median == -there.log_median
        assert back.log_range == tuple(-value for value in reversed(there.log_range))
    if there.log_interval:
        assert back.log_interval == tuple(-value for value in reversed(there.log_interval))


@settings(max_examples=150)
@given(st.lists(st.tuples(rates, rates), max_size=12))
def test_swapping_the_sides_of_pairs_inverts_the_verdict(found):
    assert_mirrored(paired_ratio(found), paired_ratio([(b, a) for a, b in found]))


@settings(max_examples=150)
@given(samples, samples)
def test_swapping_two_samples_inverts_the_verdict(first, second):
    assert_mirrored(unpaired_ratio(first, second), unpaired_ratio(second, first))


@settings(max_examples=60)
@given(samples)
def test_nothing_is_faster_than_itself(values):
    for found in (paired_ratio(zip(values, values, strict=True)), unpaired_ratio(values, values)):
        assert difference(found) == (FEW if len(values) < ENOUGH_FOR_INTERVAL else SAME)
        if values:
            assert found.median == 1


@settings(max_examples=60)
@given(st.lists(st.tuples(rates, rates), max_size=12), st.randoms(use_true_random=False))
def test_order_and_missing_values_change_nothing(found, shuffler: random.Random):
    missing = [(None, 1.0), (1.0, None), (math.nan, 2.0), (2.0, math.nan)]
    mixed = shuffler.sample(found + missing, len(found) + len(missing))
    assert repr(paired_ratio(mixed)) == repr(paired_ratio(found))
    first, second = [a for a, _ in found], [b for _, b in found]
    shuffled = shuffler.sample([*first, None, math.nan], len(first) + 2)
    assert repr(unpaired_ratio(shuffled, second)) == repr(unpaired_ratio(first, second))


@settings(max_examples=60)
@given(st.lists(st.tuples(rates, rates), min_size=ENOUGH_FOR_INTERVAL, max_size=12))
def test_order_of_the_numbers_of_a_ratio(found):
    for one in (paired_ratio(found), unpaired_ratio(*zip(*found, strict=True))):
        (least, most), (low, high) = one.range, one.interval
        assert least <= low <= one.median <= high <= most


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.05, FASTER), (MATTERS, SAME), (1.0, SAME), (1 / MATTERS, SAME), (0.95, SLOWER)]
)
def test_only_a_ratio_whose_interval_clears_three_percent_counts(factor, verdict):
    base = [100.0, 100.4, 99.7, 100.2, 99.9, 100.1]
    assert difference(paired_ratio((factor * value, value) for value in base)) == verdict
    assert difference(unpaired_ratio([factor * value for value in base], base)) == verdict
    pairs = [(factor * value, value) for value in base[1:]]
    assert difference(paired_ratio([*pairs, (1.02 * base[0], base[0])])) == SAME  # every pair has to


def test_pairs_take_out_what_both_sides_share():
    drift = [100.0, 60.0, 140.0, 80.0, 120.0, 90.0]  # a machine that others use too
    faster = [1.05 * value for value in drift]
    assert difference(paired_ratio(zip(faster, drift, strict=True))) == FASTER
    assert difference(unpaired_ratio(faster, drift)) == SAME


def test_two_clusters_keep_the_ratio_of_medians_in_its_interval():
    slow, fast = [1.0 + i / 1000 for i in range(10)], [2.0 + i / 1000 for i in range(10)]
    found = unpaired_ratio([*slow, *fast[:9]], [*slow[:9], *fast])
    assert found.median < 0.51  # the middle value of one side is slow, of the other fast
    assert found.interval[0] <= found.median <= found.interval[1]


def test_sides_that_differ_in_number_and_spread_have_a_range_alone(tmp_path):
    even = [100 + step for step in (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)]
    wide = [200 + 6 * (value - 100) for value in even]
    assert unpaired_ratio(wide, even).interval  # as many of both
    assert unpaired_ratio([2 * value for value in even], [*even, 100.0]).interval  # as wide
    for sides in ((wide, [*even, 100.0]), ([*even, 100.0], wide)):
        found = unpaired_ratio(*sides)
        assert (found.n, found.interval, difference(found), found.apart) == (6, None, UNLIKE, True)
    assert unpaired_ratio([100.0] * 6, [100.0] * 7).interval == (1.0, 1.0)

    def repeats(loader, rates):
        of = cell(loader)
        paths = write(tmp_path, *(record(of, number, rate) for number, rate in enumerate(rates)))
        return {"repeats": read_records(paths)}

    first = repeats("resident", wide)
    later = repeats("overlap", [*even, 100.0])
    later["repeats"]["started_at"] = "2030-01-01T00:00:00+00:00"  # another run, so no pairs
    found = standing(first, later)
    assert (found.ahead, found.how, found.ratio.n) == (True, "range above", 6)
    assert "range" in found.words
    assert found.why_no_more == "repeats that differ in number and spread say no more"


def test_below_six_there_is_a_range_and_no_verdict():
    found = unpaired_ratio([200.0, 210.0], [105.0, 90.0, 100.0])
    assert (found.n, found.interval, difference(found)) == (2, None, FEW)
    assert found.median == pytest.approx(2.05)
    assert found.range == pytest.approx((200 / 105, 210 / 90))
    assert found.apart
    assert not unpaired_ratio([200.0], [100.0]).apart  # one repeat has no range
    assert not unpaired_ratio([100.0, 200.0], [150.0, 160.0]).apart


def test_a_rate_of_nothing_is_no_rate():
    with pytest.raises(ValueError, match="above 0"):
        unpaired_ratio([0.0, 1.0], [1.0])


def at(minute: int, loader: str, repeat: int, speed: float, uuid: str | None = "GPU-1", node="node-a"):
    """A repeat that began at this minute."""
    one = elsewhere(record(cell(loader), repeat, speed), {"uuid": uuid}, node=node)
    return replace(one, started_at=f"2026-01-02T{minute // 60:02d}:{minute % 60:02d}:00.250+00:00")


def read(folder, *records):
    table = read_records(write(folder, *records))
    return [table[table["loader"] == loader] for loader in ("resident", "overlap")]


def test_the_blocks_of_one_run_pair_whatever_the_order_within(tmp_path):
    order = [("resident", "overlap"), ("overlap", "resident")] * 3
    run = [
        at(10 * repeat + position, loader, repeat, 100 + repeat + 50 * (loader == "resident"))
        for repeat, block in enumerate(order)
        for position, loader in enumerate(block)
    ]
    found = paired_repeats(*read(tmp_path, *run))
    assert found["place"].unique().tolist() == ["GPU-1"]
    assert found[["repeat", "rate", "other"]].to_numpy().tolist() == [
        [repeat, 150 + repeat, 100 + repeat] for repeat in range(6)
    ]
    assert ratio_of_repeats(*read(tmp_path, *run)).paired


def test_a_second_measurement_stands_in_the_block_of_the_first(tmp_path):
    """It came after all blocks, and its number is that of the first."""
    run = [
        at(2 * repeat + n, name, repeat, 100 + n)
        for repeat in range(6)
        for n, name in enumerate(("resident", "overlap"))
    ]
    slow = beside(at(4, "resident", 2, 10), 0.3)
    later = beside(at(60, "resident", 2, 200), 0.0)
    paths = write(tmp_path, *run[:4], slow, *run[5:]) + write(tmp_path, later, name="{}-again")
    table = read_records(paths)
    sides = [table[table["loader"] == name] for name in ("resident", "overlap")]
    rates = paired_repeats(*sides).set_index("repeat")["rate"]
    assert rates.to_dict() == {n: 200 if n == 2 else 100 for n in range(6)}
    assert ratio_of_repeats(*sides).paired
    assert sides[0].set_index("repeat")["measured_again"].to_dict() == {n: n == 2 for n in range(6)}


def test_a_second_record_beside_a_quiet_first_is_not_spoken_of(tmp_path):
    """As after the first was measured anew."""
    first, later = beside(at(0, "resident", 0, 100), 0.0), beside(at(9, "resident", 0, 200), 0.02)
    (row,) = read_records(write(tmp_path, first) + write(tmp_path, later, name="{}-again")).to_dict("records")
    assert (row["images_per_s"], row["measured_again"]) == (100, False)


def test_repeats_of_other_gpus_do_not_pair(tmp_path):
    run = [at(0, "resident", 0, 150), at(1, "overlap", 0, 100), at(2, "resident", 1, 150)]
    other = at(3, "overlap", 1, 100, uuid="GPU-2")
    assert paired_repeats(*read(tmp_path / "a", *run, other))["repeat"].tolist() == [0]
    same = at(3, "overlap", 1, 100)
    assert len(paired_repeats(*read(tmp_path / "b", *run, same))) == 2


def test_without_a_uuid_the_node_is_the_place(tmp_path):
    run = [
        at(2 * repeat + second, ("resident", "overlap")[second], repeat, 100, None, f"node-{second}")
        for repeat in range(2)
        for second in range(2)
    ]
    assert paired_repeats(*read(tmp_path / "a", *run)).empty
    same = [elsewhere(one, node="node-a") for one in run]
    assert paired_repeats(*read(tmp_path / "b", *same))["place"].unique().tolist() == ["node-a"]


def in_blocks(folder, blocks, apart=1, cards="012345"):
    """The sides of one block for each (repeat, speed of its machine), each in results of its own.

    apart: minutes within a block. cards: of each block.
    """
    paths = []
    for number, (repeat, speed) in enumerate(blocks):
        for position, (loader, rate) in enumerate((("resident", 110), ("overlap", 100))):
            minute = 60 * number + apart * position
            one = at(minute, loader, repeat, speed * rate, f"GPU-{cards[number]}")
            paths += write(folder / str(number), one)
    table = read_records(paths)
    return [table[table["loader"] == loader] for loader in ("resident", "overlap")]


def test_one_block_on_each_of_several_machines_is_as_many_pairs(tmp_path):
    blocks = [(0, 1.0), (0, 1.2), (3, 0.9), (1, 1.1), (2, 1.0), (2, 1.3)]
    sides = in_blocks(tmp_path / "all", blocks)
    assert paired_repeats(*sides)["place"].nunique() == 6
    found = ratio_of_repeats(*sides)
    assert (found.paired, found.n, difference(found)) == (True, 6, FASTER)
    assert found.range == pytest.approx((1.1, 1.1))  # what the machines differ by is in both
    fast, slow = ({"repeats": side} for side in sides)
    assert (standing(fast, slow).how, standing(fast, slow).other_cards) == (FASTER, "")
    few = ratio_of_repeats(*in_blocks(tmp_path / "few", blocks[:3]))
    assert (few.paired, few.n, difference(few)) == (True, 3, FEW)


def test_what_began_too_far_apart_is_no_block(tmp_path):
    blocks = [(n, 1.0) for n in range(6)]
    assert len(paired_repeats(*in_blocks(tmp_path / "near", blocks, apart=20))) == 6
    assert paired_repeats(*in_blocks(tmp_path / "far", blocks, apart=21)).empty


def test_blocks_may_be_measured_in_any_order_and_in_several_sessions_of_a_machine(tmp_path):
    """Of a number that was measured twice, far apart, each is a block of its own."""
    sides = in_blocks(tmp_path, [(2, 1.0), (0, 1.0), (2, 1.0)], cards="000")
    assert paired_repeats(*sides)["repeat"].tolist() == [2, 0, 2]
    twice = [pd.concat([side, side.tail(1)], ignore_index=True) for side in sides]
    assert paired_repeats(*twice)["repeat"].tolist() == [2, 0]  # which of the two copies belongs to which?
