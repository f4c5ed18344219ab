"""The roofline: the floor of a training step, and how near cells come to it."""

from dataclasses import replace

import pytest
import record_fixtures as made
import torch
from report_fixtures import read
from torch.utils.flop_counter import FlopCounterMode

from gpufeed.benchmarks.kernels import kernel_benchmark
from gpufeed.core import record
from gpufeed.core.config import read_hyper
from gpufeed.core.config_sources import with_defaults
from gpufeed.models import vit_cost
from gpufeed.models.make import make
from gpufeed.report.sections import roofline

SMALL = {"patch": 4, "width": 32, "depth": 3, "heads": 2, "mlp_ratio": 2}
CEILINGS = {"side": 8192, "tflop_per_s": 800.0, "copied_bytes": 2**30, "gb_per_s": 4000.0}
OLDER = {"samples": 10, "quarantined": 0, "examples": [], "cache": None}
FACTS = {**OLDER, "classes": 40, "height": 64, "width": 64}


@pytest.mark.parametrize("pool", ["mean", "class_token"])
def test_the_products_are_those_that_torch_counts(pool):
    options = {**read_hyper("model", "vit_tiny"), **SMALL, "pool": pool, "sdpa": "math"}
    model = make("vit_tiny", 7, (16, 24), options)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(5, 3, 16, 24)).sum().backward()
    assert vit_cost.flops(vit_cost.step(options, (16, 24), 7, 5)) == counter.get_total_flops()


def test_a_work_takes_what_multiplying_or_what_moving_takes():
    square, thin = vit_cost.linear("square", 1000, 1000, 1000, 2), vit_cost.linear("thin", 1000, 1, 1, 1)
    rates = {"itemsize": 2, "tflop_per_s": 1.0, "gb_per_s": 1000.0}
    assert vit_cost.floor_ms(square, **rates) == pytest.approx(2 * 3 * 2e9 / 1e12 * 1e3)
    assert vit_cost.floor_ms(thin, **rates) == pytest.approx(3 * 2001 * 2 / 1e12 * 1e3)


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_a_peers_model_costs_what_ours_of_its_size_does(size):
    ours, theirs = f"vit_{size}", f"timm_vit_{size}"
    cost, same = (vit_cost.known(name, read_hyper("model", name)) for name in (ours, theirs))
    assert cost == same


def test_other_models_have_no_known_cost():
    assert vit_cost.known("resnet18", read_hyper("model", "resnet18")) is None


def benchmark(folder, name="accelerated_vit", **changes):
    settings = with_defaults("activation_kernels", {"family": "activation"})
    found = kernel_benchmark.measure_kernels(name, settings, "here", "cpu")
    found |= {"status": "done", "sentence": None, "environment": made.environment(), "ceilings": CEILINGS}
    path = folder / f"{name}.json"
    record.KERNELS.write(found | changes, path)
    return path


def cell(model="vit_tiny", **axes):
    hyper = {"model": read_hyper("model", model)}
    axes = {"loader": "resident", "batch_size": 1024, "cuda_graphs": True, **axes}
    return made.cell(experiment="accelerated_vit", model=model, hyper=hyper, **axes)


def written(folder, of, speeds, facts=FACTS, **kwargs):
    each = [made.record(of, repeat, speed, **kwargs) for repeat, speed in enumerate(speeds)]
    return made.write(folder, *(replace(one, dataset=facts) for one in each))


def found_in(benchmarks, paths):
    return roofline.section(benchmarks, *read(paths))


def test_a_cell_stands_beside_the_floor_of_its_model(tmp_path):
    paths = written(tmp_path, cell(compile=True), [20_000, 22_000, 24_000])
    paths += written(tmp_path, cell(), [10_000, 11_000])
    paths += written(tmp_path, cell("resnet18"), [10_000, 11_000])
    paths += written(tmp_path, cell(loader="dataloader_workers", workers=4), [10_000, 11_000])
    (machine,) = found_in([benchmark(tmp_path)], paths)
    assert [row["settings"] for row in machine["rows"]] == [
        "resident, CUDA graphs, compiled",
        "resident, CUDA graphs, not compiled",
    ]
    best = machine["rows"][0]
    options = vit_cost.known("vit_tiny", read_hyper("model", "vit_tiny"))
    floor = vit_cost.floor_ms(vit_cost.step(options, (64, 64), 40, 1024), 2, 800.0, 4000.0)
    assert best["step_ms"] == pytest.approx(1024 / 22.0)
    assert best["share"] == pytest.approx(floor / (1024 / 22.0))
    assert (best["n"], best["rate"], best["rate_range"]) == (3, "22,000", "20,000 to 24,000")
    assert "800 TFLOP/s" in machine["title"]
    (sentence,) = machine["sentences"]
    assert f"would take {best['floor']} ms a step" in sentence
    assert "compiled" in sentence


def test_several_devices_each_have_a_batch_of_their_own(tmp_path):
    paths = written(tmp_path, cell(trainer="lightning", devices=2), [20_000, 20_000])
    ((row,),) = (machine["rows"] for machine in found_in([benchmark(tmp_path)], paths))
    assert row["step_ms"] == pytest.approx(2 * 1024 / 20.0)


@pytest.mark.parametrize(
    ("ceilings", "facts", "gpu"),
    [
        (None, FACTS, made.H200),  # a benchmark of an older version
        (CEILINGS, OLDER, made.H200),
        (CEILINGS, None, made.H200),
        (CEILINGS, FACTS, "NVIDIA L4"),  # nobody knows its ceilings
    ],
)
def test_without_ceilings_or_sizes_nothing_is_said(tmp_path, ceilings, facts, gpu):
    paths = written(tmp_path, cell(), [10_000, 11_000], facts=facts, gpu=gpu)
    assert found_in([benchmark(tmp_path, ceilings=ceilings)], paths) == []


def test_benchmarks_of_other_experiments_and_damaged_ones_are_left_alone(tmp_path):
    paths = written(tmp_path, cell(), [10_000, 11_000])
    damaged = tmp_path / "accelerated_vit.json"
    damaged.write_text("{")
    assert found_in([damaged, benchmark(tmp_path, "vit_lite")], paths) == []
