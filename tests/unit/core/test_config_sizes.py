"""Sizes of sources and batches, as far as they are known while planning."""

import pytest
from config_fixtures import merged, small
from hypothesis import given
from hypothesis import strategies as st

from gpufeed.core.cells import check_batch
from gpufeed.core.config import check_prepared, planned
from gpufeed.core.config_sources import check_splits
from gpufeed.core.errors import GpufeedError
from gpufeed.datasets import synthetic


def test_a_run_of_whole_epochs_without_evaluation_images_names_its_experiment():
    with pytest.raises(GpufeedError, match="experiment 'tiny' trains whole epochs on 'synthetic'"):
        planned(small({"evaluation_share": 0}, steps=[None, 20]))


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ({"batch_size": [8, 5000]}, "batch_size 5000"),
        ({"batch_size": 161, "steps": 20}, "batch_size 161"),
    ],
)
def test_a_batch_of_more_images_than_there_are_is_told_with_both_numbers(block, found):
    small_one = {"count": 200, "evaluation_share": 0.2, "classes": 2}
    with pytest.raises(GpufeedError, match="160 images") as error:
        planned(small(small_one, **block))
    assert found in error.value.found
    assert "'tiny'" in error.value.found
    assert planned(small(small_one, **{**block, "batch_size": 160})).cells["tiny"]


def test_the_batch_of_several_devices_is_checked_by_their_job():
    """Which most nodes do not run: a plan with such a cell is no mistake there."""
    block = {"batch_size": 81, "devices": 2, "trainer": "lightning"}
    found = planned(small({"count": 200, "evaluation_share": 0.2, "classes": 2}, **block))
    (one, *_) = found.cells["tiny"].values()
    with pytest.raises(GpufeedError, match=r"81 on each of 2 devices, 162 together.* 160 images"):
        check_batch(one, 160)
    check_batch(one, 162)


def test_the_images_of_a_download_are_not_known_while_planning():
    config = merged("config.yaml")
    config["experiments"]["pipelining"]["common"] |= {"dataset": "cifar10", "batch_size": 10**6}
    assert planned(config).cells["pipelining"]


def test_a_batch_of_more_images_than_were_prepared_is_refused_before_gates_and_caches():
    config = merged("config.yaml", "own.yaml")
    planned(config)
    check_prepared(config, "own", 128)
    check_prepared(config, "cifar10", 1)  # which only experiments outside of `run` train on
    with pytest.raises(GpufeedError, match="batch_size 128 in experiment 'own', and 52 images"):
        check_prepared(config, "own", 52)


@pytest.mark.parametrize("block", [{"steps": 20}, {"loader": "replay"}])
def test_cells_that_evaluate_nothing_need_no_evaluation_images(block):
    assert planned(small({"evaluation_share": 0}, **block)).cells["tiny"]


@pytest.mark.parametrize("size", [8, 64, [8, 16]])
def test_sizes_are_a_side_or_height_and_width(size):
    assert planned(small({"size": size})).cells["tiny"]


@given(st.integers(2, 400), st.integers(2, 40), st.floats(0, 1, exclude_max=True))
def test_the_layout_makes_every_class_in_both_splits_of_what_the_plan_accepts(count, classes, share):
    options = {"count": count, "classes": classes, "evaluation_share": share}
    try:
        check_splits(options, "sources.s")
    except GpufeedError:
        return
    choice = synthetic.parse_options(options)
    labels = [index % classes for index in range(count)]
    held_out = labels[count - choice.evaluation :]
    assert set(labels[: count - choice.evaluation]) == set(range(classes))
    assert set(held_out) == (set(range(classes)) if share else set())
