"""The kernel benchmark without a GPU: what it says, what it counts, and that all do the same work."""

import copy

import pytest
import torch

from gpufeed.analysis import kernel_section
from gpufeed.analysis.page import page
from gpufeed.analysis.records import Found, Missing
from gpufeed.errors import GpufeedError, Skip
from gpufeed.kernels import measure, record
from gpufeed.kernels.plan import IMPLEMENTATIONS, STEPS, WORKS, settings
from gpufeed.kernels.works import MAKERS, Batch, NotDone, bytes_moved

CPU = torch.device("cpu")
SETTINGS = {"batch_size": [2, 4], "size": [8], "launches": 5, "dtype": "float32"}


class Fake:
    """A clock whose device takes as long as it is told."""

    def __init__(self, *times: float):
        self.times = list(times)

    def device_ms(self, run):
        run()
        return self.times

    def call_ms(self, run):
        run()
        return 9.0


def benchmark(rows: list[dict]) -> dict:
    found = measure.measure_kernels("e", SETTINGS, "here", "cpu")
    return found | {"status": "done", "sentence": None, "rows": rows}


def rows(ms: dict[str, float]) -> list[dict]:
    """Rows of `one_pass` at both batch sizes, with these times."""
    made = []
    for n in SETTINGS["batch_size"]:
        batch = Batch(n, 8, torch.float32, CPU)
        for name, time in ms.items():
            moved, known = bytes_moved("one_pass", name, batch)
            done = {"status": "done", "sentence": None, "times": [time], "call_ms": time, "copy_ms": 0.5}
            own = {"work": "one_pass", "implementation": name, "batch_size": n, "size": 8}
            made.append(own | {"bytes": moved, "bytes_are": known} | measure.against(done, n, moved))
    return made


def test_without_a_gpu_it_is_skipped_with_a_sentence(tmp_path):
    found = measure.measure_kernels("e", SETTINGS, "here", "cpu")
    assert found["status"] == "skipped"
    assert "measured on a CUDA GPU" in found["sentence"]
    record.write(found, tmp_path / "e.json")
    assert record.read(tmp_path / "e.json") == found
    shown = kernel_section.section([tmp_path / "e.json"], "e", True)
    assert shown["troubles"] == [("skipped", found["sentence"])]
    assert not shown["machines"]


def test_what_breaks_the_schema_is_told(tmp_path):
    found = benchmark(rows({"fused": 1.0}))
    record.write(found, tmp_path / "e.json")
    for change in ({"rows": [{}]}, {"more": 1}, {"schema_version": 2}, {"environment": {}}):
        with pytest.raises(GpufeedError, match=r"kernel\.schema"):
            record.write({**copy.deepcopy(found), **change}, tmp_path / "e.json")
    (tmp_path / "e.json").write_text("{")
    with pytest.raises(GpufeedError, match="no readable kernel benchmark"):
        record.read(tmp_path / "e.json")


def test_a_row_is_quartiles_rates_and_a_share_of_the_copy():
    batch = Batch(4, 8, torch.float16, CPU)
    found = measure.measured(lambda: lambda: None, Fake(1.0, 2.0, 3.0, 4.0, 5.0), lambda: 1.5)
    row = measure.against(found, 4, 9 * batch.pixels)
    assert (row["ms_q1"], row["ms_median"], row["ms_q3"]) == (2.0, 3.0, 4.0)
    assert row["images_per_s"] == pytest.approx(4 / 3e-3)
    assert row["gb_per_s"] == pytest.approx(9 * 256 / 3e-3 / 1e9)
    assert row["share_of_copy"] == 0.5
    assert row["launches"] == 5


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (Skip("Not here."), "skipped", "Not here."),
        (ModuleNotFoundError("x", name="kornia"), "skipped", "The package kornia is not installed here."),
        (ValueError("two"), "failed", "ValueError: two"),
    ],
)
def test_a_row_that_cannot_run_says_why(error, status, sentence):
    def make():
        raise error

    found = measure.measured(make, Fake(1.0), lambda: 1.0)
    row = measure.against(found, 4, 100)
    assert (row["status"], row["sentence"], row["ms_median"]) == (status, sentence, None)


