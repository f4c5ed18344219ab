"""The impact table: what the config may pick, and what the report says of cells that differ in one axis."""

import copy
import re
from dataclasses import asdict

import pytest
import record_fixtures as made
from config_fixtures import merged

from gpufeed.core.cell_matrix import plan
from gpufeed.core.config import check
from gpufeed.core.errors import GpufeedError
from gpufeed.core.plan_impact import planned_impact
from gpufeed.report import claims, load_records, publish, style, tables
from gpufeed.report.sections import impact

CONFIG = {
    "run": ["e"],
    "device": "auto",
    "seed": 0,
    "repeats": 2,
    "sources": {"synthetic_224": {"layout": "synthetic"}},
    "use_instead": {"cifar10": "synthetic_224"},
    "experiments": {
        "e": {
            "common": {"dataset": "synthetic_224", "precision": "bf16"},
            "blocks": {
                "device": {"loader": "resident", "augment": ["torch", "fused"]},
                "files": {"loader": "dataloader_workers", "workers": [2, 4], "augment": "torch"},
                "more": {"loader": "resident", "augment": "torch", "overrides": [["augment.brightness=0.2"]]},
            },
            "impact": {
                "base": {"loader": "resident", "overrides": [[]]},
                "rows": [
                    {
                        "change": "one kernel",
                        "before": {"augment": "torch"},
                        "after": {"augment": "fused"},
                    },
                    {
                        "change": "kept on the device",
                        "before": {"loader": "dataloader_workers", "workers": 4},
                        "after": {"loader": "resident"},
                    },
                    {
                        "change": "brightness",
                        "before": {"augment": "torch", "dataset": "cifar10"},
                        "after": {"overrides": [["augment.brightness=0.2"]]},
                    },
                ],
                "goals": [{"goal": "fused", "cell": {"augment": "fused"}, "epoch_s": 1.5}],
                "context": "Elsewhere it took 18 s.",
            },
        }
    },
}


def impact_of(config):
    return planned_impact(config, "e", plan(config).cells["e"].values())


def changed(**rows):
    """The config with keys of its impact replaced; row: the first one."""
    config = copy.deepcopy(CONFIG)
    ours = config["experiments"]["e"]["impact"]
    if "row" in rows:
        ours["rows"][0] |= rows.pop("row")
    ours |= rows
    return config


# What the config picks


def test_a_row_is_two_cells_that_differ_in_one_axis():
    found = impact_of(CONFIG)
    assert [(change.words, change.axis) for change in found.changes] == [
        ("one kernel", "augment"),
        ("kept on the device", "loader"),
        ("brightness", "overrides"),
    ]
    for change in found.changes:
        of_workers = (
            {"workers", "prefetch_factor", "persistent_workers"} if change.axis == "loader" else set()
        )
        differing = {axis for axis in change.before if change.before[axis] != change.after[axis]}
        assert differing - of_workers == {change.axis}
    assert found.changes[1].before["workers"] == 4
    assert (found.changes[1].after["workers"], found.changes[1].after["loader"]) == (0, "resident")
    assert found.goals[0].cell["augment"] == "fused"
    assert planned_impact(changed() | {"experiments": {"e": {"blocks": {}}}}, "e", []) is None


def test_rows_that_a_device_makes_impossible_are_left_out():
    found = impact_of({**CONFIG, "device": "cpu"})
    assert [change.words for change in found.changes] == ["kept on the device", "brightness"]
    assert found.goals == []


@pytest.mark.parametrize(
    ("row", "found", "remedy"),
    [
        ({"before": {}}, "2 cells with loader 'resident', overrides [], in experiments.e.impact.rows[0]",
         "name more axes"),
        ({"before": {"augment": "chain"}}, "no cells with", "correct the row"),
        ({"after": {"augment": "chain"}}, "no cells with", "add the cell to a block"),
        ({"after": {"augment": "torch"}}, "augment unchanged", "correct its `after`"),
        ({"before": {"augment": ["torch", "fused"]}}, "a list in", "leave one value"),
        ({"after": {"loader": "dataloader_workers"}}, "2 cells with", "name more axes"),
    ],
)  # fmt: skip
def test_a_row_that_picks_no_pair_is_told(row, found, remedy):
    with pytest.raises(GpufeedError) as told:
        impact_of(changed(row=row))
    assert told.value.found.startswith(found)
    assert "experiments.e.impact.rows[0]." in told.value.found
    assert remedy in told.value.remedy


def test_a_row_that_names_no_axis_is_told():
    config = changed(row={"before": {}})
    config["experiments"]["e"]["impact"]["base"] = {}
    with pytest.raises(GpufeedError, match=r"found: [0-9]+ cells with any values, in experiments\.e\.impact"):
        impact_of(config)


# What the report says


def cell(augment="torch", **axes):
    axes = {"precision": "bf16", "loader": "resident", **axes}
    return made.cell(experiment="e", augment=augment, **axes)


def write_pair(results, before, after):
    """Records of torch's augment and of the fused one, of these speeds."""
    return made.write_speeds(results, cell(), before) + made.write_speeds(results, cell("fused"), after)


