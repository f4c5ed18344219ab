"""Cells as files: what their jobs read, and what a new one runs again."""

import copy
import json
import os

import pytest
import yaml
from workflow_fixtures import SHORT

pytestmark = pytest.mark.long
UNTIL = ("--until", "measure_cell")


def two_models():
    """Two cells that wait for no gate: a ceiling of each of two models."""
    config = copy.deepcopy(SHORT)
    config["experiments"]["tiny"]["common"] |= {"model": ["simple_cnn", "resnet18"], "steps": 4}
    config["experiments"]["tiny"]["common"]["overrides"] = [["trainer.learning_rate=0.002"]]
    config["experiments"]["tiny"]["blocks"] = {"ceiling": {"loader": "replay"}}
    return config


def test_a_cell_travels_as_a_file_that_measures_again_only_if_the_cell_is_another(prepared):
    flow = prepared(two_models())
    flow.run(*UNTIL)
    cells = {path: yaml.safe_load(text) for path, text in flow.files("results/cells/tiny/*.yaml").items()}
    records = [json.loads(text) for text in flow.files("results/records/**/*.json").values()]
    assert {record["status"] for record in records} == {"done"}
    assert len(cells) == len(records) == 2
    tracked = {f"results/tracking/tiny/{record['cell_id']}/0-1.csv" for record in records}
    assert set(flow.files("results/tracking/**/*.csv")) == tracked
    for record in records:
        path = f"results/cells/tiny/{record['cell_id']}.yaml"
        assert cells[path] == record["cell"]
        comment = (flow.folder / path).read_text().split("experiment: ")[0]
        assert "python -m gpufeed.train" in comment
        assert "++data.options.count=60" in comment
        assert cells[path]["hyper"]["trainer"]["learning_rate"] == 0.002

    for path in cells:  # newer than their records, and made again: still the same cells
        os.utime(flow.folder / path)
    assert "rule measure_cell" not in flow.run("-n", *UNTIL)
    said = flow.run("-n", "--forcerun", "compose_cell", *UNTIL)
    assert said.count("rule compose_cell:") == 2
    assert "rule measure_cell" not in said

    stem = flow.folder / "config/hydra/model/resnet18.yaml"
    stem.write_text("stem: cifar\n")
    said = flow.run("-n", *UNTIL)
    assert (said.count("rule compose_cell:"), said.count("rule measure_cell:")) == (1, 1)
    assert "simple_cnn" not in said
