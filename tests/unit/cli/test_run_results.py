"""What gpufeed run prints of records."""

import json
import shutil

import pandas as pd
import pytest
from data_fixtures import published_results

from gpufeed.cli import run_results
from gpufeed.cli.run_results import (
    advice_lines,
    any_failed,
    cells_of,
    ending,
    leaderboard,
    once_more,
    planned,
    unmeasured,
)
from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import Cell
from gpufeed.system.statistics import BUSY

CELLS = {  # of published results
    "dataloader_workers": "tiny_imagenet_40-dataloader_workers-w16-torch-resnet18-auto-b256-graphs-8c915b74",
    "resident": "tiny_imagenet_40-resident-torch-resnet18-auto-b256-graphs-bec36fd2",
    "replay": "tiny_imagenet_40-replay-torch-resnet18-auto-b256-graphs-c3f2b352",
}


def change(path, **values):
    """Change a record where it lies."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def paths(records):
    return [path for paths in records.values() for path in paths]


@pytest.fixture
def records(tmp_path):
    """Loader -> its records, two of each, in a folder of results."""
    found = {}
    for loader, cell in CELLS.items():
        source = published_results() / "h200/records/peers" / cell
        folder = tmp_path / "records/peers" / cell
        folder.mkdir(parents=True)
        for path in sorted(source.glob("[01].json")):
            shutil.copy(path, folder)
        found[loader] = sorted(folder.iterdir())
    return found


def test_the_fastest_is_first_and_the_limit_last(records, paths):
    rates = {
        loader: sorted(json.loads(path.read_text())["throughput"]["images_per_s"] for path in paths)
        for loader, paths in records.items()
    }
    task, heading, *rows = leaderboard(cells_of(paths))
    assert task.startswith("resnet18 on tiny_imagenet_40, ")
    assert heading.split() == ["loader", "images/s", "of", "the", "limit", "range", "n"]
    assert [row.split()[0] for row in rows] == ["1", "2", "replay"]
    assert "resident" in rows[0]
    assert "dataloader_workers, 16 workers" in rows[1]
    assert "the limit" in rows[2]
    for loader, row in zip(("resident", "dataloader_workers", "replay"), rows, strict=True):
        low, high = rates[loader]
        assert row.endswith(f"  {low:,.0f} to {high:,.0f}  2")


def test_a_repeat_that_failed_is_found_and_one_that_was_skipped_is_none(records, tmp_path):
    cell = CELLS["resident"]
    (tmp_path / "records/own").symlink_to(tmp_path / "records/peers")
    plan = Plan({"own": {cell: Cell("own", "d", "resident")}}, [], {"own": 2})
    first, second = planned(plan, tmp_path, None)
    assert first.exists()
    for status, found in (("skipped", False), ("failed", True)):
        shutil.copy(first, second)
        change(second, status=status, sentence="It is.")
        assert any_failed([first, second, tmp_path / "none.json"]) is found


def test_a_run_of_one_experiment_ends_with_leaderboard_verdict_and_page(paths, tmp_path):
    plan = {"peers": [*map(str, paths), str(tmp_path / "records/peers/another/0.json")]}  # which is not there
    lines = ending(str(tmp_path), plan, {"peers": None})
    assert lines[0] == ""
    assert lines[1].startswith("resnet18 on tiny_imagenet_40, ")
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "replay"]
    (verdict,) = (line for line in lines if line.startswith("Answer: "))
    rate = lines[3].split()[2]
    assert f"resident: {rate} images/s" in verdict
    assert "`snakemake report`" in lines[-1]
    report = tmp_path / "report-peers.html"
    report.write_text("")
    assert ending(str(tmp_path), plan, {"peers": None})[-1] == f"Report: {report.as_uri()}"
    assert ending(str(tmp_path), {"peers": plan["peers"][-1:]}, {"peers": None}) == []


def test_a_record_that_cannot_be_read_is_named_and_counts_as_failed(paths, tmp_path):
    paths[0].write_text(paths[0].read_text()[:200])
    (said,) = (
        line
        for line in ending(str(tmp_path), {"peers": map(str, paths)}, {"peers": None})
        if line.startswith("Left out: ")
    )
    assert str(paths[0]) in said
    assert any_failed(paths)


def test_an_error_in_the_table_leaves_the_run_as_it_was(records, tmp_path, monkeypatch):
    def broken(paths):
        raise ModuleNotFoundError("No module named 'pandas'")

    monkeypatch.setattr(run_results, "cells_of", broken)
    _, first, last = ending(str(tmp_path), {"peers": map(str, records["replay"])}, {"peers": None})
    assert "No module named 'pandas'" in first
    assert "`snakemake report`" in last


def test_a_run_of_several_ends_with_the_verdict_on_each(paths, tmp_path):
    plan = {name: [str(path) for path in paths] for name in ("one", "another")}
    lines = ending(str(tmp_path), plan, {"one": None, "another": None})
    assert [line.split()[0] for line in lines[1:3]] == ["one", "another"]
    assert all("resident: " in line and "images/s" in line for line in lines[1:3])
    assert len(lines) == 4


def test_what_was_not_measured_is_named(records):
    (path, *_) = records["resident"]
    change(path, status="skipped", sentence="No GPU.")
    assert unmeasured(cells_of(records["replay"])) == []
    assert unmeasured(cells_of([path, *records["replay"]])) == [
        "Not measured: resident (skipped). The report says why."
    ]


def test_a_loader_with_a_finished_repeat_in_another_cell_counts_as_measured(paths):
    cells = cells_of(paths)
    again = cells[cells["loader"] == "resident"].assign(cell_id="another", status="failed")
    assert unmeasured(pd.concat([cells, again])) == []
    damaged = again.assign(loader=None, status="unusable")  # a record that cannot be read names no loader
    assert unmeasured(pd.concat([cells, damaged])) == []


def test_of_many_loaders_the_first_are_shown(paths, monkeypatch):
    monkeypatch.setattr(run_results, "MOST", 1)
    rows = leaderboard(cells_of(paths))
    assert [row.split()[0] for row in rows[2:]] == ["1", "replay", "The"]
    assert "1 more pipeline" in rows[-1]


def test_a_disturbed_run_ends_with_the_command_that_measures_again(paths, tmp_path):
    plan = {"peers": [str(path) for path in paths]}
    options = ["--cores 4", "--resources gpu=1", "--configfile mine.yaml"]
    quiet = ending(str(tmp_path), plan, {"peers": None}, options)
    assert not any("--forcerun" in line for line in quiet)
    telemetry = json.loads(paths[0].read_text())["telemetry"]
    telemetry["host"]["others_cpu_share"] = 0.3
    change(paths[0], telemetry=telemetry)
    lines = ending(str(tmp_path), plan, {"peers": None}, options)
    (place,) = [line for line in lines if f"{tmp_path}/records/peers" in line]
    assert lines[lines.index(place) - 1] == "Other processes used the cores meanwhile."
    command = lines[lines.index(place) + 1]
    given = "--cores 4 --resources gpu=1 --configfile mine.yaml"
    assert command == f"  snakemake peers {given} --forcerun measure_cell"


@pytest.mark.parametrize(
    ("disturbed", "against", "causes"),
    [
        ([0, 2], ["", "below"], ["Other processes used the cores"]),
        ([0, 0], ["below", "disturbed"], ["A rate is far above its limit"]),
        ([0, 0], [BUSY, "above"], ["Repeats are too far apart"]),
        ([1, 0], ["disturbed", BUSY], ["Other processes", "A rate is far", "Repeats are too far"]),
        ([0, 0], ["above", "not distinguishable"], []),
    ],
)
def test_what_disturbed_a_run_is_told_by_its_cause(disturbed, against, causes):
    cells = pd.DataFrame({"disturbed": disturbed, "against_ceiling": against})
    lines = once_more({"a": cells, "b": cells}, "out", [])
    assert len(lines) == (len(causes) + 2 if causes else 0)  # each once
    assert all(line.startswith(cause) for line, cause in zip(lines, causes, strict=False))
    assert not causes or lines[-1] == "  snakemake a b --forcerun measure_cell"


def test_the_advice_chooses_what_is_measured(paths, tmp_path):
    cells = {name: Cell("own", "d", loader) for loader, name in CELLS.items()}
    of, best = CELLS["dataloader_workers"], CELLS["resident"]
    plan, asked = Plan({"own": cells}, [], {"own": 1}), {"of": of, "best": 1}
    assert {path.parent.name for path in planned(plan, tmp_path, asked)} == {of, CELLS["replay"]}
    candidate = {"change": "loader resident in place of dataloader_workers", "rank": 1, "bound": "input"}
    candidate |= {"chosen": True, "advised": True, "sentence": None, "compute_images_per_s": 8.2e4}
    found = [
        {**candidate, "cell_id": best, "images_per_s": {"low": 8e4, "median": 8.1e4, "high": 8.2e4}},
        {**candidate, "cell_id": of, "change": "", "rank": 2, "chosen": False, "advised": False}
        | {"images_per_s": {"low": 2e4, "median": 2.1e4, "high": 2.2e4}},
    ]
    advice = {"schema_version": 1, "experiment": "own", "of": of, "best": 1, "device": "cuda"}
    advice |= {"compute_images_per_s": 8.2e4, "input_share": 0.6, "cause": "decode", "candidates": found}
    (tmp_path / "advice").mkdir()
    document = tmp_path / "advice/own.json"
    document.write_text(json.dumps(advice | {"finished_at": "2026-01-01T00:00:00+00:00"}))
    assert {path.parent.name for path in planned(plan, tmp_path, asked)} == set(CELLS.values())
    table = cells_of(paths)
    state, do, *_ = advice_lines(str(tmp_path), "own", asked, table)
    assert "your GPU waits " in state
    assert do.startswith("Do this: loader resident in place of dataloader_workers. Predicted 81,000 images/s")
    for other in (None, {"of": best, "best": 1}):  # the document is of another run
        assert advice_lines(str(tmp_path), "own", other, table) == []
    assert advice_lines(str(tmp_path / "elsewhere"), "own", asked, table) == []
    document.write_text(document.read_text()[:200])
    (said,) = advice_lines(str(tmp_path), "own", asked, table)
    assert str(document) in said
    assert "move the file away and run snakemake" in said
