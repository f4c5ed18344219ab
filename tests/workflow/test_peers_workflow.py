"""Loaders of other projects with files of their own, built and read; one whose package lacks is skipped."""

import pytest
from workflow_fixtures import with_blocks

pytestmark = pytest.mark.slow
LOADERS = ["webdataset", "ffcv"]
LACKS = ("[all]'", "needs the package ffcv")  # what is said on a node without it


def test_peers_are_judged_and_measured(prepared):
    flow = prepared(with_blocks({"peers": {"loader": LOADERS, "workers": 1}}))
    flow.run("--", *sorted(flow.planned_records()))
    verdicts = {found["loader"]: found for found in flow.documents("results/gate/**/*.json").values()}
    records = flow.documents("results/records/**/*.json").values()
    records = {record["cell"]["loader"]: record for record in records}
    assert set(verdicts) == set(records) == set(LOADERS)
    for name, record in records.items():
        if verdicts[name]["status"] == "skipped":
            assert any(lack in verdicts[name]["sentence"] for lack in LACKS)
            assert record["status"] == "skipped"
        else:
            assert (verdicts[name]["status"], record["status"]) == ("passed", "done")
            assert record["accuracy"] is not None
    stores = flow.documents("data/synthetic/*/*.json")
    shards = stores["data/synthetic/shards/shards.json"]["shards"]
    assert {shard["split"] for shard in shards} == {"train", "test"}
    assert stores["data/synthetic/beton/images.json"]["jpegs"] > 0
