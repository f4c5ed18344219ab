"""The gate in whole runs: a planted wrong loader gets no timing; every setting has its own verdict."""

import pytest
from workflow_fixtures import SHORT, with_blocks

pytestmark = pytest.mark.slow

PLANTED = '''
from dataclasses import replace

from gpufeed.loaders.resident import ResidentLoader


class Planted(ResidentLoader):
    """resident with every label shifted by one, from the second epoch on."""

    def epoch_batches(self, done):
        for batch in super().epoch_batches(done):
            yield replace(batch, labels=(batch.labels + 1) % 3) if self.epoch else batch
'''
RIGHT, WRONG = "gpufeed.loaders.resident:ResidentLoader", "gpufeed.loaders.planted:Planted"


def record_of(flow, loader):
    (record,) = flow.documents(f"results/records/tiny/*-{loader}-*/*.json").values()
    return record


def register(flow, old, new):
    """Changes the one line of the registry in the copy."""
    path = flow.folder / "gpufeed/core/registry.py"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_wrong_loader_is_a_failed_record_without_timing_until_it_is_right(prepared):
    flow = prepared(SHORT)
    (flow.folder / "gpufeed/loaders/planted.py").write_text(PLANTED)
    register(flow, RIGHT, WRONG)
    flow.run()
    (verdict,) = flow.documents("results/gate/synthetic/resident/*.json").values()
    assert (verdict["status"], verdict["attempt"]) == ("failed", 1)
    record = record_of(flow, "resident")
    assert (record["status"], record["attempt"]) == ("failed", 1)
    assert "resident did not pass the equivalence check: in epoch 2 of 3 of split train" in record["sentence"]
    assert "labels differ" in record["sentence"]
    assert (record["throughput"], record["steps"], record["epochs"]) == (None, None, [])
    assert record_of(flow, "dataloader_sync")["status"] == "done"
    page = (flow.folder / "results/report.html").read_text()
    assert "resident did not pass the equivalence check" in page
    assert '<span class="tag failed">failed</span>' in page[page.index('<section id="same">') :]

    said = flow.run("-n")  # failed ones are tried again, the verdict before its cell
    assert (said.count("rule gate:"), said.count("rule measure_cell:")) == (1, 1)

    register(flow, WRONG, RIGHT)
    kept = flow.files("results/records/tiny/*dataloader_sync*/*.json")
    flow.run("--until", "measure_cell")
    again = record_of(flow, "resident")
    assert (again["status"], again["attempt"]) == ("done", 2)
    assert flow.files("results/records/tiny/*dataloader_sync*/*.json") == kept


def test_another_setting_is_judged_and_measured_alone(measured):
    loaders = ["dataloader_sync", "resident", "replay"]
    config = with_blocks({"both": {"loader": loaders, "augment": "torch", "batch_size": [8, 16]}})
    flow = measured(config)
    said = flow.run("-n", "--until", "measure_cell")
    assert said.count("rule measure_cell:") == 4  # two ceilings, and both loaders with the new batch size
    assert said.count("rule gate:") == 2  # none for a ceiling
    for loader in ("dataloader_sync", "resident"):
        assert f"results/gate/synthetic/{loader}/b16-w0-pinned-s0-cpu.json" in said

    flow.configure({**config, "device": "auto"})
    said = flow.run("-n", "--until", "measure_cell")
    assert "rule gate:" in said  # a verdict holds for the device that the config names
    assert "rule build_cache:" not in said  # a cache by a CPU decoder for any
