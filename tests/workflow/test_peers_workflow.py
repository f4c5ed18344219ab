"""Loaders of other projects from files to the report; one whose package or library lacks is skipped."""

import json

import pytest
from workflow_fixtures import SHORT

from gpufeed.registry import LOADERS

pytestmark = pytest.mark.long
PEERS = {
    **SHORT,
    "experiments": {
        "tiny": {
            **SHORT["experiments"]["tiny"],
            "blocks": {
                "peers": {
                    "loader": ["spdl", "webdataset", "replay"],
                    "workers": [0, 2],
                    "augment": "torch",
                    "epochs": 2,
                }
            },
        }
    },
}


def documents(flow, kind: str) -> dict[str, list[dict]]:
    """The documents of a kind by loader."""
    found: dict[str, list[dict]] = {name: [] for name in LOADERS}
    for path in (flow.folder / "results" / kind).rglob("*.json"):
        document = json.loads(path.read_text())
        found[document["loader"] if kind == "gate" else document["cell"]["loader"]].append(document)
    return found


def test_peers_are_judged_measured_and_reported_and_nothing_runs_twice(prepared):
    flow = prepared(PEERS)
    flow.run()
    verdicts, records = documents(flow, "gate"), documents(flow, "records")
    for name in ("spdl", "webdataset"):
        assert len(verdicts[name]) == len(records[name]) == 2
        for verdict, record in zip(verdicts[name], records[name], strict=True):
            if verdict["status"] == "skipped":
                assert "gpufeed[peers]" in verdict["sentence"] or "FFmpeg" in verdict["sentence"]
                assert record["status"] == "skipped"
            else:
                assert (verdict["status"], record["status"]) == ("passed", "done")
                assert record["accuracy"] is not None
    index = json.loads((flow.folder / "data/synthetic/shards/shards.json").read_text())
    assert {shard["split"] for shard in index["shards"]} == {"train", "test"}
    assert "webdataset" in (flow.folder / "results/report.html").read_text()
    assert "Nothing to be done" in flow.run()
