"""The order of measurements: whole blocks, one after another, each in an order of its own."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufeed.order import Order, shuffled

CELLS = {"one": ["a", "b", "c", "d", "e"], "two": ["a", "f", "g"]}


def in_order(order, repeats):
    """(repeat, experiment, cell) of every measurement, as a scheduler that goes by priorities starts them."""
    turns = [(repeat, name, cell) for repeat in range(repeats) for name in CELLS for cell in CELLS[name]]
    priorities = {turn: order.priority(turn[1], turn[2], turn[0]) for turn in turns}
    assert len(set(priorities.values())) == len(turns)  # none is left to chance
    assert min(priorities.values()) > 0  # before whatever has none
    assert max(priorities.values()) < order.before_all
    return sorted(turns, key=priorities.get, reverse=True)


@given(st.integers(0, 10**9), st.integers(1, 20))
def test_every_block_is_whole_before_the_next_and_experiments_stay_together(seed, repeats):
    turns = in_order(Order(CELLS, seed, repeats), repeats)
    assert [repeat for repeat, _, _ in turns] == sorted(repeat for repeat, _, _ in turns)
    changes = sum(left[:2] != right[:2] for left, right in pairwise(turns))
    assert changes == len(CELLS) * repeats - 1


def test_blocks_differ_in_their_order_and_so_do_seeds():
    turns = in_order(Order(CELLS, 0, 20), 20)
    orders = {tuple(turn[1:] for turn in turns[first : first + 8]) for first in range(0, len(turns), 8)}
    assert len(orders) > 15
    assert in_order(Order(CELLS, 0, 3), 3) != in_order(Order(CELLS, 1, 3), 3)


def test_the_order_is_the_same_on_every_machine():
    assert shuffled(["a", "b", "c", "d", "e"], 0, 1, "one") == ["d", "e", "b", "c", "a"]
    firsts = [in_order(Order(CELLS, 0, 6), 6)[block * 8] for block in range(6)]
    assert len({first[1:] for first in firsts}) > 2


@given(st.sets(st.text("abcdef", min_size=1, max_size=4)), st.integers(0, 9))
def test_another_cell_leaves_the_order_of_the_others(names, seed):
    with_one_more = shuffled({*names, "zzz"}, seed)
    assert [name for name in with_one_more if name != "zzz"] == shuffled(names, seed)


def test_more_blocks_change_nothing_in_the_order_of_those_before():
    assert in_order(Order(CELLS, 0, 20), 6) == in_order(Order(CELLS, 0, 6), 6)
