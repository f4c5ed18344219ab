"""Blocks of repeats: their order by the times at which measurements began. What is measured is planted."""

import json
import shutil

from data_fixtures import REPOSITORY
from workflow_fixtures import TINY

from gpufeed.order import shuffled

PLANTED = REPOSITORY / "tests/fixtures/planted_measure.py"
SIZES = (4, 8, 16)


def planned(repeats):
    """Cells of several batch sizes, by which planted numbers tell them apart; one waits for a verdict."""
    blocks = {
        "sizes": {"loader": "replay", "augment": "torch", "batch_size": list(SIZES[1:])},
        "gated": {"loader": "dataloader_sync", "augment": "torch", "batch_size": SIZES[0]},
    }
    experiment = {**TINY["experiments"]["tiny"], "common": {"dataset": "synthetic"}, "blocks": blocks}
    return {**TINY, "repeats": repeats, "experiments": {"tiny": experiment}}


def plant(flow, finished, rates):
    """Lets the repeats of these batch sizes give these images/s, one after another."""
    shutil.copy(PLANTED, flow.folder / "workflow/scripts/measure_cell.py")
    (flow.folder / "planted.json").write_text(json.dumps(rates))
    record = next((finished / "results/records").glob("*/*/0.json"))
    shutil.copy(record, flow.folder / "planted_record.json")
    shutil.copy(record.with_suffix(".steps.parquet"), flow.folder / "planted_steps.parquet")


def told(flow):
    """(repeat, cell) of every record, by the time at which it began."""
    records = map(json.loads, flow.files("results/records/**/*.json").values())
    return [
        (record["repeat"], record["cell_id"])
        for record in sorted(records, key=lambda record: record["started_at"])
    ]


def expected(flow, repeats):
    cells = {cell for _, cell in told(flow)}
    return [(repeat, cell) for repeat in range(repeats) for cell in shuffled(cells, 0, repeat, "tiny")]


def test_all_cells_once_in_a_seeded_order_then_all_again_in_another(prepared, finished):
    flow = prepared(planned(3))
    plant(flow, finished, {size: [100] * 3 for size in SIZES})
    flow.run()
    assert told(flow) == expected(flow, 3)
    assert expected(flow, 3) != sorted(expected(flow, 3))
