"""The kernel benchmark without a GPU: what it says, what it counts, and that all do the same work."""

import copy
import tomllib
from pathlib import Path

import pytest
import torch
from data_fixtures import REPOSITORY

from gpufeed.benchmarks.kernels import kernel_benchmark
from gpufeed.benchmarks.kernels.augment_work import MAKERS, Batch, bytes_moved, tasks_of
from gpufeed.benchmarks.kernels.kernel_clock import NotDone, Task, Yardsticks
from gpufeed.core import record
from gpufeed.core.errors import GpufeedError, Skip, install
from gpufeed.core.plan_kernels import IMPLEMENTATIONS, STEPS, WORKS, settings
from gpufeed.report.find_results import Found, Part
from gpufeed.report.page import page
from gpufeed.report.sections import kernel_claims, kernels
from gpufeed.report.sections.kernel_augment import TITLES

CPU = torch.device("cpu")
SETTINGS = {"family": "augment", "batch_size": [2, 4], "size": [8], "launches": 5, "dtype": "float32"}
PLANNED = {"lines": []}


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
    found = kernel_benchmark.measure_kernels("e", SETTINGS, "here", "cpu")
    return found | {"status": "done", "sentence": None, "rows": rows}


def yardstick(ms: float) -> Yardsticks:
    """Whose copies take so long."""
    return Yardsticks(CPU, Fake(ms))


def rows(ms: dict[str, float]) -> list[dict]:
    """Rows of `one_pass` at both batch sizes, with these times."""
    made = []
    for n in SETTINGS["batch_size"]:
        for task in tasks_of(Batch(n, 8, torch.float32, CPU)):
            name = task.names["implementation"]
            if task.names["work"] == "one_pass" and name in ms:
                times = {"times": [ms[name]], "call_ms": ms[name], "copy_ms": 0.5}
                done = {"status": "done", "sentence": None, **times}
                made.append({**task.names, **task.facts, **kernel_benchmark.against(done, task)})
    return made


def task(make, **more) -> Task:
    """One piece of work, that of four images of 256 pixels and 9 bytes each."""
    amounts = {"images_per_s": 4e3, "gb_per_s": 9 * 256 / 1e6}
    return Task({}, make, {}, bytes=9 * 256, yardstick="copy", amounts=amounts, **more)


def test_without_a_gpu_it_is_skipped_with_a_sentence(tmp_path):
    found = kernel_benchmark.measure_kernels("e", SETTINGS, "here", "cpu")
    assert found["status"] == "skipped"
    assert "measured on a CUDA GPU" in found["sentence"]
    record.KERNELS.write(found, tmp_path / "e.json")
    assert record.KERNELS.read(tmp_path / "e.json") == found
    shown = kernels.section([tmp_path / "e.json"], "e", PLANNED)
    assert shown["troubles"] == [{"status": "skipped", "who": "", "sentence": found["sentence"]}]
    assert not shown["machines"]


def test_what_breaks_the_schema_is_told(tmp_path):
    found = benchmark(rows({"fused": 1.0}))
    record.KERNELS.write(found, tmp_path / "e.json")
    for change in ({"rows": [{}]}, {"more": 1}, {"schema_version": 2}, {"environment": {}}):
        with pytest.raises(GpufeedError, match=r"kernel\.schema"):
            record.KERNELS.write({**copy.deepcopy(found), **change}, tmp_path / "e.json")


def test_a_row_is_quartiles_rates_and_a_share_of_the_copy():
    of = task(lambda: lambda: None)
    row = kernel_benchmark.against(
        kernel_benchmark.measured(of, Fake(1.0, 2.0, 3.0, 4.0, 5.0), yardstick(1.5)), of
    )
    assert (row["ms_q1"], row["ms_median"], row["ms_q3"]) == (2.0, 3.0, 4.0)
    assert row["images_per_s"] == pytest.approx(4 / 3e-3)
    assert row["gb_per_s"] == pytest.approx(9 * 256 / 3e-3 / 1e9)
    assert row["share_of_copy"] == 0.5
    assert row["launches"] == 5


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (Skip("Not here."), "skipped", "Not here."),
        (
            ModuleNotFoundError("x", name="kornia"),
            "skipped",
            f"The package kornia is not installed here: {install('kornia')}.",
        ),
        (ModuleNotFoundError("x"), "skipped", "The package x is not installed here: install it."),
        (ValueError("two"), "failed", "ValueError: two"),
    ],
)
def test_a_row_that_cannot_run_says_why(error, status, sentence):
    def make():
        raise error

    row = kernel_benchmark.against(
        kernel_benchmark.measured(task(make), Fake(1.0), yardstick(1.0)), task(make)
    )
    assert (row["status"], row["sentence"], row["ms_median"]) == (status, sentence, None)
    assert row["images_per_s"] is None


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
    record.KERNELS.write(
        benchmark(rows({"fused": 1.0, "chain": 8.0, "torchvision": 20.0})), tmp_path / "e.json"
    )
    (machine,) = kernels.section([tmp_path / "e.json"], "e", PLANNED)["machines"]
    assert machine["sentences"] == [
        "8 px, batch 4: all in one pass takes 1 ms, 50% of the speed of a copy of as many bytes; the chain "
        "of kernels moves 7.4 times the bytes and takes 8.0 times as long; torchvision 20.0 times. "
        "At batch 2, where launching decides, a call of the chain takes 8.0 times as long as a call of the "
        "one kernel."
    ]
    assert [table["summary"] for table in machine["tables"]] == ["Batch 2", "Batch 4"]
    assert [row["implementation"] for row in machine["tables"][0]["rows"]] == [
        "fused",
        "chain",
        "torchvision",
    ]