def found_in(paths, config=CONFIG):
    table = tables.cells(load_records.read_records(paths))
    return impact.section(table, asdict(impact_of(config)), "e")


def test_a_row_has_both_cells_their_ranges_the_factor_and_a_verdict(tmp_path):
    paths = made.write_speeds(tmp_path, cell(), [1000, 1100], wait_share=0.2, epochs=2)
    paths += made.write_speeds(tmp_path, cell("fused"), [2000, 2200, 2310], wait_share=0.1, epochs=2)
    paths += made.write_speeds(
        tmp_path, cell(loader="dataloader_workers", workers=4, prefetch_factor=2), [990, 1200], epochs=2
    )
    section = found_in(paths)
    (machine,) = section["machines"]
    fused, kept = machine["rows"]  # brightness was not measured
    assert (section["context"], section["planned"], machine["missing"]) == ("Elsewhere it took 18 s.", 3, 1)
    assert (fused["from"], fused["to"]) == ("torch", "fused")
    assert fused["factor"] == pytest.approx(2200 / 1050)
    assert (fused["low"], fused["high"]) == (pytest.approx(2000 / 1100), pytest.approx(2310 / 1000))
    assert fused["range_words"] == "1.82x to 2.31x"
    assert (fused["verdict"], kept["verdict"]) == ("range above", "not shown to differ")
    assert fused["after"] == {
        "n": 3,
        "epoch": "1.16",
        "epoch_range": "1.11 to 1.28",
        "rate": "2,200",
        "rate_range": "2,000 to 2,310",
        "stall": "10 %",
        "stall_range": "10 % to 10 %",
    }
    assert machine["sentence"] == (
        "Worth most: one kernel, 2.10x by range. A range, of fewer than 6 repeats or of several GPUs, says "
        "no more than that it keeps apart. Not shown to differ: 1 of 2 changes."
    )
    (goal,) = machine["goals"]
    assert goal["answer"] == "holds"
    assert goal["sentence"].startswith("1.16 s an epoch (range 1.11 to 1.28 s, n = 3)")


@pytest.mark.parametrize("after", [1010, 990])
def test_a_change_of_less_than_three_percent_is_counted_and_not_named(tmp_path, after):
    paths = write_pair(tmp_path, [1000, 1000.1], [after, after + 0.1])
    assert found_in(paths)["machines"][0]["sentence"] == "Not shown to differ: 1 of 1 change."


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([1000, 1100], [500, 600], "range below"),
        ([1000 + n for n in range(6)], [500 + n for n in range(6)], "slower"),
        ([1000 + n for n in range(6)], [1100 + n for n in range(6)], "faster"),
        (
            [1000 + n for n in range(6)],
            [1020 + n for n in range(6)],
            "not shown to differ",
        ),  # nobody's reason
        ([1000, 1100], [1100, 1300], "not shown to differ"),
        ([1000], [3000, 3100], "one repeat is too few"),
        ([1000, 1100], [3000], "one repeat is too few"),
    ],
)
def test_only_intervals_and_ranges_that_keep_apart_are_called(tmp_path, before, after, verdict):
    paths = write_pair(tmp_path, before, after)
    assert found_in(paths)["machines"][0]["rows"][0]["verdict"] == verdict


@pytest.mark.parametrize("speeds", [[3000, 3100], [800, 1600]], ids=["far above", "too busy to tell"])
def test_a_cell_above_its_ceiling_gets_no_verdict(tmp_path, speeds):
    paths = write_pair(tmp_path, [300, 400], speeds)
    paths += made.write_speeds(tmp_path, cell("fused", loader="replay"), [900, 1000])
    (machine,) = found_in(paths)["machines"]
    assert machine["rows"][0]["verdict"] == "measurement disturbed"
    assert machine["goals"][0]["answer"] == "cannot be judged"
    assert machine["sentence"] == ""


@pytest.mark.parametrize(
    ("speeds", "answer"),
    [
        ([1800, 1900], "holds"),
        ([1000, 1100], "does not hold"),
        ([1600, 1800], "cannot be judged"),
        ([1900], "cannot be judged"),
    ],
)
def test_a_goal_is_judged_by_the_whole_range(tmp_path, speeds, answer):
    paths = made.write_speeds(tmp_path, cell("fused"), speeds)  # 2,560 images: 1.5 s at 1,707 a second
    assert found_in(paths)["machines"][0]["goals"][0]["answer"] == answer


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        ([1000, 1050], [1600, 1700], "holds"),
        ([1000, 1050], [1100, 1200], "does not hold"),
        ([1000, 1050], [1400, 1600], "cannot be judged"),
        ([1000], [1600, 1700], "cannot be judged"),
    ],
)
def test_a_lead_over_another_cell_is_judged_by_both_ranges(tmp_path, before, after, answer):
    config = copy.deepcopy(CONFIG)
    lead = {
        "goal": "fused over torch",
        "cell": {"augment": "fused"},
        "over": {"augment": "torch"},
        "times": 1.5,
    }
    config["experiments"]["e"]["impact"]["goals"] = [lead]
    paths = write_pair(tmp_path, before, after)
    (goal,) = found_in(paths, config)["machines"][0]["goals"]
    assert (goal["goal"], goal["answer"]) == ("fused over torch: at least 1.50x", answer)
    assert f"n = {len(before)}" in goal["sentence"]
    assert found_in(paths[-1:], config)["machines"] == []  # half of a pair says nothing


