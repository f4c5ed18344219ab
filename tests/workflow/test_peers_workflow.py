"""Loaders of other projects from files to records; one whose package or library lacks is skipped."""

import json

import pytest
from workflow_fixtures import SHORT

pytestmark = pytest.mark.slow
TINY = SHORT["experiments"]["tiny"]
LOADERS = ["spdl", "webdataset", "ffcv"]
STAYS = "spdl_processes"
LACKS = ("gpufeed[peers]", "FFmpeg", "needs the package ffcv")  # what is said on a node without it
BLOCKS = {
    "peers": {"loader": LOADERS, "workers": 1},
    "stays": {"loader": STAYS, "workers": 1, "persistent_workers": True},
}
PEERS = {
    **SHORT,
    "experiments": {"tiny": {**TINY, "blocks": BLOCKS}},
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
    assert set(verdicts) == set(records) == {*LOADERS, STAYS}
    for name, record in records.items():
        if verdicts[name]["status"] == "skipped":
            assert any(lack in verdicts[name]["sentence"] for lack in LACKS)
            assert record["status"] == "skipped"
        else:
            assert (verdicts[name]["status"], record["status"]) == ("passed", "done")
            assert record["accuracy"] is not None
    index = json.loads((flow.folder / "data/synthetic/shards/shards.json").read_text())
    assert {shard["split"] for shard in index["shards"]} == {"train", "test"}
    assert json.loads((flow.folder / "data/synthetic/beton/images.json").read_text())["jpegs"] > 0
