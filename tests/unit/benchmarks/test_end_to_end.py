import subprocess
import sys
import time
from dataclasses import asdict, replace

import measure_fixtures as toys
import pandas as pd
import pytest
import torch
from data_fixtures import needs_eviction
from fastai_fixtures import FASTAI_OPTIONS
from image_fixtures import request, write_dataset
from workflow_fixtures import Named, run_script

from gpufeed.benchmarks.end_to_end import COLUMNS, dataset_facts, measure
from gpufeed.core.cells import Cell, cell_id
from gpufeed.core.record import RECORD, Record
from gpufeed.datasets import packed
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.packed import pack
from gpufeed.report.load_records import read_records
from gpufeed.stores.decoded_cache import build
from gpufeed.system import page_cache
from gpufeed.system.cores import can_restrict, on_cores
from gpufeed.system.environment import cores_allowed, filesystem
from gpufeed.training.engines.plain import PlainTrainer
from gpufeed.training.runtime_context import Stores, workers_of


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Measures a toy cell and checks its record against the schema."""
    toys.register(monkeypatch)
    manifest = toys.toy_manifest(tmp_path).write()

    def run(repeat=0, least_s=0.0, **axes):
        record, steps = measure(toys.toy_cell(**axes), repeat, manifest, None, "login1", least_s=least_s)
        RECORD.check(asdict(record), tmp_path)
        assert list(steps.columns) == list(COLUMNS)
        assert {name: str(dtype) for name, dtype in steps.dtypes.items()} == COLUMNS
        return record, steps

    return run


FASTAI = {"hyper": {"model": {"channels": [8, 16]}, "trainer": FASTAI_OPTIONS, "augment": {}}}
OF_TRAINER = pytest.mark.parametrize("axes", [{"trainer": "plain"}, {"trainer": "fastai", **FASTAI}])


@OF_TRAINER
def test_a_done_cell_fills_its_record(run, tmp_path, axes):
    record, steps = run(repeat=2, epochs=3, **axes)
    assert (record.status, record.sentence, record.planned_on) == ("done", None, "login1")
    assert record.resolved == {"device": "cpu", "precision": "fp32", "threads": torch.get_num_threads()}
    assert record.warmup["steps"] == 4
    assert record.steps["n"] == 8
    assert record.throughput["images"] == 60
    assert [epoch["images"] for epoch in record.epochs] == [30] * 3
    assert (record.accuracy["split"], record.accuracy["images"]) == ("test", 12)
    assert record.memory["peak_gpu_mib"] is None
    assert record.memory["peak_host_mib"] > 10
    assert min(record.phases["evaluation_s"], record.phases["first_batch_s"]) > 0
    size = {"classes": 3, "height": 8, "width": 8}
    left_out = {"quarantined": 0, "examples": []}
    place = {"cache": None, "filesystem": filesystem(tmp_path)}
    assert place["filesystem"]
    assert record.dataset == {"samples": 42, **size, **left_out, **place}
    assert len(steps) == 12
    assert set(steps["repeat"]) == {2}
    assert set(steps["cell_id"]) == {record.cell_id}
    path = tmp_path / record.experiment / record.cell_id / f"{record.repeat}.json"
    record.write(path)
    assert Record.read(path) == record


@pytest.mark.parametrize(("axes", "steps"), [({"epochs": 2}, [4, 4]), ({"steps": 6}, [4, 2])])
def test_what_was_measured_beyond_the_plan_is_no_part_of_its_epochs(run, monkeypatch, axes, steps):
    toys.hundred_steps_a_second(monkeypatch)
    planned, _ = run(**axes)
    longer, rows = run(**axes, least_s=0.2)
    assert longer.steps["n"] >= 20 > planned.steps["n"]
    assert len(rows) == longer.warmup["steps"] + longer.steps["n"]
    assert longer.throughput["images"] > planned.throughput["images"]
    assert [epoch["steps"] for epoch in longer.epochs] == steps
    losses = [epoch["train_loss"] for epoch in planned.epochs]
    assert [epoch["train_loss"] for epoch in longer.epochs] == pytest.approx(losses)
    assert longer.accuracy == planned.accuracy
    assert [epoch["accuracy"] for epoch in longer.epochs] == [epoch["accuracy"] for epoch in planned.epochs]


PARTS = ("start_s", "import_s", "load_s", "compile_s", "run_s", "evaluation_s")


def test_a_record_tells_where_its_seconds_went(tmp_path, monkeypatch):
    toys.register(monkeypatch)
    manifest, began = toys.toy_manifest(tmp_path).write(), time.time()
    time.sleep(0.05)
    record, _ = measure(toys.toy_cell(), 0, manifest, None, "login1", began_s=began)
    RECORD.check(asdict(record), tmp_path)
    phases = record.phases
    assert 0.05 <= phases["import_s"] <= phases["start_to_ready_s"]
    assert phases["start_s"] + phases["import_s"] == pytest.approx(phases["start_to_ready_s"])
    assert phases["run_s"] >= sum(epoch["epoch_s"] for epoch in record.epochs) > 0
    assert phases["compile_s"] <= phases["setup_s"] <= phases["load_s"] + phases["compile_s"]
    assert sum(phases[name] for name in PARTS) <= phases["wall_s"]


def test_slow_parts_of_a_repeat_are_told_apart(run, monkeypatch):
    slow, (opened, prepared) = 0.2, (toys.ToyLoader.open, PlainTrainer.prepare)
    quick = run()[0].phases
    monkeypatch.setattr(toys.ToyLoader, "open", lambda self: (time.sleep(slow), opened(self)))
    monkeypatch.setattr(
        PlainTrainer, "prepare", lambda self, example: (time.sleep(2 * slow), prepared(self, example))
    )
    phases = run()[0].phases
    assert phases["load_s"] >= slow
    assert phases["compile_s"] >= 2 * slow
    assert phases["run_s"] + phases["load_s"] <= phases["wall_s"] - phases["compile_s"]
    assert not {"start_s", "import_s"} & set(quick)  # nobody took the time before the imports


def test_unpacking_is_a_part_of_its_own_ahead_of_all_others(run, tmp_path, monkeypatch):
    slow, settle = 1.0, packed.settle
    monkeypatch.setenv(packed.VARIABLE, str(tmp_path / "node"))
    monkeypatch.setattr(packed, "settle", lambda folder: (time.sleep(slow), settle(folder)))
    assert "unpack_s" not in run()[0].phases
    (tmp_path / "images").mkdir()
    (tmp_path / "images/0.png").write_bytes(b"0")
    pack(tmp_path, tmp_path / "packed")
    record, _ = measure(toys.toy_cell(), 0, tmp_path / "packed/manifest.parquet", None, "login1")
    RECORD.check(asdict(record), tmp_path)
    phases = record.phases
    assert phases["unpack_s"] >= slow
    parts = ("start_to_ready_s", "unpack_s", "load_s", "compile_s", "run_s", "evaluation_s")
    assert sum(phases[name] for name in parts) <= phases["wall_s"]
    assert phases["setup_s"] <= phases["load_s"] + phases["compile_s"]
    again, _ = measure(toys.toy_cell(), 0, tmp_path / "packed/manifest.parquet", None, "login1")
    assert 0 <= again.phases["unpack_s"] < slow


def test_a_record_tells_of_broken_files_and_of_its_cache(tmp_path):
    broken = [{"path": f"{i}.png", "reason": "cut"} for i in range(25)]
    whole = write_dataset(tmp_path / "tiny")
    manifest = Manifest(whole.root, replace(whole.info, quarantined=broken), whole.table)
    build(manifest, "pillow", tmp_path / "pillow.npy")
    facts = dataset_facts(request(manifest, None), Stores(tmp_path / "pillow.npy"))
    assert (facts["samples"], facts["quarantined"]) == (29, 25)
    assert facts["examples"] == broken[:20]
    assert facts["cache"].startswith("pillow ")


@pytest.fixture
def run_cold(tmp_path, monkeypatch):
    """Measures a cell of 23 image files in batches of 8 that are evicted before; returns record and files."""
    toys.register(monkeypatch)
    manifest = write_dataset(tmp_path / "tiny")

    def run_cold(**axes):
        cell = toys.toy_cell(**{"loader": "dataloader_sync", "steps": 3, **axes})
        cell["hyper"]["trainer"] = cell["hyper"]["trainer"] | {"cold_files": True}
        record, _ = measure(cell, 0, manifest.root / "manifest.parquet", None, "login1", least_s=1.0)
        return record, [str(manifest.paths()[sample_id]) for sample_id in manifest.ids("train")]

    return run_cold


def test_a_cold_pass_reads_evicted_files_once_and_leaves_them_in_memory(run_cold, tmp_path):
    needs_eviction(tmp_path)
    record, files = run_cold(steps=2)
    assert record.status == "done", record.sentence
    assert record.telemetry["host"]["page_cache_share"] <= 1 - page_cache.COLD
    assert record.warmup["steps"] + record.steps["n"] == 2  # whatever least_s
    assert page_cache.evicted_share(files) == 0  # those that no step read, too


def test_a_cold_pass_that_cannot_be_had_says_why(run_cold, monkeypatch):
    record, _ = run_cold(steps=4)
    assert (record.status, "4 steps, and 3 batches" in record.sentence) == ("failed", True)
    record, _ = run_cold(loader="ToyLoader")
    assert (record.status, "reads none" in record.sentence) == ("skipped", True)
    monkeypatch.setattr(page_cache, "evict", lambda paths: None)
    record, _ = run_cold()
    assert (record.status, "The kernel kept 100 %" in record.sentence) == ("skipped", True)


def test_the_statistics_are_those_of_the_steps(run):
    record, steps = run(epochs=2)
    counted = steps[steps["step"] >= record.warmup["steps"]]
    assert record.steps["total_ms"]["median"] == pytest.approx(counted["total_ms"].median())
    assert record.steps["train_ms"]["std"] == pytest.approx(counted["train_ms"].std())
    assert record.throughput["seconds"] == pytest.approx(counted["total_ms"].sum() / 1e3)
    share = counted["wait_ms"].sum() / counted["total_ms"].sum()
    assert record.throughput["wait_share"] == pytest.approx(share)
    assert steps["total_ms"].sum() == pytest.approx(1e3 * sum(e["epoch_s"] for e in record.epochs))


def test_repeats_differ_and_can_be_had_again(run):
    losses = [run(repeat=repeat, epochs=1)[1]["loss"].tolist() for repeat in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]


@OF_TRAINER
def test_an_augment_for_samples_gives_the_same_training(run, axes):
    on_device, in_loader = (run(augment=name, **axes)[1]["loss"] for name in ("none", "sample"))
    assert in_loader.to_numpy() == pytest.approx(on_device.to_numpy(), rel=1e-5)


def test_a_slow_loader_raises_the_wait_share(run, monkeypatch):
    toys.Clock(monkeypatch)
    assert run(loader="SlowLoader", epochs=1)[0].throughput["wait_share"] == pytest.approx(1)
    assert run(model="SlowModel", epochs=1)[0].throughput["wait_share"] == pytest.approx(0)


SKIPPED = {
    "loader": ({"loader": "MissingLoader"}, "The toy needs a machine that this node lacks."),
    "package": ({"loader": "gone"}, "Loader gone needs the package a_package_that_is_not_there"),
    "precision": ({"precision": "fp16"}, "Precision fp16 is run on CUDA GPUs only"),
    "graphs": ({"cuda_graphs": True}, "CUDA graphs need a CUDA GPU"),
}
FAILED = {
    "loss": ({"model": "NaNModel"}, "Found training loss nan at step 0 (epoch 0); expected a finite loss"),
    "samples": ({"loader": "LossyLoader"}, "Found 29 images from LossyLoader in epoch 0"),
    "error": ({"loader": "BreakingLoader"}, "OSError: the disk went away"),
    "batch": ({"batch_size": 31}, "Found batch_size 31 in experiment 'toys', and 30 images to train on"),
    "batch_without_the_loader": ({"batch_size": 31, "loader": "gone"}, "Found batch_size 31"),
    "memory": ({"loader": "FullLoader"}, "Found out of memory at batch size 8 (CUDA out of memory."),
}


@pytest.mark.parametrize(
    ("status", "axes", "sentence"),
    [("skipped", *case) for case in SKIPPED.values()] + [("failed", *case) for case in FAILED.values()],
    ids=[*SKIPPED, *FAILED],
)
def test_what_goes_wrong_is_a_sentence_in_the_record(run, status, axes, sentence):
    record, steps = run(**axes)
    assert record.status == status
    assert record.sentence.startswith(sentence)
    assert "\n" not in record.sentence
    assert record.epochs == []
    assert record.steps is record.throughput is record.accuracy is record.memory is record.resolved is None
    assert steps.empty


def test_graphs_where_the_device_has_them_are_none_on_the_cpu_and_the_record_says_so(run, tmp_path):
    record, steps = run(cuda_graphs="auto")
    assert (record.status, record.sentence) == ("done", None)
    assert (record.cell["cuda_graphs"], record.resolved["cuda_graphs"]) == ("auto", False)
    assert len(steps) == 8
    record.write(path := tmp_path / record.experiment / record.cell_id / "0.json")
    assert read_records([path])["cuda_graphs"].tolist() == [False]
    assert "cuda_graphs" not in run()[0].resolved


def test_a_node_without_the_device_skips(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    record, _ = run(device="cuda")
    assert (record.status, record.environment["gpu"]) == ("skipped", None)


def test_a_missing_manifest_fails_with_what_to_do(tmp_path, monkeypatch):
    toys.register(monkeypatch)
    record, _ = measure(toys.toy_cell(), 0, tmp_path / "manifest.parquet", None, "login1", attempt=3)
    assert (record.status, record.attempt) == ("failed", 3)
    assert "run the command again" in record.sentence


def test_an_interrupt_leaves_no_record(run, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(toys.ToyLoader, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()


@pytest.mark.slow
def test_measuring_imports_what_the_first_optimiser_needs_and_no_torchvision():
    """Each repeat is a fresh process. Late imports would count as loading; torchvision costs seconds."""
    code = "import sys, gpufeed.benchmarks.end_to_end, gpufeed.training.engines.plain, torch\n"
    code += "import gpufeed.models.simple_cnn\n"
    code += "assert 'torchvision' not in sys.modules\nbefore = set(sys.modules)\n"
    code += "torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())\n"
    code += "assert len(set(sys.modules) - before) <= 20\n"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("loader", "status", "said", "telemetry", "resume"),
    [
        ("ToyLoader", "done", "", True, False),
        ("ToyLoader", "done", "", "off", True),
        ("BreakingLoader", "failed", "OSError: the disk went away", True, False),
    ],
)
def test_the_script_writes_both_files_and_ends_well(
    tmp_path, monkeypatch, capsys, loader, status, said, telemetry, resume
):
    toys.register(monkeypatch)
    monkeypatch.setenv("GPUFEED_PLANNED_ON", "login2")
    cell = toys.toy_cell(loader=loader)
    toys.give_cell(monkeypatch, cell)
    folder = tmp_path / cell["experiment"] / cell_id(cell)
    folder.mkdir(parents=True)
    steps, record = folder / "0.steps.parquet", folder / "0.json"
    run_script(
        "measure_cell",
        input=Named(manifest=str(toys.toy_manifest(tmp_path).write()), cache=[]),
        output=Named(record=str(record), steps=str(steps)),
        params=Named(repeat=0, attempt=2, least_s=0.0, code="digest"),
        wildcards=Named(experiment="toy", cell="toy-cell", repeat="0"),
        config={
            "experiments": {"toy": {"resume": resume}},
            "results": str(tmp_path),
            "telemetry": telemetry,
            "tracking": {"wandb": False, "project": "p", "mode": "offline"},
        },
        log=[str(tmp_path / "job.log")],
        threads=torch.get_num_threads(),
        resources={},
    )
    found = Record.read(record)
    assert (found.status, found.attempt, found.planned_on) == (status, 2, "login2")
    assert (found.telemetry is not None) == (telemetry is True and status == "done")
    assert status != "done" or found.phases["start_s"] + found.phases["import_s"] > 0
    assert said in capsys.readouterr().err
    logged = (tmp_path / "job.log").read_text()
    assert ("Traceback" in logged) == ("and more lines" in logged) == (status == "failed")
    assert len(pd.read_parquet(steps)) == (8 if status == "done" else 0)
    assert steps.stat().st_mtime_ns <= record.stat().st_mtime_ns
    assert not list(tmp_path.rglob("*.partial"))


def test_a_cell_with_more_cores_than_the_job_may_use_is_skipped(run):
    record, _ = run(cores=10_000)
    assert record.status == "skipped"
    assert record.sentence == f"The cell runs on 10000 CPU cores, and this job may use {cores_allowed()}."


@pytest.mark.skipif(not can_restrict(), reason="this system lets no process choose its cores")
def test_a_record_says_on_which_cores_it_was_made_and_what_auto_workers_came_to(run):
    with on_cores(1) as cpus:
        record, _ = run(cores=1, workers="auto", epochs=1)
    assert (record.resolved["workers"], record.resolved["cpus"]) == (1, cpus)
    assert (record.cell["workers"], record.environment["cores_allowed"]) == ("auto", 1)
    # what is not timed has all cores
    free, _ = run(cores=1, workers="auto", epochs=1)
    assert free.resolved["workers"] == 1
    assert ("cpus" in free.resolved) == (cores_allowed() == 1)


def test_auto_workers_share_the_cores_of_a_node_among_its_devices():
    assert workers_of(Cell("e", "d", "overlap", workers="auto", cores=16, devices=4)) == 4
    assert workers_of(Cell("e", "d", "overlap", workers="auto", cores=2, devices=4)) == 1
    assert workers_of(Cell("e", "d", "overlap", workers=3, cores=2)) == 3
