"""Which models are kept, what training and evaluating them leave behind, and the confusion matrix."""

import copy

import measure_fixtures as toys
import numpy as np
import pytest
import torch
from config_fixtures import with_tiny
from hypothesis import given
from hypothesis import strategies as st
from workflow_fixtures import Named, run_script

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.benchmarks.saved_models.evaluation import (
    confusion_matrix,
    evaluate_model,
    precision_by_class,
    recall_by_class,
)
from gpufeed.benchmarks.saved_models.image_files import samples
from gpufeed.benchmarks.saved_models.model_file import load, save
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.core.cells import cell_id
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError
from gpufeed.core.record import EVALUATION, MODEL
from gpufeed.training.runtime_context import Stores

# --- which


def config(models, **blocks):
    blocks = {
        "one": {"loader": ["resident", "replay"]},
        "two": {"loader": ["resident", "host_cache"]},
    } | blocks
    return with_tiny(blocks, common={"dataset": "synthetic"}, models=models)


def loaders(found):
    plan = planned(found)
    return [plan.cells["tiny"][cell].loader for cell in plan.cells_for(found, "tiny", "models")]


def test_the_cells_of_the_named_blocks_without_ceilings_and_each_once():
    assert loaders(config({"blocks": ["one"]})) == ["resident"]
    assert loaders(config({"blocks": ["two", "one"]})) == ["resident", "host_cache"]


def test_a_block_that_the_device_makes_impossible_keeps_none_and_stops_nothing():
    found = config({"blocks": ["one", "kernels"]}, kernels={"loader": "resident", "augment": "fused"})
    assert loaders(found) == ["resident", "resident"]
    assert loaders({**found, "device": "cpu"}) == ["resident"]


def test_an_experiment_without_models_keeps_none():
    found = config({"blocks": ["one"]})
    del found["experiments"]["tiny"]["models"]
    assert loaders(found) == []


def test_samples_are_of_the_evaluation_split_and_evenly_of_all_classes(tmp_path):
    manifest = toys.toy_manifest(tmp_path)
    table, path = manifest.table, manifest.write()
    held_out = table[table["split"] == manifest.info.evaluation_split]
    labels = {
        str(tmp_path / path): label for path, label in zip(held_out["path"], held_out["label"], strict=True)
    }
    classes = len(manifest.info.classes)
    for count in (1, classes, 2 * classes, len(held_out), len(held_out) + 9):
        found = samples(path, count)
        assert len(set(found)) == len(found) == min(count, len(held_out))
        assert found == samples(path, count)
        of = np.bincount([labels[file] for file in found], minlength=classes)
        assert of.max() - of.min() <= 1


@pytest.mark.parametrize(
    ("models", "blocks", "found"),
    [
        ({"blocks": ["won"]}, {}, "block 'won' in experiments.tiny.models.blocks"),
        ({"blocks": []}, {}, "experiments.tiny.models.blocks: []"),
        ({"blocks": ["one"], "top": 3}, {}, "key 'top'"),
        ({"predict": ["a.jpg"]}, {}, "no 'blocks'"),
        ({"blocks": ["one"], "samples": -1}, {}, "experiments.tiny.models.samples: -1"),
        ({"blocks": ["three"]}, {"three": {"loader": "replay"}}, "no cell but the limit"),
        (
            {"blocks": ["three"]},
            {"three": {"dataset": "synthetic_224", "loader": "resident", "steps": 9}},
            "no evaluation split",
        ),
    ],
)
def test_a_wrong_key_is_told_before_anything_is_planned(models, blocks, found):
    with pytest.raises(GpufeedError) as caught:
        planned(config(models, **blocks))
    assert found in caught.value.found


# --- the matrix


def test_a_matrix_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 3])
    predicted = np.array([0, 1, 1, 1, 0, 1])
    matrix = confusion_matrix(labels, predicted, 4)
    assert matrix.tolist() == [[1, 2, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert recall_by_class(matrix) == [1 / 3, 1 / 2, None, 0]
    assert precision_by_class(matrix) == [1 / 2, 1 / 4, None, None]


answers = st.integers(1, 9).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(
            st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=60
        ),
    )
)


@given(answers)
def test_sums_of_any_matrix(found):
    classes, pairs = found
    labels, predicted = np.array(pairs).T
    matrix = confusion_matrix(labels, predicted, classes)
    assert matrix.shape == (classes, classes)
    assert matrix.sum() == len(pairs)
    assert matrix.sum(axis=1).tolist() == [(labels == c).sum() for c in range(classes)]
    assert matrix.sum(axis=0).tolist() == [(predicted == c).sum() for c in range(classes)]
    assert matrix.trace() == (labels == predicted).sum()
    for shares, wholes in ((recall_by_class(matrix), labels), (precision_by_class(matrix), predicted)):
        for c, share in enumerate(shares):
            of = wholes == c
            assert share == ((labels == predicted)[of].mean() if of.any() else None)


