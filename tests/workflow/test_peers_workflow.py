"""Loaders of other projects from files to records; one whose package or library lacks is skipped."""

import json

import pytest
from workflow_fixtures import SHORT

pytestmark = pytest.mark.long
TINY = SHORT["experiments"]["tiny"]
PEERS = {
    **SHORT,
    "experiments": {"tiny": {**TINY, "blocks": {"peers": {"loader": ["spdl", "webdataset"], "workers": 1}}}},
}


def test_peers_are_judged_and_measured(prepared):
    flow = prepared(PEERS)
    wanted = sorted(flow.planned_records())
    flow.run("--", *wanted)
    verdicts = {
        json.loads(text)["loader"]: json.loads(text) for text in flow.files("results/gate/**/*.json").values()
    }
    records = {
        record["cell"]["loader"]: record
        for record in map(json.loads, flow.files("results/records/**/*.json").values())
    }
    assert set(verdicts) == set(records) == {"spdl", "webdataset"}
    for name, record in records.items():
        if verdicts[name]["status"] == "skipped":
            assert "gpufeed[peers]" in verdicts[name]["sentence"] or "FFmpeg" in verdicts[name]["sentence"]
            assert record["status"] == "skipped"
        else:
            assert (verdicts[name]["status"], record["status"]) == ("passed", "done")
            assert record["accuracy"] is not None
    index = json.loads((flow.folder / "data/synthetic/shards/shards.json").read_text())
    assert {shard["split"] for shard in index["shards"]} == {"train", "test"}
