"""An experiment with `advice`: every cell is probed, and only what is advised is judged and measured."""

import json
import re

import pandas as pd
import pytest
from workflow_fixtures import jobs_of, with_blocks

ADVISED = {
    "today": {"loader": "dataloader_sync", "augment": "torch"},
    "other": {"loader": "resident", "augment": "torch"},
    "ceiling": {"loader": "replay", "augment": "torch"},
}


def shorten_passes(flow):
    """Let a probe end as soon as it can: here no number of it matters."""
    module = flow.folder / "gpufeed/benchmarks/probe.py"
    text = module.read_text()
    for line in ("ROUND_S = 0.5 ", "TOGETHER_S = 3.0 "):
        assert f"\n{line} #" in text
        text = text.replace(line, f"{line.partition('=')[0]}= 0.01 ")
    module.write_text(text)


@pytest.mark.slow
def test_cells_are_probed_and_the_best_one_is_measured_beside_todays(prepared):
    flow = prepared(with_blocks(ADVISED, advice={"of": "today", "best": 1}))
    shorten_passes(flow)
    part = jobs_of(flow.run("-n", "--config", "only={loader: [resident]}"))  # asks for no advice
    assert part["measure_cell"] == 1
    assert not {"probe_cell", "advise"} & part.keys()
    said = flow.run("report")  # before anything: what is missing is known
    missing = "2 repeats of 2 cells, 1 equivalence check, 2 probes of cells and 1 advice"
    assert f"missing: tiny: {missing}" in said
    flow.run()
    probes = flow.documents("results/probes/tiny/*.json")
    assert {path.split("-")[1] for path in probes} == {"dataloader_sync", "resident"}
    assert {found["status"] for found in probes.values()} == {"done"}
    advice = json.loads((flow.folder / "results/advice/tiny.json").read_text())
    chosen = [one["cell_id"] for one in advice["candidates"] if one["chosen"]]
    assert len(chosen) <= 1  # none, where this machine was busy while today's cell was probed
    records = {path.parent.name.split("-")[1] for path in flow.folder.glob("results/records/tiny/*/0.json")}
    assert records == {"dataloader_sync", "replay", *(name.split("-")[1] for name in chosen)}
    judged = {path.parent.name for path in flow.folder.glob("results/gate/synthetic/*/*.json")}
    assert judged == records - {"replay"}
    table = pd.read_csv(flow.folder / "results/tables/tiny/cells.csv").set_index("loader")
    assert set(table.index) == records
    assert table.loc["dataloader_sync", "predicted_images_per_s"] > 0
    page = (flow.folder / "results/report.html").read_text()
    section = page[page.index('<section id="answer"') :]
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section))
    assert words.index("What to change") < words.index("Leaderboard")
    assert "What you do today reaches" in words
    assert any(answer in words for answer in ("Do this: ", "Leave it as it is"))
    assert "Nothing to be done" in flow.run("-n")
