"""A cell's name: made of all that it does, and not changed by choices that came later and change nothing."""

from dataclasses import replace

import pytest
from record_fixtures import cell

from gpufeed.core.cells import LATER


def with_choice(path: list[str], value):
    """A cell of the fixtures that makes one choice; none of its options where `value` is None."""
    made = cell("resident")
    hyper = {kind: dict(options) for kind, options in made.hyper.items()}
    if len(path) == 1:
        return replace(made, **{path[0]: value})
    hyper.setdefault(path[1], {})[path[2]] = value
    return replace(made, hyper=hyper)


@pytest.mark.parametrize("choice", LATER, ids=lambda choice: choice[-2])
def test_a_later_choice_names_a_cell_only_if_it_changes_something(choice):
    *path, before = choice
    plain, other = with_choice(path, before), with_choice(path, "something else")
    assert path[-1] not in str(plain.identity())
    assert path[-1] in str(other.identity())
    assert plain.id != other.id
    assert plain.asdict() != plain.identity()  # a record still says what the cell did