def timed(ms: float, moved: int = 9, spread: float = 0.01, **more) -> dict:
    """A row with these milliseconds, quartiles `spread` of it away; a copy of 9 bytes takes 0.9 ms."""
    quartiles = {"ms_q1": ms * (1 - spread), "ms_q3": ms * (1 + spread)}
    return {"ms_median": ms, **quartiles, "copy_ms": 0.1 * moved, "bytes": moved, "call_ms": ms, **more}


def claims_of(**by: dict) -> dict[str, tuple[str, str]]:
    """{claim: (measured, answer)} of rows: of one_pass by implementation, of another work by_of_work."""
    done = {}
    for name, row in by.items():
        implementation, _, work = name.partition("_of_")
        done[work or "one_pass", implementation, 4096, 64] = row
        done[work or "one_pass", implementation, 128, 64] = row
    return {
        claim.claim: (claim.measured, claim.answer) for claim in kernel_claims.augment_claims(done, TITLES)
    }


@pytest.mark.parametrize(
    ("ms", "spread", "answer"),
    [(1.0, 0.01, "holds"), (1.4, 0.01, "does not hold"), (1.06, 0.1, "cannot be judged")],
)
def test_the_share_of_copy_is_judged_by_its_quartiles(ms, spread, answer):
    found = claims_of(fused=timed(ms, spread=spread))
    said, judged = found["fused, all in one pass, batch 4096 of 64 px"]
    assert judged == answer
    assert said.startswith(f"{0.9 / ms:.0%} (")


@pytest.mark.parametrize(
    ("ms", "answer"), [(5.0, "holds"), (5.6, "holds"), (7.0, "does not hold"), (3.5, "does not hold")]
)
def test_the_lead_over_the_chain_is_held_to_the_ratio_of_the_bytes_both_ways(ms, answer):
    found = claims_of(fused=timed(1.0), chain=timed(ms, moved=45))
    said, judged = found["fused over the chain, batch 4096 of 64 px"]
    assert judged == answer
    assert said.startswith(f"{ms:.1f} times (")
    assert found["fused over the chain, a call with its launches, batch 128 of 64 px"] == (
        f"{ms:.1f} times as fast",
        "",
    )


def test_every_kernel_of_the_chain_and_both_libraries_have_a_claim_and_a_line():
    steps = {f"chain_of_{work}": timed(1.2) for work in ("normalise", *STEPS)}
    found = claims_of(fused=timed(1.0), torchvision=timed(20.0), kornia=timed(2.5), **steps)
    answers = {claim: answer for claim, (_, answer) in found.items() if answer}
    for work in ("normalise", *STEPS):
        assert answers.pop(f"chain, {TITLES[work]}, batch 4096 of 64 px") == "holds"
    assert answers == {
        "fused, all in one pass, batch 4096 of 64 px": "holds",
        "fused over the chain, batch 4096 of 64 px": "not measured",
        "fused over torchvision v2, the same work, batch 4096 of 64 px": "holds",
        "fused over Kornia, the same work, batch 4096 of 64 px": "does not hold",
    }


def test_what_was_not_measured_there_is_not_judged():
    found = kernel_claims.augment_claims({("one_pass", "fused", 512, 64): timed(1.0)}, TITLES)
    assert {claim.answer for claim in found} == {"not measured", ""}
    assert {claim.measured for claim in found} == {"not measured"}


def test_an_experiment_without_kernels_has_no_section(tmp_path):
    assert kernels.section([tmp_path / "other.json"], "e", None) is None
    assert kernels.section([], "e", PLANNED)["missing"]


def test_settings_have_defaults():
    config = {"experiments": {"a": {"kernels": {"size": [16]}}, "b": {}}}
    assert settings(config, "a")["size"] == [16]
    assert settings(config, "a")["launches"] == 50
    assert settings(config, "b") is None


def test_the_page_shows_the_table_and_what_is_missing(tmp_path):
    record.KERNELS.write(benchmark(rows({"fused": 1.0, "chain": 8.0})), tmp_path / "e.json")
    plan = {"title": "T", "question": "Q?", "repeats": 1, "cells": [], "kernels": PLANNED}
    info = {"experiments": {"e": plan}, "left_out": [], "command": "snakemake {target}"}
    shown = page(Found([], kernels=[tmp_path / "e.json"]), info)
    assert "Kernels alone" in shown
    assert "Images per second at batch 4" in shown
    assert "takes 8.0 times as long" in shown
    assert "What the kernels are held to" in shown
    assert '<span class="tag open">not measured</span>' in shown
    missing = page(Found([], missing=[Part("e", "kernels", Path("kernels/e.json"))]), info)
    assert "Not measured yet" in missing


@pytest.mark.parametrize("stack", ["cuda12", "cuda13"])
def test_every_library_of_the_benchmark_is_installed_with_the_stack(stack):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["all"], *extras[stack]]
    locked = (REPOSITORY / f"envs/constraints-{stack}.txt").read_text()
    for library in ("torch", "torchvision", "kornia", "nvidia-dali-", "cupy-", "numba-cuda"):
        assert [one for one in asked if one.startswith(library)]
        assert f"\n{library}" in f"\n{locked}"


@pytest.mark.parametrize("work", WORKS)
def test_kornia_has_every_work_and_the_same_shape(work):
    pytest.importorskip("kornia")
    out = MAKERS["kornia"](work, Batch(2, 8, torch.float32, CPU))()
    assert (tuple(out.shape), out.dtype) == ((2, 3, 8, 8), torch.float32)
