"""A cell that runs out of memory: begun again with half the batch where it may have one, and told so."""

import gc
import itertools
import weakref
from dataclasses import replace
from typing import ClassVar

import measure_fixtures as toys
import pandas as pd
import pytest
import torch
from config_fixtures import with_tiny
from hypothesis import given
from hypothesis import strategies as st
from record_fixtures import H200, cell, plan_info, record, unfinished, write

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.benchmarks.saved_models.evaluation import evaluate_model
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.benchmarks.stopping_rule import decide
from gpufeed.compare import REFUSED, main
from gpufeed.core import registry
from gpufeed.core.cells import Cell
from gpufeed.core.config import planned
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.models.simple_cnn import SimpleCNN
from gpufeed.report import publish, tables
from gpufeed.report.load_records import read_records
from gpufeed.report.sections import provenance
from gpufeed.training.cell_training import read_cell, train
from gpufeed.training.checkpoints import Checkpoints
from gpufeed.training.runtime_context import RuntimeContext, Stores
from gpufeed.training.smaller_batch import OutOfMemory, fitting, out_of_memory

ROOM = 5  # images that the toy's memory holds
SIX = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2)


class GreedyModel(SimpleCNN):
    """Asks torch for more than any machine has as soon as more than `room` images are trained on at once."""

    tried: ClassVar[list[int]] = []  # images of each step that was begun
    asked: ClassVar[list[int]] = []  # and of each batch of an evaluation
    room = ROOM

    def forward(self, images):
        (self.tried if self.training else self.asked).append(len(images))
        if self.training and len(images) > self.room:
            torch.empty(2**60, dtype=torch.uint8)
        return super().forward(images)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Axes -> the cell of a GreedyModel, and where its data is; the model counts from here on."""
    toys.register(monkeypatch)
    monkeypatch.setitem(registry.MODELS, "GreedyModel", registry.ModelEntry(f"{__name__}:GreedyModel"))
    GreedyModel.tried.clear()
    monkeypatch.setattr(GreedyModel, "room", ROOM)
    manifest = toys.toy_manifest(tmp_path).write()
    return lambda **axes: (toys.toy_cell(model="GreedyModel", **axes), manifest)


def measured(toy, **axes):
    found, manifest = toy(**axes)
    return measure(found, 0, manifest, None, "login1")


def test_the_batch_is_halved_until_it_fits(toy):
    one, steps = measured(toy, batch_size=16, smallest_batch_size=3)
    assert (one.status, one.resolved["batch_size"], one.cell["batch_size"]) == ("done", 4, 16)
    assert GreedyModel.tried[:2] == [16, 8]
    assert max(GreedyModel.tried[2:]) == 4
    assert steps["images"].tolist() == [4, 4, 4, 4, 4, 4, 4, 2] * 2
    own, alone = measured(toy, batch_size=4)
    assert "batch_size" not in own.resolved
    assert steps["loss"].tolist() == alone["loss"].tolist()  # what went before left no trace
    assert one.accuracy == own.accuracy


def test_without_leave_it_fails_at_once(toy):
    one, steps = measured(toy, batch_size=16)
    assert (one.status, one.resolved, len(steps)) == ("failed", None, 0)
    assert one.sentence.startswith("Found out of memory at batch size 16 (")
    assert GreedyModel.tried == [16]


def test_where_nothing_fits_all_that_was_tried_is_named(toy):
    one, _ = measured(toy, batch_size=24, smallest_batch_size=7)
    assert one.status == "failed"
    assert one.sentence.startswith("Found out of memory at batch sizes 24, 12 and 7 (")


def test_another_error_is_not_tried_again(toy, monkeypatch):
    def broken(self, images):
        self.tried.append(len(images))
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(GreedyModel, "forward", broken)
    one, _ = measured(toy, batch_size=16, smallest_batch_size=2)
    assert (one.status, GreedyModel.tried) == ("failed", [16])
    assert one.sentence.startswith("RuntimeError: mat1")


@given(st.integers(1, 4096), st.one_of(st.none(), st.integers(1, 4096)), st.integers(0, 5000))
def test_the_first_batch_that_fits_is_taken(batch_size, smallest, room):
    tried = []

    def work(one):
        tried.append(one.batch_size)
        if one.batch_size > room:
            raise MemoryError
        return "fits"

    wanted = Cell("e", "d", "l", batch_size=batch_size, smallest_batch_size=smallest)
    try:
        assert fitting(wanted, work) == (tried[-1], "fits")
        assert tried[-1] <= room
    except OutOfMemory:
        assert min(tried) > room
        assert smallest is None or tried[-1] <= smallest or batch_size < smallest
    assert tried[0] == batch_size
    assert all(after == max(smallest, before // 2) for before, after in itertools.pairwise(tried))


def test_what_the_try_before_held_is_gone_when_the_next_begins():
    held: list[weakref.ref] = []

    def work(one):
        assert [ref() for ref in held] == [None] * len(held)
        model = torch.nn.Linear(2, 2)
        model.itself = [model]  # a cycle, as trainers and their callbacks have them
        held.append(weakref.ref(model))
        if one.batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return one.batch_size

    gc.disable()
    try:
        wanted = Cell("e", "d", "l", batch_size=8, smallest_batch_size=1)
        assert fitting(wanted, work) == (2, 2)
    finally:
        gc.enable()
    assert len(held) == 3


def chained(cause):
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    error.__context__ = cause
    return error


SAID = {
    "torch": torch.OutOfMemoryError("CUDA out of memory."),
    "host": MemoryError(),
    "runtime": RuntimeError("CUDA error: out of memory"),
    "dali": RuntimeError("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory"),
    "driver": RuntimeError("[CUDA_ERROR_OUT_OF_MEMORY] cuMemCreate"),
    "cupy": type("OutOfMemoryError", (MemoryError,), {})("Out of memory allocating 9 bytes"),
    "capture": chained(torch.OutOfMemoryError("CUDA out of memory.")),
}


@pytest.mark.parametrize("error", SAID.values(), ids=SAID)
def test_whoever_says_it_memory_ran_out(error):
    assert out_of_memory(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: an illegal memory access"), OSError("disk full")]
)
def test_nothing_else_is_taken_for_it(error):
    assert not out_of_memory(error)


class PowerCut(BaseException):
    pass


def test_a_kept_model_is_evaluated_with_the_batch_that_fitted(toy, tmp_path):
    found, manifest = toy(batch_size=16, smallest_batch_size=2)
    made = train_model(found, manifest, Stores(), None, "login1")
    save(made.about, made.model, tmp_path / "model.pt")
    GreedyModel.asked.clear()
    about = evaluate_model(found, tmp_path / "model.pt", manifest, Stores(), "login1")
    assert (about["status"], about["n"]) == ("done", 12)
    assert GreedyModel.asked == [4, 4, 4]


def kept_after(toy, tmp_path, monkeypatch, steps, **axes):
    """The checkpoints of a training that stops after so many steps, every second of which is kept."""
    found, manifest = toy(epochs=3, **axes)
    checkpoints, whole = Checkpoints(tmp_path / "kept", 2, "ours"), GreedyModel.forward

    def cut(self, images):
        if self.training and len(GreedyModel.tried) == steps:
            raise PowerCut
        return whole(self, images)

    GreedyModel.tried.clear()
    monkeypatch.setattr(GreedyModel, "forward", cut)
    with pytest.raises(PowerCut):
        train_model(found, manifest, Stores(), None, "login1", checkpoints=checkpoints)
    monkeypatch.setattr(GreedyModel, "forward", whole)
    GreedyModel.tried.clear()
    return checkpoints


def test_a_training_goes_on_with_the_batch_of_its_checkpoint(toy, tmp_path, monkeypatch):
    axes = {"batch_size": 16, "smallest_batch_size": 2}
    found, manifest = toy(epochs=3, **axes)
    expected = train_model(found, manifest, Stores(), None, "login1").about
    assert expected["resolved"]["batch_size"] == 4
    checkpoints = kept_after(toy, tmp_path, monkeypatch, 2 + 11, **axes)  # batches of 16 and of 8 do not fit
    assert checkpoints.batch_size() == 4
    about = train_model(found, manifest, Stores(), None, "login1", checkpoints=checkpoints).about
    assert max(GreedyModel.tried) == 4
    assert about["resolved"]["batch_size"] == 4
    assert about["epochs"] == expected["epochs"]


def test_the_checkpoint_of_another_owner_or_without_sense_has_no_batch(toy, tmp_path, monkeypatch):
    checkpoints = kept_after(toy, tmp_path, monkeypatch, 5, batch_size=4)
    assert checkpoints.batch_size() == 4
    assert replace(checkpoints, owner="theirs").batch_size() is None
    checkpoints.path.write_bytes(b"no checkpoint")
    assert checkpoints.batch_size() is None
    assert Checkpoints(tmp_path / "nothing", 2).batch_size() is None


def test_what_is_kept_is_not_given_up_for_a_smaller_batch(toy, tmp_path, monkeypatch):
    checkpoints = kept_after(toy, tmp_path, monkeypatch, 5, batch_size=4)
    before = checkpoints.path.read_bytes()
    monkeypatch.setattr(GreedyModel, "room", 3)  # somebody else is on the GPU now
    found, manifest = toy(batch_size=4, epochs=3, smallest_batch_size=1)
    about = train_model(found, manifest, Stores(), None, "login1", checkpoints=checkpoints).about
    assert about["status"] == "failed"
    assert "out of memory at batch size 4" in about["sentence"]
    assert checkpoints.path.read_bytes() == before
    assert set(GreedyModel.tried) == {4}


def test_what_was_told_of_an_epoch_is_not_trained_again(toy):
    """The toy's second epoch finds less room than the first."""
    found, manifest = toy(batch_size=4, epochs=2, smallest_batch_size=1)
    told = []

    def on_epoch(entry):
        told.append(entry["epoch"])
        GreedyModel.room = 0

    with pytest.raises(OutOfMemory, match="batch size 4"):
        train(read_cell(found), 0, manifest, Stores(), RuntimeContext(), None, on_epoch)
    assert told == [0]


