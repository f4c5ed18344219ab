"""`repeats: auto`: when another block is asked for, and how many there are by the answers so far."""

import json
import math
from pathlib import Path

import pytest
import record_fixtures as made
from config_fixtures import merged
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.benchmarks.stopping_rule import decide, interval_of
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.repeats import Auto, again, counting, disturbed, number_of

QUIET, NOISY = [1000.0] * 6, [1000.0, 1200.0, 800.0, 1000.0, 1200.0, 800.0]


def written(folder, **cells):
    """Paths of the records of cells: loader -> images/s of its repeats; None for one that failed."""
    records = [
        made.unfinished(made.cell(loader), "failed", "It broke.", repeat)
        if rate is None
        else made.record(made.cell(loader), repeat, images_per_s=rate)
        for loader, rates in cells.items()
        for repeat, rate in enumerate(rates)
    ]
    return made.write(folder, *records)


@pytest.mark.parametrize(
    ("cells", "more"),
    [
        ({"resident": QUIET}, False),
        ({"resident": NOISY}, True),
        ({"resident": QUIET, "replay": NOISY}, True),  # one that is wide asks for a block of all
        ({"resident": QUIET, "replay": [None] * 6}, False),  # one that cannot be measured asks for nothing
        ({"resident": [*QUIET[:5], None]}, True),  # five have no interval
        ({"replay": [None] * 6}, False),
    ],
)
def test_another_block_is_asked_for_while_a_cell_is_wide(tmp_path, cells, more):
    assert decide(written(tmp_path, **cells), within=0.03)["more"] is more


@pytest.mark.parametrize("on_other", [1, 5, 6])
def test_two_gpu_models_are_never_one_sample(tmp_path, on_other):
    """Five times as fast elsewhere: together they would be as wide as can be, and ask for blocks in vain."""
    of = made.cell("resident")
    here = [made.record(of, repeat, images_per_s=rate) for repeat, rate in enumerate(QUIET)]
    there = [made.record(of, 6 + number, 5000.0, gpu="NVIDIA L4") for number in range(on_other)]
    found = decide(made.write(tmp_path, *here, *there), within=0.03)
    assert (found["cells"][of.id]["n"], found["more"]) == (6, False)


def test_half_of_the_repeats_on_each_of_two_gpu_models_are_too_few(tmp_path):
    of = made.cell("resident")
    found = [made.record(of, n, 1000.0, gpu=f"NVIDIA {('H200', 'L4')[n % 2]}") for n in range(6)]
    assert decide(made.write(tmp_path, *found), within=0.03)["more"]


def test_the_answer_shows_each_cells_interval(tmp_path):
    found = decide(written(tmp_path, resident=QUIET, replay=NOISY), within=0.03)
    quiet, noisy = (found["cells"][made.cell(name).id] for name in ("resident", "replay"))
    assert quiet == {"n": 6, "median": 1000, "low": 1000, "high": 1000, "narrow": True}
    assert noisy["low"] < 970
    assert noisy["high"] > 1030
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        (0.3, 0.01, "3-again"),
        (0.3, 0.2, "3-again"),  # both are marked: the quieter
        (0.2, 0.3, "3"),
        (0.2, 0.2, "3"),
        (0.3, None, "3"),  # nobody knows whether it is quieter
        (0.05, 0.0, "3"),  # the first is not marked: the second is of an earlier first
        (None, 0.0, "3"),
    ],
)
def test_one_record_a_repeat_counts(first, second, counts):
    paths = [Path(f"a/{name}.json") for name in ("2", "3", "3-again", "4")]
    told = {"2": 0.5, "3": first, "3-again": second, "4": None}
    records = {path: ("one", {"host": {"others_cpu_share": told[path.stem]}}) for path in paths}
    assert [path.stem for path in counting(records)] == ["2", counts, "4"]
    elsewhere = records | {paths[2]: ("another", records[paths[2]][1])}
    assert [path.stem for path in counting(elsewhere)] == ["2", "3", "4"]


def test_a_second_record_alone_counts_and_so_do_records_without_telemetry():
    told = {"3-again": None, "4": {"host": {}}, "5": None}  # 4: of a version that did not tell
    records = {Path(f"{name}.json"): ("one", telemetry) for name, telemetry in told.items()}
    assert counting(records) == list(records)
    assert again("a/b/3.json") == Path("a/b/3-again.json")
    assert [*map(number_of, ("3", "3-again"))] == [3, 3]
    assert not any(map(number_of, ("again", "-again", "x", "", "3-again-again")))


