"""What a measurement of a model in use says: accuracy, times, and why a backend has none."""

import statistics
import time

import measure_fixtures as toys
import pytest
import torch
from workflow_fixtures import Named, run_script

from gpufeed.benchmarks.inference import inference_row
from gpufeed.benchmarks.inference.backend import Ready, forward_of
from gpufeed.benchmarks.inference.exported_files import EXPORTED, Files
from gpufeed.benchmarks.inference.inference_benchmark import measure_inference
from gpufeed.benchmarks.saved_models.evaluation import evaluate_model
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.core import record, registry
from gpufeed.core.cells import cell_id
from gpufeed.core.errors import Skip
from gpufeed.core.plan_inference import pairs
from gpufeed.training.runtime_context import Stores

SETTINGS = {
    "backends": ["eager"],
    "precisions": ["fp32", "bf16"],
    "batch_sizes": [8, 5],
    "calls": 6,
    "rounds": 3,
    "seconds": 0.001,
}
CALLS = []  # (what, batch), as the toys below were called


def noting(name, change=None, fails_at=None):
    """An eager backend that notes its calls. change: of its logits. fails_at: a batch that it cannot do."""

    def prepare(setting):
        batch = len(setting.images)
        CALLS.append((f"prepare {name}", batch))
        if batch == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nAnd more")
        _, forward = forward_of(setting, "fp32")

        def run(images):
            CALLS.append((name, len(images)))
            logits = forward(images)
            return logits if change is None else change(logits)

        return Ready(run, 100, "A note.")

    return prepare


def skipping(setting):
    raise Skip("This node has no abacus.")


def breaking(logits):
    """Works until it is timed."""
    if sum(what == "late" for what, _ in CALLS) > 3:
        raise RuntimeError("the abacus broke\nand fell")
    return logits


