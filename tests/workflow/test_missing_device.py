"""A node without the device that the config asks for: skipped from the gate to the page, and for it alone."""

import json

import pytest
import torch
from workflow_fixtures import with_blocks

from gpufeed.core.record import EVALUATION, Record

pytestmark = pytest.mark.slow

BLOCKS = {
    "loaders": {"loader": "dataloader_sync", "augment": "torch"},
    "kept": {"loader": "resident", "augment": "torch"},
}
CONFIG = with_blocks(BLOCKS, models={"blocks": ["kept"], "predict": ["gone.jpg"]}) | {"device": "cuda"}


def plan_on_another_node(path):
    """Has the document at `path` say that it comes from there."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "planned_on": "another-node"}))


def test_what_the_node_lacks_is_skipped_with_a_sentence_that_another_node_tries_again(prepared):
    if torch.cuda.is_available():
        pytest.skip("this node has the CUDA GPU that the jobs must not find")
    flow = prepared(CONFIG)
    (flow.folder / "gone.jpg").write_bytes(b"not an image")
    flow.run()
    verdicts = flow.documents("results/gate/**/*.json")
    assert len(verdicts) == 2
    records = {path: Record.read(flow.folder / path) for path in flow.planned_records()}
    assert len(records) == 2
    assert {found["status"] for found in verdicts.values()} == {"skipped"}
    assert {record.status for record in records.values()} == {"skipped"}
    (sentence,) = {found["sentence"] for found in verdicts.values()}
    assert "CUDA" in sentence
    assert {record.sentence for record in records.values()} == {sentence}

    (path,) = flow.folder.glob("results/models/tiny/*/evaluation.json")
    evaluation = EVALUATION.read(path)
    assert evaluation["status"] == "skipped"
    assert "CUDA" in evaluation["sentence"]
    assert "CUDA" in path.with_name("predictions.csv").read_text()
    page = (flow.folder / "results/report.html").read_text().replace("&#39;", "'")
    assert sentence in page
    assert evaluation["sentence"] in page
    assert "Nothing to be done" in flow.run()  # final on this node

    plan_on_another_node(path.with_name("model.json"))  # but not on another one
    said = flow.run("-n")
    for rule in ("train_model", "evaluate_model", "predict", "assemble_report"):
        assert f"rule {rule}" in said
    assert "rule measure_cell" not in said
    plan_on_another_node(flow.folder / next(iter(records)))
    assert "rule measure_cell" in flow.run("-n")