def test_what_a_node_lacks_is_no_lack_of_memory():
    def lacks(one):
        tried.append(one)
        raise Skip("No room for this decoder here.") from MemoryError("no more")

    tried = []
    with pytest.raises(Skip):
        fitting(Cell("e", "d", "l", batch_size=8, smallest_batch_size=1), lacks)
    assert len(tried) == 1


def repeats(batch_size, of, speeds=SIX, first=0):
    """Finished repeats of a cell, of which that batch fitted."""
    found = [record(of, repeat, speed) for repeat, speed in enumerate(speeds, first)]
    return [replace(one, resolved=one.resolved | {"batch_size": batch_size}) for one in found]


def test_two_batches_never_share_a_row(tmp_path):
    of = cell("resident", batch_size=512, smallest_batch_size=128)
    paths = write(tmp_path, *repeats(256, of, SIX[:2]), record(of, 2, 50.0))
    records = read_records(paths)
    found = tables.cells(records).sort_values("batch_size")
    assert found["batch_size"].tolist() == [256, 512]
    assert found["n_repeats"].tolist() == [2, 1]
    assert found["images_per_s"].tolist() == [pytest.approx(100.5), 50.0]
    assert provenance.smaller_batches(records) == [
        f"{of.id} ran out of memory at 512 images a step and was measured with 256 (2 repeats)"
    ]
    assert provenance.smaller_batches(records[records["batch_size"] == 512]) == []


