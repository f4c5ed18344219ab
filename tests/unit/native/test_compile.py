"""Compiled training: compiled before the clock, learning the same, and skipped without a compiler."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from measure_fixtures import (
    CLASSES,
    CPU,
    SIDE,
    ToyLoader,
    register,
    toy_cell,
    toy_job,
    toy_manifest,
    toy_trainer,
)
from test_vit import OPTIONS_OF, SIZE
from torch._dynamo import reset

from gpufeed.benchmarks.end_to_end import measure
from gpufeed.core.cells import Cell, impossible, impossible_as_composed
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.models.vit import VisionTransformer
from gpufeed.native import jit_toolchain
from gpufeed.training.engines.plain import PlainTrainer

REAL = torch.compile


@pytest.fixture(autouse=True)
def fresh():
    """Nothing compiled by another test is used again."""
    reset()
    yield
    reset()


@pytest.fixture
def shapes(monkeypatch):
    """The batch size of every graph that is compiled, in order; the graphs run as they are."""
    seen = []

    def backend(graph, inputs):
        seen.append(next(value.shape[0] for value in inputs if value.ndim == 4 and value.shape[-1] == SIDE))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(REAL, backend=backend))
    return seen


def losses(trainer) -> list[float]:
    return [row["loss"] for row in trainer.run().steps]


def test_both_batch_sizes_are_compiled_before_the_clock(tmp_path, shapes):
    trainer = toy_trainer(tmp_path, compile=True, epochs=2)
    assert shapes == [8, 6]
    trainer.run()
    assert shapes == [8, 6]


def test_nothing_is_compiled_unless_asked(tmp_path, shapes):
    toy_trainer(tmp_path).run()
    assert shapes == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_model_trains_as_one_that_is_not(tmp_path, shapes, precision):
    plain = losses(toy_trainer(tmp_path, epochs=3, precision=precision))
    trainer = toy_trainer(tmp_path, epochs=3, precision=precision, compile=True)
    assert losses(trainer) == pytest.approx(plain, rel=1e-5)
    assert not any(name.startswith("_orig_mod") for name in trainer.job.model.state_dict())


@pytest.mark.parametrize("asked", [False, True])
def test_products_are_autotuned_where_that_is_asked_for(tmp_path, monkeypatch, asked):
    seen = []

    def compile_(model, **settings):
        seen.append(settings["options"])
        return REAL(model, dynamic=False, backend="eager")

    monkeypatch.setattr(torch, "compile", compile_)
    toy_trainer(tmp_path, compile=True, options={"max_autotune": asked}).run()
    assert seen == [jit_toolchain.MAX_AUTOTUNE if asked else None]


def test_every_option_of_autotuning_is_one_of_inductors():
    REAL(torch.nn.Linear(2, 2), options=jit_toolchain.MAX_AUTOTUNE)  # raises for a name that it does not know


def test_autotuning_without_compiling_is_refused_with_a_sentence():
    cell = Cell("toys", "toy", "resident", hyper={"trainer": {"max_autotune": True}})
    assert "compile must be true" in impossible_as_composed(cell)
    assert impossible_as_composed(replace(cell, compile=True)) is None


@pytest.mark.parametrize("graphs", [True, "auto"])
def test_torchs_own_optimisers_are_not_captured(graphs):
    """SGD reads its learning rate, and a gradient scaler whether to step, on the host."""
    cell = Cell("toys", "toy", "resident", cuda_graphs=graphs, hyper={"trainer": {"torch_defaults": True}})
    assert "cuda_graphs must be false" in impossible_as_composed(cell)
    assert impossible_as_composed(replace(cell, cuda_graphs=False)) is None


def toy_vit():
    torch.manual_seed(0)
    options = {**OPTIONS_OF, "depth": 1, "activation": "linear_bias_gelu"}
    return VisionTransformer(CLASSES, (SIDE, SIDE), **options)


def test_a_vision_transformer_is_one_graph():
    """Also with attention by a named kernel, and where autocast is left for the norms."""
    for changes in ({}, {"sdpa": "math"}, {"residual": "autocast", "pool": "class_token"}):
        model = VisionTransformer(3, SIZE, **{**OPTIONS_OF, "depth": 1, **changes})
        images = torch.rand(2, 3, *SIZE)
        with torch.autocast("cpu", torch.bfloat16):
            found = REAL(model, fullgraph=True, dynamic=False, backend="eager")(images)
            torch.testing.assert_close(found, model(images))


def alike(request):
    """A loader whose batches are of one size: another size is compiled as long again."""
    return ToyLoader(replace(request, batch_size=15))


@pytest.mark.slow
def test_a_vision_transformer_trains_compiled_by_inductor(tmp_path):
    def trained(**job) -> list[float]:
        trainer = PlainTrainer(toy_job(tmp_path, toy_vit(), alike, epochs=4, **job))
        trainer.prepare(torch.zeros((15, SIDE, SIDE, 3), dtype=torch.uint8))
        return losses(trainer)

    plain = trained()
    assert len(plain) == 8
    assert trained(compile=True) == pytest.approx(plain, rel=1e-3)


def test_without_a_compiler_the_cell_is_skipped_with_a_sentence(tmp_path, monkeypatch):
    register(monkeypatch)
    toy_manifest(tmp_path).write()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    cell = toy_cell(loader="ceiling", compile=True, steps=4)
    record, _ = measure(cell, 0, tmp_path / "manifest.parquet", None, "node")
    assert record.status == "skipped"
    assert record.sentence.startswith("torch.compile needs a compiler on the node, which has no C++ compiler")


def test_cxx_is_the_compiler_where_it_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    with pytest.raises(Skip, match=r"CXX is .*c\+\+, which is not a program here"):
        jit_toolchain.require_compiler(CPU)
    (tmp_path / "c++").write_text("#!/bin/sh\n")
    (tmp_path / "c++").chmod(0o755)
    jit_toolchain.require_compiler(CPU)


@pytest.mark.parametrize(
    ("capability", "installed", "compiler", "lacks"),
    [
        ((6, 1), True, None, "a GPU of compute capability 6.1"),
        ((7, 0), True, None, None),
        ((9, 0), False, None, "no package triton"),
        ((9, 0), True, "no C compiler: CC is not set", "no C compiler: CC is not set"),
    ],
)
def test_what_a_gpu_node_lacks(monkeypatch, capability, installed, compiler, lacks):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(
        jit_toolchain.importlib.util, "find_spec", lambda name: object() if installed else None
    )
    monkeypatch.setattr(jit_toolchain, "lacking_for_triton", lambda: compiler)
    if lacks is None:
        jit_toolchain.require_compiler(torch.device("cuda"))
        return
    with pytest.raises(Skip, match=lacks):
        jit_toolchain.require_compiler(torch.device("cuda"))


def test_what_cannot_be_compiled_is_left_out():
    def why(**axes):
        return impossible(Cell("e", "d", "dataloader_sync", compile=True, **axes))

    assert "the config says device mps" in why(device="mps")
    assert "trainer fastai does not compile models" in why(trainer="fastai")
    assert why(device="cpu") is why() is why(cuda_graphs=True) is None
    with pytest.raises(Skip, match="this cell's device is mps"):
        jit_toolchain.require_compiler(torch.device("mps"))


def test_the_trainer_fastai_refuses_a_compiled_model(tmp_path):
    pytest.importorskip("fastai")
    from gpufeed.training.engines.fastai import FastaiTrainer

    with pytest.raises(GpufeedError, match="a compiled model with trainer fastai"):
        FastaiTrainer(toy_job(tmp_path, compile=True))


def test_a_cells_name_tells_that_it_is_compiled():
    assert "-b128-compiled-graphs-" in Cell("e", "d", "resident", compile=True, cuda_graphs=True).id
