"""Blocks of repeats: how many there are, and their order by the times at which measurements began."""

import json
import shutil
from collections import Counter

import pandas as pd
import pytest
from data_fixtures import REPOSITORY
from record_fixtures import telemetry
from workflow_fixtures import jobs_of, with_blocks

from gpufeed.core.schedule import shuffled

PLANTED = REPOSITORY / "tests/fixtures/planted_measure.py"
# wide with six to eight repeats, not with nine, whose interval leaves out one at either end
QUIET, NOISY = [100] * 20, [104, *[100] * 19]
RATES = {4: QUIET, 8: QUIET, 16: NOISY}  # batch size -> images/s, a value a repeat


def planned():
    """Cells of several batch sizes, by which planted numbers tell them apart; one waits for a verdict."""
    gated, *others = RATES
    blocks = {
        "gated": {"loader": "dataloader_sync", "augment": "torch", "batch_size": gated},
        "others": {"loader": "replay", "augment": "torch", "batch_size": others},
    }
    return with_blocks(blocks, common={"dataset": "synthetic"}) | {"repeats": {"most": 12}}


def plant(flow, finished):
    """Puts numbers in the place of measurements: those of RATES."""
    shutil.copy(PLANTED, flow.folder / "workflow/scripts/measure_cell.py")
    (flow.folder / "planted.json").write_text(json.dumps(RATES))
    record = next((finished / "results/records").glob("*/*/0.json"))
    shutil.copy(record, flow.folder / "planted_record.json")
    shutil.copy(record.with_suffix(".steps.parquet"), flow.folder / "planted_steps.parquet")


def disturb(flow, others):
    """Says which repeats others disturbed: batch size/record -> share of the cores."""
    path = flow.folder / "planted_record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"telemetry": telemetry()}))
    (flow.folder / "others.json").write_text(json.dumps(others))


def measured(flow):
    """Batch size and name of the record of every measurement that was made, one that was killed included."""
    path = flow.folder / "measured.txt"
    return path.read_text().splitlines() if path.exists() else []


def told(flow):
    """(repeat, cell) of every first record, by the time at which it began."""
    records = flow.documents("results/records/**/[0-9].json").values()
    in_order = sorted(records, key=lambda record: record["started_at"])
    return [(record["repeat"], record["cell_id"]) for record in in_order]


@pytest.mark.slow
def test_blocks_are_added_until_intervals_are_narrow_each_in_its_seeded_order(prepared, finished):
    flow = prepared(planned())
    plant(flow, finished)
    disturb(flow, {"4/7": 0.3})
    flow.kill(flow.start(), lambda: len(measured(flow)) >= 7)  # in the third block
    before = flow.files("results/records/**/*.json")
    flow.run("--unlock")
    flow.run()

    blocks = range(9)
    cells = {cell for _, cell in told(flow)}
    expected = [(repeat, cell) for repeat in blocks for cell in shuffled(cells, 0, repeat, "tiny")]
    assert told(flow) == expected
    assert len({tuple(cell for of, cell in expected if of == repeat) for repeat in blocks}) > 2
    # no more than the one that was killed was measured again
    assert len(before.items() - flow.files("results/records/**/*.json").items()) <= 1
    assert sum(times - 1 for times in Counter(measured(flow)).values()) <= 1
    # one that others disturbed is measured once more at the end of its block
    names = [line.split()[1] for line in measured(flow)]
    assert names.count("7-again") == 1
    assert names.index("7-again") > max(place for place, name in enumerate(names) if name == "7")
    assert names.index("7-again") < names.index("8")
    decisions = flow.documents("results/repeats/tiny/*.json").values()
    assert [decision["more"] for decision in decisions] == [True, True, True, False]
    narrow = [sum(cell["narrow"] for cell in decision["cells"].values()) for decision in decisions]
    assert narrow == [2, 2, 2, 3]
    assert (flow.folder / "results/report.html").exists()
    assert "Nothing to be done" in flow.run("-n")


@pytest.mark.slow
def test_one_block_of_some_cells_then_the_rest_and_a_disturbed_repeat_once_more(prepared, finished):
    flow = prepared({**planned(), "repeats": 2})
    plant(flow, finished)
    disturb(flow, {"8/1": 0.3, "8/1-again": 0.01, "16/0": 0.2, "16/0-again": 0.4, "4/1": 0.05})
    table = "results/tables/tiny/cells.csv"
    # one block of two of the cells, as on a machine that is lent for a while
    part = ("--config", "block=1", "only={batch_size: [8, 16]}")
    flow.run(*part)
    assert sorted(measured(flow)) == ["16 1", "8 1"]
    assert "4 repeats of 3 cells" in (flow.folder / "results/report.html").read_text()
    assert "Nothing to be done" in flow.run("-n", *part)
    assert jobs_of(flow.run("-n", "--config", "block=0"))["measure_cell"] == 3
    flow.run(table)  # the rest

    names = [f"{size} {repeat}" for size in RATES for repeat in range(2)]
    assert Counter(measured(flow)) == Counter([*names, "8 1-again", "16 0-again"])  # once more, and no more
    again = flow.documents("results/records/*/*/*-again.json").values()
    assert sorted((record["repeat"], record["attempt"]) for record in again) == [(0, 1), (1, 1)]
    found = pd.read_csv(flow.folder / table).set_index("batch_size")
    assert found["n_repeats"].to_dict() == {4: 2, 8: 2, 16: 2}
    assert found["measured_again"].to_dict() == {4: 0, 8: 1, 16: 1}
    assert found["disturbed"].to_dict() == {4: 0, 8: 0, 16: 1}
    assert found["others_cpu_share_max"].to_dict() == {4: 0.05, 8: 0.01, 16: 0.2}
    assert "Nothing to be done" in flow.run("-n", table)
    # a second record that is lost is made again, and with it what was made of it
    next(flow.folder.glob("results/records/*/*/1-again.json")).unlink()
    assert jobs_of(flow.run("-n", table)) == {"measure_cell": 1, "tabulate": 1}
    # a changed setting measures each repeat once, and a torn record is made once
    flow.run(table)
    changed, before = (table, "--config", "least_s=0.25"), len(measured(flow))
    flow.run(*changed)
    assert len(measured(flow)) == before + 8
    assert "Nothing to be done" in flow.run("-n", *changed)
    next(flow.folder.glob("results/records/*/*/0.json")).write_text("{")
    flow.run(*changed)
    assert len(measured(flow)) == before + 9
    assert "Nothing to be done" in flow.run("-n", *changed)