def test_every_work_has_a_row_by_torch_and_torchvision_and_the_same_shape():
    batch = Batch(2, 8, torch.float32, CPU)
    for work in WORKS:
        for name in ("torch", "torchvision"):
            out = MAKERS[name](work, batch)()
            assert sorted(out.shape) == sorted((2, 3, 8, 8))
            assert out.dtype == torch.float32
    assert set(MAKERS) == set(IMPLEMENTATIONS)


def test_torchvision_does_the_same_work_as_the_reference():
    batch = Batch(3, 9, torch.float32, CPU)
    ours, theirs = (MAKERS[name]("normalise", batch)() for name in ("torch", "torchvision"))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_fused_and_dali_have_no_row_for_single_steps():
    pytest.importorskip("triton")
    for step in STEPS:
        with pytest.raises(NotDone):
            MAKERS["fused"](step, Batch(1, 8, torch.float32, CPU))


def test_bytes():
    batch = Batch(10, 8, torch.float16, CPU)
    assert bytes_moved("one_pass", "fused", batch) == (640 * 9, "moved")
    assert bytes_moved("one_pass", "torchvision", batch) == (640 * 9, "at least")
    # uint8 to float32, three steps in place, float32 to float16
    assert bytes_moved("one_pass", "chain", batch) == (640 * (15 + 72 + 18), "moved")
    assert bytes_moved("normalise", "chain", batch) == (640 * 9, "moved")
    assert bytes_moved("brightness", "chain", batch) == (640 * 24, "moved")


def test_the_report_tells_what_one_pass_is_worth(tmp_path):
    record.write(benchmark(rows({"fused": 1.0, "chain": 8.0, "torchvision": 20.0})), tmp_path / "e.json")
    (machine,) = kernel_section.section([tmp_path / "e.json"], "e", True)["machines"]
    assert machine["sentences"] == [
        "8 px, batch 4: all in one pass takes 1 ms, 50% of the speed of a copy of as many bytes; the chain "
        "of kernels moves 7.4 times the bytes and takes 8.0 times as long; torchvision 20.0 times. "
        "At batch 2, where launching decides, a call of the chain takes 8.0 times as long as a call of the "
        "one kernel."
    ]
    assert [table["batch_size"] for table in machine["tables"]] == [2, 4]
    assert [row["implementation"] for row in machine["tables"][0]["rows"]] == [
        "fused",
        "chain",
        "torchvision",
    ]


def test_an_experiment_without_kernels_has_no_section(tmp_path):
    assert kernel_section.section([tmp_path / "other.json"], "e", False) is None
    assert kernel_section.section([], "e", True)["missing"]


def test_settings_have_defaults():
    config = {"experiments": {"a": {"kernels": {"size": [16]}}, "b": {}}}
    assert settings(config, "a")["size"] == [16]
    assert settings(config, "a")["launches"] == 50
    assert settings(config, "b") is None


def test_the_page_shows_the_table_and_what_is_missing(tmp_path):
    record.write(benchmark(rows({"fused": 1.0, "chain": 8.0})), tmp_path / "e.json")
    plan = {"title": "T", "question": "Q?", "repeats": 1, "cells": [], "kernels": True}
    info = {"experiments": {"e": plan}, "left_out": [], "command": "snakemake {target}"}
    shown = page(Found([], kernels=[tmp_path / "e.json"]), info)
    assert "Kernels alone" in shown
    assert "Images per second at batch 4" in shown
    assert "takes 8.0 times as long" in shown
    missing = page(Found([], missing=[Missing("e", "c", 0)]), info)
    assert "Not measured yet" in missing
