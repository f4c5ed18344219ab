"""The op draw_windows: the windows of the recipe, number for number."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_random_resized_crop import RECIPES, SIDES

from gpufeed.augment.random_resized_crop import RandomResizedCrop

pytestmark = pytest.mark.usefixtures("extension")


@settings(max_examples=300)
@given(
    recipe=RECIPES,
    sizes=st.lists(st.tuples(SIDES, SIDES), max_size=30),
    first=st.integers(0, 2**33),
    epoch=st.integers(0, 2**33),
)
def test_windows_are_those_of_the_recipe(recipe, sizes, first, epoch):
    ids, sides = torch.arange(first, first + len(sizes)), torch.tensor(sizes, dtype=torch.int64).view(-1, 2)
    found = recipe.windows_by_extension(ids, epoch, *sides.unbind(1))
    for name, values in vars(recipe.windows(ids, epoch, *sides.unbind(1))).items():
        assert torch.equal(getattr(found, name), values), name
        assert getattr(found, name).dtype == values.dtype


def test_a_hundred_thousand_windows_of_photographs_are_those_of_the_recipe():
    sides = torch.randint(100, 900, (100_000, 2), generator=torch.Generator().manual_seed(0))
    recipe, ids = RandomResizedCrop(224, seed=3), torch.arange(len(sides))
    found = recipe.windows_by_extension(ids, 5, *sides.unbind(1))
    for name, values in vars(recipe.windows(ids, 5, *sides.unbind(1))).items():
        assert torch.equal(getattr(found, name), values), name


def test_sides_that_are_too_few_are_refused():
    with pytest.raises(ValueError, match="found: a tensor on cpu of 2 numbers"):
        RandomResizedCrop(8).windows_by_extension(torch.arange(3), 0, torch.ones(2), torch.ones(3))
