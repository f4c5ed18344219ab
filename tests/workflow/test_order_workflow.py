"""Blocks of repeats: how many there are, and their order by the times at which measurements began."""

import json
import shutil
from collections import Counter

from data_fixtures import REPOSITORY
from workflow_fixtures import TINY

from gpufeed.order import shuffled

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
    experiment = {**TINY["experiments"]["tiny"], "common": {"dataset": "synthetic"}, "blocks": blocks}
    return {**TINY, "repeats": {"most": 12}, "experiments": {"tiny": experiment}}


def plant(flow, finished):
    """Puts numbers in the place of measurements: those of RATES."""
    shutil.copy(PLANTED, flow.folder / "workflow/scripts/measure_cell.py")
    (flow.folder / "planted.json").write_text(json.dumps(RATES))
    record = next((finished / "results/records").glob("*/*/0.json"))
    shutil.copy(record, flow.folder / "planted_record.json")
    shutil.copy(record.with_suffix(".steps.parquet"), flow.folder / "planted_steps.parquet")


def measured(flow):
    """(batch size, repeat) of every measurement that was made, one that was killed included."""
    path = flow.folder / "measured.txt"
    return path.read_text().splitlines() if path.exists() else []


def told(flow):
    """(repeat, cell) of every record, by the time at which it began."""
    records = map(json.loads, flow.files("results/records/**/*.json").values())
    return [
        (record["repeat"], record["cell_id"])
        for record in sorted(records, key=lambda record: record["started_at"])
    ]


def test_blocks_are_added_until_intervals_are_narrow_each_in_its_seeded_order(prepared, finished):
    flow = prepared(planned())
    plant(flow, finished)
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
    decisions = [json.loads(text) for text in flow.files("results/repeats/tiny/*.json").values()]
    assert [decision["more"] for decision in decisions] == [True, True, True, False]
    narrow = [sum(cell["narrow"] for cell in decision["cells"].values()) for decision in decisions]
    assert narrow == [2, 2, 2, 3]
    assert (flow.folder / "results/report.html").exists()
    assert "Nothing to be done" in flow.run("-n")
