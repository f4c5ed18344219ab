"""What gpufeed run prints of records."""

import json
import shutil
from dataclasses import replace

import pytest
from data_fixtures import REPOSITORY

from gpufeed.cli.run_results import (
    ADVICE,
    Progress,
    Records,
    advice_lines,
    any_failed,
    cells_of,
    leaderboard,
    summary,
)
from gpufeed.core.cell_matrix import Plan
from gpufeed.core.cells import Cell

CELLS = {  # of published results
    "dataloader_workers": "tiny_imagenet_40-dataloader_workers-w16-torch-resnet18-auto-b256-graphs-8c915b74",
    "resident": "tiny_imagenet_40-resident-torch-resnet18-auto-b256-graphs-bec36fd2",
    "replay": "tiny_imagenet_40-replay-torch-resnet18-auto-b256-graphs-c3f2b352",
}


@pytest.fixture
def records(tmp_path):
    """Loader -> its records, two of each, in a folder of results."""
    found = {}
    for loader, cell in CELLS.items():
        source = REPOSITORY / "results/reference/h100/records/peers" / cell
        folder = tmp_path / "records/peers" / cell
        folder.mkdir(parents=True)
        for path in sorted(source.glob("[01].json")):
            shutil.copy(path, folder)
        found[loader] = sorted(folder.iterdir())
    return found


def test_the_fastest_is_first_and_the_limit_last(records):
    rates = {
        loader: sorted(json.loads(path.read_text())["throughput"]["images_per_s"] for path in paths)
        for loader, paths in records.items()
    }
    task, heading, *rows = leaderboard(cells_of([path for paths in records.values() for path in paths]))
    assert task.startswith("resnet18 on tiny_imagenet_40, ")
    assert heading.split() == ["loader", "images/s", "of", "the", "limit", "range", "n"]
    assert [row.split()[0] for row in rows] == ["1", "2", "replay"]
    assert "resident" in rows[0]
    assert "dataloader_workers, 16 workers" in rows[1]
    assert "the limit" in rows[2]
    for loader, row in zip(("resident", "dataloader_workers", "replay"), rows, strict=True):
        low, high = rates[loader]
        assert row.endswith(f"  {low:,.0f} to {high:,.0f}  2")


def test_a_record_that_comes_is_a_line_and_one_that_was_there_is_none(records, tmp_path, capsys):
    cell = CELLS["resident"]
    (tmp_path / "records/own").symlink_to(tmp_path / "records/peers")
    known = Records(Plan({"own": {cell: Cell("own", "d", "resident")}}, [], {"own": 2}), tmp_path)
    first, second = known.planned()
    text = second.read_text()
    second.unlink()
    progress = Progress(known)
    assert capsys.readouterr().out == "1 of 2 repeats were measured before\n"
    progress()
    assert capsys.readouterr().out == ""
    second.write_text(text)
    progress()
    progress()
    rate = json.loads(text)["throughput"]["images_per_s"]
    assert capsys.readouterr().out == f"[2/2] resident: {rate:,.0f} images/s\n"
    assert not any_failed([first, second, tmp_path / "none.json"])
    failed = json.loads(text) | {"status": "failed", "sentence": "RuntimeError: no"}
    second.write_text(json.dumps(failed))
    assert any_failed([first, second])
    empty = Records(known.plan, tmp_path / "empty")
    assert summary(empty) == ""


def test_the_advice_chooses_what_is_measured_and_stands_first(records, tmp_path):
    cells = {name: Cell("own", "d", loader) for loader, name in CELLS.items()}
    of, best = CELLS["dataloader_workers"], CELLS["resident"]
    known = Records(Plan({"own": cells}, [], {"own": 1}), tmp_path, {"of": of, "best": 1})
    assert {path.parent.name for path in known.planned()} == {of, CELLS["replay"]}
    candidate = {"change": "loader resident in place of dataloader_workers", "rank": 1, "bound": "input"}
    candidate |= {"chosen": True, "advised": True, "sentence": None}
    found = [
        {**candidate, "cell_id": best, "images_per_s": {"low": 8e4, "median": 8.1e4, "high": 8.2e4}},
        {**candidate, "cell_id": of, "change": "", "rank": 2, "chosen": False, "advised": False}
        | {"images_per_s": {"low": 2e4, "median": 2.1e4, "high": 2.2e4}},
    ]
    advice = {"schema_version": 1, "experiment": "own", "of": of, "best": 1, "device": "cuda"}
    advice |= {"compute_images_per_s": 8.2e4, "input_share": 0.6, "cause": "decode", "candidates": found}
    (tmp_path / "advice").mkdir()
    (tmp_path / ADVICE).write_text(json.dumps(advice | {"finished_at": "2026-01-01T00:00:00+00:00"}))
    assert {path.parent.name for path in known.planned()} == set(CELLS.values())
    table = cells_of([path for paths in records.values() for path in paths])
    state, do, *_, last = advice_lines(known, table)
    assert state.startswith("Your GPU waits ")
    assert do.startswith("Do this: loader resident in place of dataloader_workers. Predicted 81,000 images/s")
    assert last == ""
    for other in (None, {"of": best, "best": 1}):  # the document is of another run
        assert advice_lines(replace(known, advice=other), table) == []
    assert advice_lines(replace(known, results=tmp_path / "elsewhere"), table) == []