def test_those_that_others_disturbed_are_named(tmp_path):
    of = made.cell("resident")
    shares = [0.0, 0.06, None, 0.05, 1.0]
    paths = made.write(tmp_path, *(made.beside(made.record(of, n), share) for n, share in enumerate(shares)))
    paths += made.write(tmp_path, made.record(of, 5), made.unfinished(of, "failed", "It broke.", 6))
    (tmp_path / "7.json").write_text('{"telemetry": ')
    assert disturbed([*paths, tmp_path / "7.json", tmp_path / "8.json"]) == [f"{of.id}/1", f"{of.id}/4"]


def test_the_quieter_record_decides_whether_a_cell_is_narrow(tmp_path):
    of = made.cell("resident")
    first = [made.record(of, n, rate) for n, rate in enumerate([500.0, *QUIET[1:]])]
    paths = made.write(tmp_path, made.beside(first[0], 0.4), *first[1:])
    assert decide(paths, within=0.03)["more"]
    paths += made.write(tmp_path, made.beside(made.record(of, 0, QUIET[0]), 0.0), name="{}-again")
    found = decide(paths, within=0.03)
    assert (found["cells"][of.id]["n"], found["more"]) == (6, False)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=12), st.floats(0.001, 0.5))
def test_narrow_is_what_it_says(rates, within):
    found = interval_of(rates, within)
    assert found["n"] == len(rates)
    if len(rates) < 6:
        assert (found["low"], found["narrow"]) == (None, False)
        return
    ends = max(1 - found["low"] / found["median"], found["high"] / found["median"] - 1)
    assert found["narrow"] == (ends <= within) or math.isclose(ends, within)


@given(st.integers(6, 12), st.integers(0, 8), st.integers(0, 20))
def test_blocks_are_counted_up_to_the_first_that_is_enough(tmp_path_factory, least, further, wide):
    """wide: answers in a row that ask for more, from `least` on; the rest was never asked."""
    folder = tmp_path_factory.mktemp("decisions")
    for repeats in range(least, least + wide):
        (folder / f"{repeats}.json").write_text('{"more": true}')
    auto = Auto(least, least + further)
    assert auto.count(lambda repeats: folder / f"{repeats}.json") == least + min(wide, further)
    (folder / f"{least}.json").write_text('{"more": false}')
    assert auto.count(lambda repeats: folder / f"{repeats}.json") == least


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"cells": {}}'])
def test_a_damaged_answer_asks_for_nothing(tmp_path, text):
    (tmp_path / "6.json").write_text(text)
    assert Auto().count(lambda repeats: tmp_path / f"{repeats}.json") == 6


def with_repeats(value):
    config = merged("config.yaml")
    config["experiments"]["feed"]["repeats"] = value
    return config


@pytest.mark.parametrize(
    ("value", "auto"),
    [
        ("auto", Auto(6, 20, 0.03)),
        ({}, Auto(6, 20, 0.03)),
        ({"most": 8, "within": 0.1}, Auto(6, 8, 0.1)),
        (4, None),
    ],
)
def test_the_config_says_a_number_or_auto(value, auto):
    plan = planned(with_repeats(value))
    assert plan.auto.get("feed") == auto
    assert plan.repeats["feed"] == (auto.least if auto else value)
    assert plan.most_repeats >= (auto.most if auto else value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("often", "repeats: 'often'"),
        ({"least": 5}, "least: 5"),
        ({"least": 9, "most": 8}, "least 9, most 8"),
        ({"within": 0}, "within: 0"),
        ({"at_most": 9}, "write 'most' instead"),
    ],
)
def test_what_cannot_be_meant_is_refused(value, said):
    with pytest.raises(GpufeedError) as refused:
        planned(with_repeats(value))
    assert said in str(refused.value)


def test_repeats_that_were_taken_up_again_are_not_counted(tmp_path):
    of = made.cell("resident")
    whole = [made.record(of, repeat, images_per_s=1000.0) for repeat in range(5)]
    again = made.resumed(made.record(of, 5, images_per_s=1000.0), 200)
    found = decide(made.write(tmp_path, *whole, again), within=0.03)
    assert (found["cells"][of.id]["n"], found["more"]) == (5, True)
    assert decide(made.write(tmp_path / "none", again), within=0.03) == {
        "more": False,
        "within": 0.03,
        "cells": {},
    }