@pytest.mark.parametrize("half", ["over", "times"])
def test_a_goal_is_an_epoch_or_a_whole_lead(half):
    goal = {"goal": "fast", "cell": {"augment": "fused"}, "over": {"augment": "torch"}, "times": 2}
    del goal[half]
    shipped = merged("config.yaml")
    shipped["experiments"]["hybrid_gpu"]["impact"]["goals"] = [goal]
    with pytest.raises(GpufeedError, match="goals"):
        check(shipped)


def test_two_machines_have_a_table_each_and_no_pair_goes_across(tmp_path):
    paths = made.write_speeds(tmp_path / "a", cell(), [1000, 1100])
    paths += made.write_speeds(tmp_path / "b", cell("fused"), [3000, 3100], gpu="NVIDIA L4")
    assert [machine["rows"] for machine in found_in(paths)["machines"]] == [[]]  # the goal of one of them
    paths += made.write_speeds(tmp_path / "b", cell(), [500, 510], gpu="NVIDIA L4")
    (row,) = found_in(paths)["machines"][0]["rows"]
    assert row["factor"] == pytest.approx(3050 / 505)


def test_the_figure_has_every_factor_and_the_page_table_context_and_goal(tmp_path):
    paths = write_pair(tmp_path, [1000, 1100], [2000, 2200])
    (machine,) = found_in(paths)["machines"]
    figure = impact.factors([machine])
    least, most = figure.axes[0].get_xlim()
    assert least < 1 < 2 < most  # "no change" is in view, too
    svg = style.to_svg(figure)
    assert "2.00x range above" in svg
    assert "one kernel" in svg
    ids = [cell().id, cell("fused").id]
    info = made.plan_info({"e": ids}, repeats=2)
    info["experiments"]["e"]["impact"] = asdict(impact_of(CONFIG))
    publish.report(tmp_path, ["e"], info, tmp_path / "r.html")
    html = " ".join((tmp_path / "r.html").read_text(encoding="utf-8").split())
    for words in (
        "What each change is worth",
        "Elsewhere it took 18 s.",
        "One change at a time,",
        "Worth most: one kernel, 2.00x by range.",
        "fused: an epoch in less than 1.5 s: 1.22 s",
        "2 of 3 changes not measured on this machine yet",
        "2.00x<br><small>1.82x to 2.20x<br>range above</small>",
    ):
        assert words in html, words
    publish.report(tmp_path / "empty", ["e"], info, tmp_path / "none.html")
    assert "None of its 3 changes is measured yet" in (tmp_path / "none.html").read_text(encoding="utf-8")


def test_where_each_task_has_one_pipeline_the_changes_are_the_answer(tmp_path):
    brightness = cell(overrides=("augment.brightness=0.2",))
    paths = made.write_speeds(tmp_path, cell(), [1000, 1100])
    paths += made.write_speeds(tmp_path, brightness, [500, 510])
    info = made.plan_info({"e": [cell().id, brightness.id]}, repeats=2)
    info["experiments"]["e"]["impact"] = asdict(impact_of(CONFIG))
    publish.report(tmp_path, ["e"], info, tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    top = html[html.index('id="answer"') : html.index('id="experiment-e"')]
    assert "Slower: brightness, 0.48x by range." in top
    assert "images/s" not in top
    assert "No pipeline has a finished repeat" not in top


# The guide's batch size


@pytest.mark.parametrize(
    ("speeds", "answer", "enough"),
    [
        ({32: 10, 64: 20, 128: 40, 256: 41, 512: 30}, "holds", 128),
        ({32: 10, 64: 20, 128: 40, 256: 60, 512: 90, 1024: 91}, "does not hold", 512),
        ({32: 99, 128: 40, 512: 30}, "does not hold", 32),
        ({128: 40, 256: 60, 512: 90}, "cannot be judged", 512),
    ],
)
def test_the_batch_size_of_the_guide(tmp_path, speeds, answer, enough):
    paths = []
    for size, speed in speeds.items():
        of = made.cell("resident", "hybrid_gpu", augment="fused", batch_size=size)
        paths += made.write_speeds(tmp_path, of, [speed * 1000, speed * 1005])
    paths += made.write_speeds(tmp_path, made.cell("resident", "hybrid_gpu", augment="torch"), [900_000])
    (verdict,) = claims.of("hybrid_gpu", tables.cells(load_records.read_records(paths)))
    assert (verdict.claim, verdict.answer) == ("batch size 128-256", answer)
    assert f"not shown to be slower is {enough}." in verdict.sentence
    assert re.search(rf"Measured with {', '.join(map(str, speeds))} images a batch", verdict.sentence)
    assert claims.of("vit_lite", tables.cells(load_records.read_records(paths))) == []
