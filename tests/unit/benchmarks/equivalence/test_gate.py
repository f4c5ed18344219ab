"""The equivalence gate: right loaders pass, and each kind of wrong one is told by its own sentence."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from gate_fixtures import SETTINGS, judged, register, task_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_fixtures import write_beton, write_cache, write_dataset, write_shards
from measure_fixtures import OPTIONS

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.benchmarks.equivalence.supervised import watched
from gpufeed.core import registry
from gpufeed.core.cells import Cell
from gpufeed.core.equivalence_verdict import (
    LOADER_AXES,
    NotPassed,
    Verdict,
    admit,
    loader_settings,
    settings_in_words,
    variant,
)
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import LOADERS
from gpufeed.core.retry_policy import attempt
from gpufeed.stores.decoded_cache import build


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    manifest = write_dataset(tmp_path_factory.mktemp("tiny"))
    write_shards(manifest)
    write_beton(manifest)
    return manifest, write_cache(manifest)


@pytest.fixture(autouse=True)
def wrong_loaders(monkeypatch):
    register(monkeypatch)


# loader, in which epoch, what its sentence must say
WRONG = [
    ("ShiftedLabels", 1, ["label", "as in the manifest", "23 of 23 labels differ"]),
    ("TwiceAndLost", 1, ["1 samples more than once", "1 samples never", "each of the 23 samples once"]),
    ("BlueGreenRed", 1, ["23 of 23 images beyond the tolerance", "red and blue exchanged they agree"]),
    ("WrongLater", 2, ["images beyond the tolerance", "red and blue exchanged"]),
    ("WrongType", 1, ["images contiguous int16 (5, 8, 8, 3)", "expected contiguous uint8 (5, 8, 8, 3)"]),
    ("Floats", 1, ["float32", "expected contiguous uint8"]),
    ("ChannelsFirst", 1, ["uint8 (5, 3, 8, 8)", "expected contiguous uint8 (5, 8, 8, 3)"]),
    ("Strided", 1, ["images not contiguous uint8 (5, 8, 8, 3)"]),
    ("Pairs", 1, ["a tuple in place of a batch", "Batch"]),
    ("Listed", 1, ["labels that are a list", "a tensor on {device}"]),
    ("NoIds", 1, ["ids that are a NoneType", "a tensor on {device}"]),
    ("ShortLabels", 1, ["labels contiguous int32"]),
    ("NoLastBatch", 1, ["3 samples never", "each of the 23 samples once"]),
    ("SameEveryEpoch", 2, ["the order of epoch 1 again", "another one in each epoch"]),
    ("BrokenPromise", 1, ["at place 0", "Loader.order() promised"]),
    ("NeighboursPixels", 1, ["23 of 23 images beyond", "at most 0 (mean 0) from Pillow"]),
    ("OnePixel", 1, ["1 of 23 images beyond the tolerance", "by 1 (mean 0.005208)"]),
    ("Wraps", 2, ["3 samples more than once", "3 samples never"]),
    ("Endless", 1, ["5 samples more than once"]),
    ("OddBatches", 1, ["4 samples in batch 0", "expected 5"]),
    ("Strangers", 1, ["23 ids that are not in the split", "23 samples never"]),
]


@pytest.mark.parametrize(("loader", "epoch", "said"), WRONG, ids=[case[0] for case in WRONG])
def test_a_wrong_loader_is_caught_in_the_epoch_in_which_it_is_wrong(dataset, loader, epoch, said):
    one = judged(task_for(*dataset, loader))
    assert one.status == "failed"
    assert one.epochs == epoch - 1
    assert f"in epoch {epoch} of 3 of split train it was wrong: found " in one.sentence
    for words in [*said, "expected"]:
        assert words.format(device="cpu") in one.sentence


def test_an_order_by_the_clock_is_caught(dataset):
    one = judged(task_for(*dataset, "ByTheClock"))
    assert one.status == "failed"
    assert "expected a function of seed and epoch" in one.sentence


def test_a_wrong_evaluation_is_caught(dataset):
    one = judged(task_for(*dataset, "ShufflesEvaluation"))
    assert (one.status, one.epochs) == ("failed", 3)
    assert "split test it was wrong" in one.sentence


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("Drawn", None),
        ("DrawnWithNeighboursPixels", "images beyond the tolerance"),
        ("DrawnWithShiftedLabels", "as in the manifest"),
        ("DrawnStrangers", "ids in a batch that are not in the split"),
        ("DrawnWithoutEnd", "found 6 batches, expected 5"),
        ("DrawnTwiceAlike", "the order of epoch 1 again"),
    ],
)
def test_what_is_drawn_with_replacement_is_held_to_all_but_coverage(dataset, monkeypatch, loader, said):
    without = judged(task_for(*dataset, loader))
    assert without.status == "failed"
    monkeypatch.setitem(LOADERS, loader, replace(LOADERS[loader], replacement=True))
    one = judged(task_for(*dataset, loader))
    assert (one.status, one.sentence is None) == (("passed", True) if said is None else ("failed", False))
    if said is None:
        assert "samples more than once" in without.sentence
        assert one.compared == 3 * 23 + 6
    else:
        assert said in one.sentence


def test_an_evaluation_is_held_to_coverage_whatever_the_training_draws(dataset, monkeypatch):
    monkeypatch.setitem(LOADERS, "Drawn", replace(LOADERS["Drawn"], replacement=True))
    task = task_for(*dataset, "Drawn")
    monkeypatch.setattr(
        "gate_fixtures.Drawn.order", lambda self: self.split_ids.repeat(2)[: len(self.split_ids)]
    )
    monkeypatch.setattr("gpufeed.benchmarks.equivalence.judge.EPOCHS", 1)
    one = judged(task)
    assert one.status == "failed"
    assert "split test it was wrong: found 3 samples more than once" in one.sentence


def test_an_error_is_a_failed_verdict_with_its_first_line(dataset):
    one = judged(task_for(*dataset, "Raises"))
    assert one.status == "failed"
    assert one.sentence == "it raised an error. OSError: the disk went away"
    assert one.max_difference is None


def test_offenders_are_named_with_their_files(dataset):
    manifest, _ = dataset
    one = judged(task_for(*dataset, "OnePixel"))
    wrong = int(manifest.ids("train")[7])
    assert one.offenders == [
        {
            "id": wrong,
            "path": manifest.table["path"].iloc[wrong],
            "max_difference": 1,
            "mean_difference": 1 / (8 * 8 * 3),
        }
    ]
    assert one.beyond_tolerance == 1
    one = judged(task_for(*dataset, "NeighboursPixels"))
    assert len(one.offenders) == 5
    assert one.beyond_tolerance == 23


def test_what_a_lossy_decoder_does_passes_within_its_tolerance_and_is_published(dataset):
    one = judged(task_for(*dataset, "Lossy"))
    assert (one.status, one.max_difference, one.compared) == ("passed", 2, 3 * 23 + 6)
    assert 1 < one.mean_difference < 2
    assert one.pixels == {"decoder": "lossy", "version": "lossy 1.0", "max": 2, "mean": 2.0}
    one = judged(task_for(*dataset, "LossyBeyond"))
    assert one.status == "failed"
    assert "expected at most 2 (mean 0.5)" in one.sentence


def pipelines():
    """Every registered loader that is no ceiling, runs without a GPU and takes PNG files.

    The loader strips takes JPEG files alone (test_strips_verify.py). Slow are those that compile, or start a
    new Python for each worker.
    """
    for name, entry in LOADERS.items():
        if entry.ceiling or entry.device == "cuda" or entry.reads == "strips":
            continue
        changes = {"workers": 2, "prefetch_factor": 2} if entry.workers == "required" else {}
        marks = [pytest.mark.slow] if name in ("spdl_processes", "ffcv") else []
        yield pytest.param(name, changes, marks=marks)


@pytest.mark.parametrize(("loader", "changes"), list(pipelines()), ids=str)
def test_every_true_loader_passes(dataset, loader, changes):
    one = judged(task_for(*dataset, loader, **changes))
    if one.status == "skipped":
        pytest.skip(one.sentence)
    assert one.status == "passed", one.sentence
    assert (one.sentence, one.epochs, one.compared, one.beyond_tolerance) == (None, 4, 75, 0)
    assert (one.max_difference, one.mean_difference, one.offenders) == (0, 0.0, [])
    assert one.samples == {"train": 23, "test": 6}
    assert one.device == "cpu"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), train=st.integers(1, 40), batch_size=st.integers(1, 50), size=st.integers(1, 9))
def test_true_loaders_pass_and_wrong_ones_fail_whatever_the_sizes(
    tmp_path_factory, data, train, batch_size, size
):
    manifest = write_dataset(tmp_path_factory.mktemp("any"), train=train, test=1, size=size)
    cache = write_cache(manifest)
    changes = {"batch_size": batch_size, "seed": data.draw(st.integers(0, 2**31))}
    for loader in ("dataloader_sync", "resident"):
        one = judged(task_for(manifest, cache, loader, **changes))
        assert one.status == "passed", one.sentence
    wrong = data.draw(st.sampled_from(["ShiftedLabels", "WrongType", "Floats", "Strangers", "Endless"]))
    one = judged(task_for(manifest, cache, wrong, **changes))
    assert one.status == "failed"
    assert one.epochs == 0


def test_a_dataset_without_evaluation_is_judged_by_its_training_split(tmp_path):
    manifest = write_dataset(tmp_path, train=12, test=1)
    manifest.table["split"] = "train"
    manifest.write()
    one = judged(task_for(manifest, write_cache(manifest), "dataloader_sync"))
    assert (one.status, one.epochs) == ("passed", 3)
    assert one.samples == {"train": 13}


def test_a_cache_is_held_to_the_tolerance_that_its_sidecar_names(dataset, tmp_path):
    manifest, reference = dataset
    other = tmp_path / "other.npy"
    build(manifest, "pillow", other)
    rows = np.load(other, mmap_mode="r+")
    rows[4] ^= 1  # written behind the sidecar's back, as a decoder that differs would
    rows.flush()
    task = replace(task_for(manifest, reference, "resident"), built={"cache": str(other)})
    one = judged(task)
    assert one.status == "failed"
    assert one.offenders[0]["id"] == 4
    sidecar = json.loads(other.with_suffix(".json").read_text())
    # the tolerance that stands there; in a sidecar from before it stood there, that of the decoder
    for said in (
        {"decoder": "pillow", "tolerance": {"max": 1, "mean": 1.0}},
        {"decoder": "lossy", "tolerance": None},
    ):
        other.with_suffix(".json").write_text(json.dumps({**sidecar, **said}))
        one = judged(task)
        assert (one.status, one.max_difference) == ("passed", 1)
        assert one.pixels["decoder"] == said["decoder"]


def test_the_reference_must_belong_to_the_manifest(dataset, tmp_path):
    manifest = write_dataset(tmp_path / "other", train=5, test=1)
    with pytest.raises(GpufeedError, match="built from another manifest"):
        judged(task_for(manifest, dataset[1], "dataloader_sync"))


def test_a_hang_is_cut_and_told(dataset):
    verdict = watched(task_for(*dataset, "Hangs"), "here", silent_s=4)
    assert (verdict.status, verdict.device) == ("failed", "cpu")
    assert verdict.sentence == (
        "nothing came for 4 s while waiting for a batch of epoch 1 of 3 of split train."
    )


def test_a_process_that_dies_is_told(dataset):
    verdict = watched(task_for(*dataset, "Dies"), "here")
    assert verdict.status == "failed"
    assert "its process died (signal SIGKILL) while waiting for a batch of epoch 1" in verdict.sentence


def test_what_the_node_lacks_is_skipped_with_its_sentence(dataset, monkeypatch):
    verdict = watched(task_for(*dataset, "Missing"), "here")
    assert (verdict.status, verdict.sentence) == (
        "skipped",
        "The loader needs a machine that this node lacks.",
    )
    monkeypatch.setitem(LOADERS, "gone", registry.LoaderEntry("a_package_that_is_not_there:X"))
    one = judged(task_for(*dataset, "gone"))
    assert one.status == "skipped"
    assert "needs the package a_package_that_is_not_there" in one.sentence


def test_a_device_that_the_node_lacks_is_skipped(dataset, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    one = judged(task_for(*dataset, "dataloader_sync", device="cuda"))
    assert one.status == "skipped"
    assert "no CUDA GPU" in one.sentence
    assert not hasattr(one, "device")


def test_an_error_of_the_gate_itself_is_no_verdict(dataset, tmp_path):
    task = replace(task_for(*dataset, "dataloader_sync"), manifest=str(tmp_path / "gone.parquet"))
    with pytest.raises(GpufeedError, match="no readable manifest"):
        watched(task, "here")


def test_a_verdict_survives_its_file(dataset, tmp_path):
    verdict = watched(task_for(*dataset, "BlueGreenRed"), "here", attempt=2)
    path = tmp_path / "gate" / "x.json"
    verdict.write(path)
    assert Verdict.read(path) == verdict
    assert (verdict.status, verdict.attempt, verdict.planned_on) == ("failed", 2, "here")


@pytest.mark.parametrize("loader", ["dataloader_sync", "ShiftedLabels", "Missing"])
def test_a_verdict_admits_refuses_or_skips(dataset, tmp_path, loader):
    path = tmp_path / "gate.json"
    verdict = watched(task_for(*dataset, loader), "here")
    verdict.write(path)
    if verdict.status == "passed":
        assert admit(path) == verdict
        return
    with pytest.raises(NotPassed if loader == "ShiftedLabels" else Skip) as refusal:
        admit(path)
    assert str(refusal.value).endswith(verdict.sentence)


def cell(loader: str, **changes) -> Cell:
    same = {axis: SETTINGS[axis] for axis in LOADER_AXES}
    return Cell(experiment="e", dataset="tiny", loader=loader, device="cpu", **{**same, **changes})


def test_a_refused_cell_is_a_failed_record_without_timing(dataset, tmp_path):
    manifest, _ = dataset
    path = tmp_path / "gate.json"
    watched(task_for(*dataset, "ShiftedLabels"), "here").write(path)
    record, steps = measure(
        cell("ShiftedLabels").asdict(), 0, manifest.root / "manifest.parquet", None, "here", gate=path
    )
    assert record.status == "failed"
    assert record.sentence.startswith("ShiftedLabels did not pass the equivalence check: in epoch 1 of 3")
    assert record.throughput is None
    assert record.steps is None
    assert not len(steps)
    record.write(tmp_path / "record.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cuda"}, "passed the equivalence check with device cuda, and this cell has cpu"),
        ({"pixels": {"decoder": "pillow", "version": "pillow 1.0", "max": 0, "mean": 0.0}}, "pillow 1.0"),
    ],
)
def test_a_verdict_on_another_device_or_decoder_admits_nobody_and_is_given_again(
    dataset, tmp_path, changes, said
):
    manifest, _ = dataset
    path = tmp_path / "gate.json"
    verdict = watched(task_for(*dataset, "dataloader_sync"), "here")
    one = cell("dataloader_sync", steps=2, hyper={"trainer": OPTIONS}).asdict()
    arguments = (one, 0, manifest.root / "manifest.parquet", None, "here")

    verdict.write(path)
    record, _ = measure(*arguments, gate=path)
    assert record.status == "done", record.sentence
    assert attempt(path, "here") == 1

    replace(verdict, **changes).write(path)
    record, _ = measure(*arguments, gate=path)
    assert (record.status, record.throughput) == ("failed", None)
    assert said in record.sentence
    assert "the next run checks it again" in record.sentence
    assert attempt(path, "here") == 2


def test_settings_are_what_a_loader_sees():
    assert loader_settings(cell("overlap", augment="torch")) == SETTINGS == loader_settings(cell("resident"))
    assert loader_settings(cell("overlap", batch_size=6)) != SETTINGS


def test_settings_as_words_and_as_the_name_of_a_file():
    assert settings_in_words(SETTINGS) == "batch size 5, 0 workers, pinned, seed 3"
    assert variant(SETTINGS) == "b5-w0-pinned-s3"
    assert variant(SETTINGS, "cuda") == "b5-w0-pinned-s3-cuda"
    many = {**SETTINGS, "workers": 1, "prefetch_factor": 2, "persistent_workers": True, "pin_memory": False}
    assert settings_in_words(many) == "batch size 5, 1 worker, prefetch 2, persistent, pageable, seed 3"
    assert variant(many) == "b5-w1-p2-persistent-pageable-s3"


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "batch_size": st.integers(1, 99),
                "workers": st.integers(0, 9),
                "prefetch_factor": st.none() | st.integers(1, 9),
                "persistent_workers": st.booleans(),
                "pin_memory": st.booleans(),
                "seed": st.integers(0, 99),
            }
        ),
        min_size=2,
        max_size=2,
    )
)
def test_other_settings_have_another_name(pair):
    first, second = pair
    assert (variant(first) == variant(second)) == (first == second)
    assert re.fullmatch("[a-z0-9-]+", variant(first))