plain = noting("plain")
turned = noting("turned", lambda logits: logits.roll(1, dims=1))
narrow = noting("narrow", lambda logits: logits[:, :2])
half = noting("half", lambda logits: logits.half())
endless = noting("endless", lambda logits: logits / 0)
greedy = noting("greedy", fails_at=8)
late = noting("late", breaking)
TOYS = ("plain", "turned", "narrow", "half", "endless", "greedy", "late", "skipping")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Trains a toy once and measures it by these backends; returns the document, checked."""
    toys.register(monkeypatch)
    for name in TOYS:
        entry = registry.BackendEntry(f"test_inference_measure:{name}", ("fp32",))
        monkeypatch.setitem(registry.BACKENDS, name, entry)
    manifest = toys.toy_manifest(tmp_path).write()
    CALLS.clear()

    def run(*backends, train=None, **settings):
        cell = {**toys.toy_cell(epochs=15), **(train or {})}
        path = tmp_path / "model.pt"
        trained = train_model(cell, manifest, Stores(), None, "login1")
        save(trained.about, trained.model, path)
        wanted = {**SETTINGS, "backends": list(backends), **settings}
        found = measure_inference(cell, path, Files({}, {}), manifest, Stores(), wanted, "login1", attempt=3)
        record.INFERENCE.write(found, tmp_path / "found.json")
        evaluation = evaluate_model(cell, path, manifest, Stores(), "login1")
        return found, {(row["backend"], row["precision"]): row for row in found["rows"]}, evaluation

    return run


@pytest.mark.slow
def test_accuracy_is_that_of_the_evaluation_and_compared_with_eager(toy):
    found, rows, evaluation = toy("eager", "plain", "turned")
    assert (found["status"], found["attempt"], found["split"]) == ("done", 3, "test")
    assert list(rows) == [("eager", "fp32"), ("eager", "bf16"), ("plain", "fp32"), ("turned", "fp32")]
    for name in ("eager", "plain"):
        row = rows[name, "fp32"]
        assert row["images"] == evaluation["n"] == 12
        assert row["correct"] == evaluation["correct"]
        assert (row["agreement"], row["over_fp32"]) == (1, 0)
    bf16 = rows["eager", "bf16"]
    assert bf16["over_bf16"] == 0
    turned = rows["turned", "fp32"]
    assert (turned["correct"], turned["agreement"]) == (0, 0)
    assert turned["over_fp32"] == -evaluation["top1"]
    assert turned["over_bf16"] == -bf16["top1"]
    assert turned["note"] == "A note."
    assert bf16["bytes"] * 2 == rows["eager", "fp32"]["bytes"]


@pytest.mark.slow
def test_times_of_one_image_and_of_batches(toy):
    found, rows, _ = toy("plain")
    assert list(rows) == [("eager", "fp32"), ("plain", "fp32")]  # the reference is measured unasked
    for row in rows.values():
        latency = row["latency"]
        assert (latency["batch"], latency["n"], latency["device_ms"]) == (1, 6, None)
        assert 0 < latency["host_ms"]["median"] <= latency["host_ms"]["p90"] <= latency["host_ms"]["p99"]
        assert [entry["batch"] for entry in row["throughput"]] == [5, 8]
        for entry in row["throughput"]:
            rate = entry["images_per_s"]
            assert entry["n"] == 3
            assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert [entry["batch"] for entry in row["setup"]] == [1, 5, 8]
        assert {entry["peak_gpu_mib"] for entry in row["setup"]} == {None}
    assert found["settings"]["warmup"] == inference_row.WARMUP


def test_backends_take_turns_and_every_other_round_backwards(toy):
    toy("plain", "turned", rounds=3)
    runs = [(what, batch) for what, batch in CALLS if not what.startswith("prepare")]
    for batch in (1, 8):
        order = [what for what, size in runs if size == batch]
        turns = [what for number, what in enumerate(order) if number == 0 or order[number - 1] != what]
        # once each when set up, then the rounds; where two turns of one meet they count as one
        assert turns == ["plain", "turned", "plain", "turned", "plain", "turned"]
    prepared = [batch for what, batch in CALLS if what.startswith("prepare")]
    assert prepared == [1, 1, 5, 5, 8, 8]  # all of a batch before any is timed


@pytest.mark.slow
def test_what_one_backend_lacks_or_does_wrong_stops_no_other(toy):
    found, rows, _ = toy("skipping", "narrow", "half", "endless", "greedy", "late", "plain")
    assert found["status"] == "done"
    told = {backend: (row["status"], row["sentence"]) for (backend, _), row in rows.items()}
    assert told["plain"] == told["eager"] == ("done", None)
    assert told["skipping"] == ("skipped", "This node has no abacus.")
    assert told["greedy"] == (
        "failed",
        "At batch 8: CUDA ran out of memory: CUDA out of memory. Tried to allocate 9 GiB.",
    )
    for name, words in (("narrow", "(1, 2)"), ("half", "torch.float16"), ("endless", "not finite")):
        assert told[name][0] == "failed"
        assert words in told[name][1]
    assert told["late"][1].endswith("RuntimeError: the abacus broke")
    greedy = rows["greedy", "fp32"]
    assert greedy["latency"]["n"] == 6  # what was measured before stays
    assert [entry["batch"] for entry in greedy["throughput"]] == [5]
    assert greedy["images"] == 12
    assert rows["skipping", "fp32"]["latency"] is None


def test_what_stops_it_all_is_the_documents_sentence(toy):
    found, rows, _ = toy("eager", train={"loader": "MissingLoader"})
    assert (found["status"], rows) == ("skipped", {})
    assert "a machine that this node lacks" in found["sentence"]
    assert found["settings"]["rounds"] == 3


def test_a_call_is_waited_for_and_counted(monkeypatch):
    calls = []

    def run(images):
        calls.append(len(images))
        time.sleep(0.01)

    host, device = inference_row.latencies(run, torch.zeros(1, 3, 2, 2), 4)
    assert device is None
    assert len(host) == 4
    assert len(calls) == 4 + inference_row.WARMUP
    assert min(host) >= 10
    rate = inference_row.images_per_s(run, torch.zeros(50, 3, 2, 2), 0.05)
    assert rate <= 50 / 0.01
    monkeypatch.setattr(inference_row, "MOST_SECONDS", 0.015)
    calls.clear()
    host, _ = inference_row.latencies(run, torch.zeros(1, 3, 2, 2), 100)
    assert 1 <= len(host) < 100
    monkeypatch.setattr(inference_row, "LONG_S", 0.005)
    calls.clear()
    assert inference_row.images_per_s(run, torch.zeros(50, 3, 2, 2), 1) <= 50 / 0.01
    assert len(calls) == 1


def test_quantiles_by_hand():
    values = list(range(101))
    assert inference_row.quantiles(values) == {"median": statistics.median(values), "p90": 90, "p99": 99}


def test_rows_are_those_asked_for_the_reference_first():
    settings = {"backends": ["onnxruntime_int8", "compiled", "export"], "precisions": ["bf16"]}
    assert pairs(settings) == [("eager", "fp32"), ("onnxruntime_int8", "int8"), ("compiled", "bf16")]
    settings = {"backends": ["compiled", "eager"], "precisions": ["bf16", "fp32"]}
    assert pairs(settings)[0] == ("eager", "fp32")
    assert len(set(pairs(settings))) == len(pairs(settings)) == 4


def test_the_scripts_write_their_files_one_after_another(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    toys.register(monkeypatch)
    monkeypatch.setenv("GPUFEED_PLANNED_ON", "login2")
    manifest = str(toys.toy_manifest(tmp_path).write())
    cell = toys.toy_cell(epochs=1)
    trained = train_model(cell, manifest, Stores(), None, "login1")
    save(trained.about, trained.model, tmp_path / "model.pt")
    at = {name: str(tmp_path / name) for name in ("exported", "quantised", "model.pt")}
    at["found.json"] = str(tmp_path / cell["experiment"] / f"{cell_id(cell)}.json")
    lists = {name: str(tmp_path / f"{name}.json") for name in ("exported", "quantised")}
    settings = {**SETTINGS, "backends": ["eager", "export", "onnxruntime", "onnxruntime_int8"]}
    common = {"log": [str(tmp_path / "job.log")], "threads": 1, "wildcards": Named(cell="cell")}
    common["resources"] = Named()
    toys.give_cell(monkeypatch, cell)
    params = Named(attempt=4, settings=settings, calibration={"images": 9, "method": "minmax", "seed": 0})
    inputs = Named(
        manifest=manifest,
        cache=[],
        model=at["model.pt"],
        exported=lists["exported"],
        exported_files=at["exported"],
        quantised=lists["quantised"],
        quantised_files=at["quantised"],
    )
    for script, output in (
        ("export_model", Named(exported=lists["exported"], files=at["exported"])),
        ("quantise_model", Named(quantised=lists["quantised"], files=at["quantised"])),
        ("measure_inference", Named(inference=at["found.json"])),
    ):
        run_script(script, input=inputs, output=output, params=params, **common)
    assert {row["status"] for row in EXPORTED.read(lists["exported"])["rows"]} == {"done"}
    assert EXPORTED.read(lists["quantised"])["planned_on"] == "login2"
    found = record.INFERENCE.read(at["found.json"])
    rows = {row["backend"]: row for row in found["rows"]}
    assert found["attempt"] == 4
    assert {row["status"] for row in rows.values()} == {"done"}
    assert rows["export"]["agreement"] == rows["onnxruntime"]["agreement"] == 1
    assert rows["onnxruntime_int8"]["bytes"] != rows["onnxruntime"]["bytes"]
