"""A cell's name: made of all that it does, and not changed by choices that came later and change nothing."""

from dataclasses import replace

import pytest
from record_fixtures import cell

from gpufeed.core.cells import LATER, impossible, impossible_as_composed, settle
from gpufeed.core.equivalence_verdict import loader_settings


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


def test_cores_are_in_the_name_and_no_setting_of_the_equivalence_check():
    few, more = (cell("dataloader_workers", workers=8, cores=cores) for cores in (2, 16))
    assert ("-w8-c2-" in few.id, "-w8-c16-" in more.id) == (True, True)
    assert loader_settings(few) == loader_settings(more)


def test_auto_workers_are_none_for_a_loader_without_any():
    auto = {name: settle(cell(name, workers="auto", cores=4)) for name in ("resident", "spdl", "overlap")}
    assert [one.workers for one in auto.values()] == [0, "auto", "auto"]
    assert auto["resident"].id == settle(cell("resident", cores=4)).id
    assert "-wauto-c4-" in auto["spdl"].id
    assert [impossible(one) for one in auto.values()] == [None] * 3
    assert auto["spdl"].prefetch_factor == 2


def test_evicted_files_are_those_that_an_epoch_reads_once():
    cold = with_choice(["hyper", "trainer", "cold_files"], True)
    files = {"loader": "dali_gpu", "workers": 0}
    assert "resident reads no image" in impossible_as_composed(cold)
    assert "replay reads no image" in impossible_as_composed(replace(cold, loader="replay"))
    assert impossible_as_composed(replace(cold, **files, epochs=1)) is None
    assert impossible_as_composed(replace(cold, **files, epochs=2, steps=9)) is None
    assert "epochs must be 1" in impossible_as_composed(replace(cold, **files, epochs=2))


def test_cores_are_those_of_one_node():
    several = cell("resident", trainer="lightning", nodes=2, cores=4)
    assert "nodes must be 1" in impossible(several)


@pytest.mark.parametrize(
    ("axes", "wanted"),
    [({}, 0), ({"workers": 8}, 8), ({"workers": "auto"}, 0), ({"workers": 16, "cores": 2}, 2)],
)
def test_cores_that_a_job_needs_as_far_as_the_plan_says(axes, wanted):
    assert cell("dataloader_workers", **axes).cores_wanted == wanted