def test_the_page_says_so(tmp_path):
    of = cell("resident", batch_size=512, smallest_batch_size=128)
    write(tmp_path, *repeats(256, of))
    publish.report(
        tmp_path, ["pipelining"], plan_info({"pipelining": [of.id]}, repeats=6), tmp_path / "report.html"
    )
    html = (tmp_path / "report.html").read_text()
    assert "Measured with a smaller batch" in html
    assert f"{of.id} ran out of memory at 512 images a step and was measured with 256 (6 repeats)." in html
    assert "batch 256" in html
    assert "batch 512" not in html


def test_a_repeat_that_failed_is_of_the_row_of_those_that_did_not(tmp_path):
    of = cell("resident", batch_size=512, smallest_batch_size=128)
    paths = write(tmp_path, *repeats(256, of, SIX[:2]), unfinished(of, "failed", "no disk", 2, gpu=H200))
    (row,) = tables.cells(read_records(paths)).to_dict("records")
    assert (row["batch_size"], row["n_repeats"], row["status"]) == (256, 2, "partly")


def test_an_interval_is_of_one_batch(tmp_path):
    of = cell("resident", batch_size=512, smallest_batch_size=128)
    paths = write(tmp_path, *repeats(256, of), *repeats(128, of, SIX[:3], first=6))
    assert decide(paths, within=0.05)["cells"][of.id]["n"] == 6


def test_a_comparison_of_two_batches_is_refused(tmp_path, capsys):
    of = cell("resident", batch_size=512, smallest_batch_size=128)
    write(tmp_path / "new", *repeats(256, of))
    earlier = [record(of, repeat, speed) for repeat, speed in enumerate(SIX)]
    write(tmp_path / "old", *(replace(one, started_at="2026-01-01T00:00:00Z") for one in earlier))
    assert main([str(tmp_path / "new"), str(tmp_path / "old")]) == REFUSED
    assert "other batch size, of one that ran out of memory" in capsys.readouterr().out


def test_the_block_of_a_config_has_it():
    block = {"dataset": "synthetic", "loader": "overlap", "workers": 1, "batch_size": [256, 512]}
    block |= {"smallest_batch_size": 64, "steps": 8}
    found = planned(with_tiny({"b": block})).cells["tiny"].values()
    assert [(one.batch_size, one.smallest_batch_size) for one in found] == [(256, 64), (512, 64)]
    block["smallest_batch_size"] = 0
    with pytest.raises(GpufeedError, match=r"(?s)smallest_batch_size: 0.*at least 1"):
        planned(with_tiny({"b": block}))


def test_repeats_of_two_batches_are_never_pooled(tmp_path, capsys):
    of = cell("resident", batch_size=512, smallest_batch_size=128)
    for side, day in (("new", "02"), ("old", "01")):
        whole = [record(of, repeat, 10 * speed) for repeat, speed in enumerate(SIX)]
        both = [*whole, *repeats(256, of, SIX, first=6)]
        write(tmp_path / side, *(replace(one, started_at=f"2026-01-{day}T00:00:00Z") for one in both))
    main([str(tmp_path / "new"), str(tmp_path / "old"), "--csv", str(tmp_path / "rows.csv")])
    capsys.readouterr()
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert sorted(rows["a_n"]) == [6, 6]
    assert sorted(rows["a_images_per_s"].round()) == [100, 1001]
