"""AU over cores: what is compared with what, the fewest cores that feed a model, and the figure."""

from itertools import pairwise

import pytest
import record_fixtures as made
from hypothesis import given
from hypothesis import strategies as st
from report_fixtures import cells_of

from gpufeed.report import style
from gpufeed.report.sections import cores

# loader -> cores -> share of the rate of replay
SHARES = {
    "dali_cpu": {2: 0.3, 8: 0.97, 16: 1.0},
    "resident": {2: 0.96, 8: 0.97},
    "host_cache": {16: 0.5},
    "dataloader_workers": {2: 0.1, 16: 0.6},
    "replay": dict.fromkeys((2, 8, 16), 1.0),
}


def measured(folder, blocks=3, shares=SHARES):
    """Each block a little faster than the one before, on all cells alike."""
    records = [
        made.record(
            made.cell(loader, "photographs", cores=n, workers="auto" if "workers" in loader else 0),
            block,
            1000 * n**0.1 * share * (1 + block / 10),
        )
        for loader, by_cores in shares.items()
        for n, share in by_cores.items()
        for block in range(blocks)
    ]
    for one in records:
        one.started_at = f"2026-01-02T0{one.repeat}:0{one.cell['cores'] % 10}:05+00:00"
        one.environment["cores_allowed"] = one.cell["cores"]
    return cells_of(made.write(folder, *records))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return measured(tmp_path_factory.mktemp("results"))


def test_au_is_of_the_replay_on_as_many_cores_in_the_same_block(cells):
    (panel,) = cores.measured(cells)
    found = {(row["loader"], row["cores_asked"]): row for _, row in panel.iterrows()}
    assert set(found) == {
        (name, n) for name, by_cores in SHARES.items() for n in by_cores if name != "replay"
    }
    for (name, n), row in found.items():
        # by pairs: that all blocks of a machine differ is in both
        assert row[["low", "of_replay", "high"]].tolist() == pytest.approx([SHARES[name][n]] * 3)
        assert (row["blocks"], row["cores"]) == (3, n)
    assert found["dataloader_workers", 16]["workers"] == 16


def test_the_fewest_cores_that_feed_a_model(cells):
    (panel,) = cores.measured(cells)
    never = dict.fromkeys(("dataloader_workers", "host_cache"))
    assert cores.fewest(panel) == {"resident": 2, "dali_cpu": 8, **never}
    (verdict,) = cores.answers(cells)
    assert verdict.lead.startswith("Kept fed on 2 cores by resident (n = 3), ")
    assert verdict.lead.endswith(" dali_cpu: 8 cores")
    for words in ("by resident on 2 cores, by dali_cpu on 8 cores. ", "2 other", "(AU 60.0 % on 16 cores)"):
        assert words in verdict.sentence
    assert verdict.sentence.endswith("n = 3.")
    assert " cores" not in verdict.subject  # a panel has them all


def test_how_long_a_pass_is_makes_no_other_loader_and_eager_steps_are_no_part(tmp_path):
    def written(loader, n, speed, **axes):
        one = made.record(made.cell(loader, "photographs", cores=n, **axes), 0, speed)
        one.environment["cores_allowed"] = n
        return made.write(tmp_path, one)

    paths = []
    for n, steps in ((2, 40), (16, 170)):
        graphs = {"cuda_graphs": True, "steps": steps}
        paths += written("dali_cpu", n, 100 * n**0.5, **graphs) + written("replay", n, 400, **graphs)
    eager = {"cuda_graphs": False, "steps": 170}
    paths += written("dali_cpu", 16, 500, **eager) + written("replay", 16, 1000, **eager)
    (panel,) = cores.measured(cells_of(paths))
    assert panel["loader_name"].tolist() == ["dali_cpu", "dali_cpu"]
    assert panel["of_replay"].tolist() == pytest.approx([0.5**1.5, 1.0])
    table = cores.table(panel)
    assert table["cores"] == [2, 16]
    assert table["steps"] == "40 on 2 cores, 170 on 16 cores"
    row = {"name": "dali_cpu", "needs": 16, "fields": [("35.4 %", "n = 1"), ("100.0 %", "n = 1")]}
    assert table["rows"] == [row]


def test_where_cores_are_not_varied_there_is_no_answer(tmp_path):
    one = {name: {2: by_cores.get(2, 1.0)} for name, by_cores in SHARES.items()}
    assert cores.answers(measured(tmp_path / "a", shares=one)) == []
    without = {name: by_cores for name, by_cores in SHARES.items() if name != "replay"}
    assert cores.answers(measured(tmp_path / "b", shares=without)) == []


@pytest.mark.usefixtures("drawn")
def test_the_figure_has_a_labelled_line_a_loader_with_several_numbers_of_cores(cells):
    figure = cores.draw(cells)
    (axis,) = figure.axes
    labels = {text.get_text(): text for text in axis.texts}
    several = sorted(set(SHARES) - {"replay", "host_cache"})
    assert sorted(labels) == several
    assert [f"{tick:g}" for tick in axis.get_xticks()] == ["2", "8", "16"]
    drawn = [container.lines[0] for container in axis.containers]  # by name
    assert [len(line.get_xdata()) for line in drawn] == [len(SHARES[name]) for name in several]
    assert "dali_cpu" in style.to_svg(figure)


@pytest.mark.usefixtures("drawn")
def test_without_a_loader_on_several_numbers_of_cores_the_figure_says_so(tmp_path):
    shares = {"resident": {2: 0.9}, "dali_cpu": {8: 0.5}, "replay": {2: 1.0, 8: 1.0}}
    assert "no loader was measured on several" in style.to_svg(cores.draw(measured(tmp_path, shares=shares)))


@given(st.lists(st.floats(0, 1), max_size=13), st.floats(0.01, 0.07))
def test_names_never_lie_on_each_other(values, gap):
    places = style.spread(sorted(values), gap, 1.0)
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(places))
    assert max(places, default=0) <= 1.0