# --- training and evaluating


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Trains and evaluates a toy cell in a folder; returns both documents, checked."""
    toys.register(monkeypatch)
    manifest = toys.toy_manifest(tmp_path).write()

    def run(train=None, evaluate=None, **axes):
        cell = toys.toy_cell(**{"epochs": 15, **axes})
        attempt = train_model({**cell, **(train or {})}, manifest, Stores(), None, "login1", attempt=2)
        save(attempt.about, attempt.model, tmp_path / "model.pt")
        found = evaluate_model(
            {**cell, **(evaluate or {})}, tmp_path / "model.pt", manifest, Stores(), "login1", attempt=3
        )
        MODEL.write(attempt.about, tmp_path / "model.json")
        EVALUATION.write(found, tmp_path / "evaluation.json")
        return attempt, found

    return run


def test_a_kept_model_is_the_one_that_repeat_0_measured(toy, tmp_path):
    attempt, found = toy()
    record, _ = measure(toys.toy_cell(epochs=15), 0, tmp_path / "manifest.parquet", None, "login1")
    assert attempt.about["status"] == found["status"] == record.status == "done"
    assert [epoch["train_loss"] for epoch in attempt.about["epochs"]] == [
        epoch["train_loss"] for epoch in record.epochs
    ]
    assert {key: found[key] for key in ("split", "correct", "top1")} == {
        key: record.accuracy[key] for key in ("split", "correct", "top1")
    }
    assert found["loss"] == pytest.approx(record.accuracy["loss"], rel=1e-5)
    assert (attempt.about["attempt"], found["attempt"]) == (2, 3)
    assert found["trained"]["finished_at"] == attempt.about["finished_at"]


def test_the_matrix_counts_every_image_in_the_row_of_its_class(toy):
    _, found = toy(epochs=1)
    assert found["classes"] == ["red", "green", "blue"]
    assert [sum(row) for row in found["confusion"]] == [4, 4, 4]
    assert sum(row[i] for i, row in enumerate(found["confusion"])) == found["correct"]
    assert found["n"] == 12


def test_the_file_says_what_the_model_takes(toy, tmp_path):
    attempt, _ = toy()
    saved = load(tmp_path / "model.pt")
    assert saved.about == attempt.about
    assert saved.about["input"] == {
        "height": 8,
        "width": 8,
        "channels": 3,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
    }
    assert saved.classes == ["red", "green", "blue"]


def test_what_stops_the_training_reaches_the_evaluation(toy):
    attempt, found = toy(loader="MissingLoader")
    assert (attempt.about["status"], attempt.model, found["status"]) == ("skipped", None, "skipped")
    assert "a machine that this node lacks" in found["sentence"]
    attempt, found = toy(model="NaNModel")
    assert attempt.about["status"] == "failed"
    assert "training loss nan" in found["sentence"]


def test_what_stops_the_evaluation_alone(toy):
    attempt, found = toy(evaluate={"loader": "MissingLoader"})
    assert (attempt.about["status"], found["status"]) == ("done", "skipped")
    attempt, found = toy(evaluate={"loader": "LossyLoader", "batch_size": 4})
    assert (attempt.about["status"], found["status"]) == ("done", "failed")
    assert "11 images from LossyLoader in the evaluation" in found["sentence"]


def test_classes_of_another_dataset_fail_the_evaluation(toy, tmp_path):
    attempt, _ = toy(epochs=1)
    save({**attempt.about, "classes": ["red", "blue", "green"]}, attempt.model, tmp_path / "other.pt")
    found = evaluate_model(
        toys.toy_cell(), tmp_path / "other.pt", tmp_path / "manifest.parquet", Stores(), "login1"
    )
    assert found["status"] == "failed"
    assert "the same classes in the same order" in found["sentence"]


@pytest.mark.parametrize(("loader", "status"), [("ToyLoader", "done"), ("BreakingLoader", "failed")])
def test_the_scripts_write_their_files_and_end_well(tmp_path, monkeypatch, capsys, loader, status):
    toys.register(monkeypatch)
    monkeypatch.setenv("GPUFEED_PLANNED_ON", "login2")
    manifest = str(toys.toy_manifest(tmp_path).write())
    cell = toys.toy_cell(loader=loader)
    folder = tmp_path / cell["experiment"] / cell_id(cell)
    folder.mkdir(parents=True)
    files = {name: str(folder / name) for name in ("model.pt", "model.json", "evaluation.json")}
    common = {"log": [str(tmp_path / "job.log")], "threads": torch.get_num_threads()}
    common["params"] = Named(attempt=4, code="c0de")
    common["wildcards"], common["resources"] = Named(cell="cell"), Named()
    common["config"] = {"results": str(tmp_path / "results")}
    toys.give_cell(monkeypatch, cell)
    inputs = Named(manifest=manifest, cache=[], model=files["model.pt"])
    for script, output in (
        ("train_model", Named(model=files["model.pt"], about=files["model.json"])),
        ("evaluate_model", Named(evaluation=files["evaluation.json"])),
    ):
        run_script(script, input=copy.copy(inputs), output=output, **common)
    about, found = MODEL.read(files["model.json"]), EVALUATION.read(files["evaluation.json"])
    assert (about["status"], about["attempt"], about["planned_on"]) == (status, 4, "login2")
    assert found["status"] == ("done" if status == "done" else "skipped")
    assert ("the disk went away" in capsys.readouterr().err) == (status == "failed")
    assert not list(tmp_path.rglob("*.partial"))
