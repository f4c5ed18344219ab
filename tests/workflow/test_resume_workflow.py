"""A kept model whose training was killed, and the GPUs that cells with several devices take."""

import copy

import pytest
from workflow_fixtures import SHORT

from gpufeed.record import Record
from gpufeed.trained.model_file import load

pytestmark = pytest.mark.long


def config(**block) -> dict:
    """One cell, or one for each of the block's devices."""
    found = copy.deepcopy(SHORT)
    found["experiments"]["tiny"]["blocks"] = {"one": {"loader": "resident", **block}}
    return found


def test_a_killed_training_goes_on_at_the_next_run(prepared):
    wanted = config(epochs=400)  # of six steps
    wanted["experiments"]["tiny"]["models"] = {"blocks": ["one"]}
    flow = prepared(wanted)
    (record,) = flow.planned_records()
    cell = record.split("/")[-2]
    kept = flow.folder / f"results/models/tiny/{cell}"
    target = f"results/models/tiny/{cell}/model.pt"
    flow.kill(flow.start(target), (kept / "checkpoint.pt").exists)
    assert not (kept / "model.pt").exists()
    flow.run("--unlock")
    flow.run(target, "--rerun-incomplete")
    assert "going on after step" in (flow.folder / f"results/logs/train_model/tiny/{cell}.log").read_text()
    assert not list(kept.glob("checkpoint*"))
    assert [epoch["epoch"] for epoch in load(kept / "model.pt").about["epochs"]] == list(range(400))


def test_a_cell_takes_its_gpus_as_far_as_the_run_has_them(workflow):
    wanted = config(trainer="lightning", devices=[1, 2]) | {"device": "auto"}
    flow = workflow(wanted)

    def gpus(given: int) -> set[str]:
        said = flow.run("-n", "--resources", f"gpu={given}").split("rule measure_cell:")[1:]
        return {job.partition("gpu=")[2].split(",")[0].split()[0] for job in said}

    assert gpus(4) == {"1", "2"}
    assert gpus(1) == {"1"}


def test_two_processes_of_one_job_give_one_record(prepared):
    flow = prepared(config(trainer="lightning", devices=2, epochs=2))
    (path,) = flow.planned_records()
    flow.run(path)
    record = Record.read(flow.folder / path)
    assert record.status == "done", record.sentence
    assert record.resolved["devices"] == 2
    assert [epoch["images"] for epoch in record.epochs] == [48, 48]
    log = (flow.folder / path.replace("records", "logs/measure_cell").replace(".json", ".log")).read_text()
    assert "[rank0]:INFO epoch 1" in log
    assert "[rank1]:INFO epoch" not in log
