"""Backends on a GPU: each says what the model says; graphs replay; 8-bit products run; one call is timed."""

import inference_fixtures as made
import numpy as np
import pytest
import torch
from test_inference_backends import PAIRS, TOLERANCES, hooked

from gpufeed.benchmarks.inference import export, exported_files, quantise
from gpufeed.benchmarks.inference.backend import Setting, in_type
from gpufeed.benchmarks.inference.exported_files import EXPORTED, NAMES, Files
from gpufeed.benchmarks.inference.inference_benchmark import measure_inference
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.core.cells import Cell
from gpufeed.core.config import Composer
from gpufeed.core.errors import Skip
from gpufeed.core.record import INFERENCE
from gpufeed.core.registry import BACKENDS, fetch
from gpufeed.datasets.synthetic import reorganise
from gpufeed.stores.decoded_cache import build
from gpufeed.system.devices import apply_precision
from gpufeed.training.runtime_context import Stores

BATCH = 4
GRAPHS = ("cuda_graphs", "compiled_graphs", "autotuned_graphs", "torchao_int8", "torchao_fp8")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Gives a Setting on the GPU with all files of a model of MODELS, each exported once."""
    known = {}
    apply_precision("fp32")

    def of(case, kind="fp32", n=BATCH):
        if case not in known:
            folder, saved = tmp_path_factory.mktemp(case), made.saved(case)
            paths = {format: folder / name for format, name in NAMES.items()}
            export.write_program(saved, paths["program"])
            try:
                made.write_onnx_files(saved, paths)
                known[case] = saved, Files(paths, {})
            except Skip as skip:
                known[case] = saved, Files({"program": paths["program"]}, dict.fromkeys(NAMES, str(skip)))
        saved, found = known[case]
        device = torch.device("cuda", torch.cuda.current_device())
        return Setting(saved, found, made.noise(n).to(device), kind, "bf16", channels_last=True)

    return of


def prepared(name, setting):
    """Ready, or the test is skipped for what this node lacks."""
    try:
        with torch.no_grad():
            return fetch("backend", name)(setting)
    except Skip as skip:
        return pytest.skip(str(skip))


@pytest.mark.parametrize("case", ["vit_mean", "vit_class_token", "resnet18"])
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_backend_on_the_gpu_says_what_the_model_says(name, kind, case, settings):
    setting = settings(case, kind)
    ready, model = prepared(name, setting), setting.model()
    with torch.no_grad():
        for images in (setting.images, setting.images.flip(0)):
            wanted, found = model(images), ready.run(images)
            assert (found.shape, found.dtype, found.device) == (wanted.shape, torch.float32, wanted.device)
            assert (found - wanted).abs().max() <= TOLERANCES[kind] * wanted.abs().max()


@pytest.mark.parametrize("name", ["tensorrt_rtx", "tensorrt_rtx_int8"])
def test_tensorrt_for_rtx_says_a_sentence_on_a_card_that_it_does_not_know(name, settings):
    pytest.importorskip("tensorrt_rtx_bindings")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this GPU has another compute capability than 9.0")
    with pytest.raises(Skip, match=r"builds for compute capability 7\.5, .* has 9\.0\."):
        fetch("backend", name)(settings("vit_mean", BACKENDS[name].precisions[-1]))


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("case", ["vit_mean", "resnet18"])
def test_a_graph_says_what_eager_says_and_reads_each_batch_anew(case, kind, settings):
    setting = settings(case, kind)
    eager, graph = prepared("eager", setting).run, prepared("cuda_graphs", setting).run
    with torch.no_grad():
        first = graph(setting.images).clone()
        largest = first.abs().max()
        # the same operations; cuBLAS may take another of its kernels where it may not ask for memory
        near = {"fp32": 1e-4, "fp16": 2e-3, "bf16": 2e-2}[kind] * largest
        assert (first - eager(setting.images)).abs().max() <= near
        other = setting.images.roll(1, dims=0) * 0.5
        assert (graph(other) - eager(other)).abs().max() <= near
        assert torch.equal(graph(setting.images), first)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_captured_can_be_captured_for_one_image(name, settings):
    """An int8 product needs 17 rows or more: those of one image, which the head has not."""
    kind = BACKENDS[name].precisions[-1]
    setting = settings("vit_mean", kind, n=1)
    ready, model = prepared(name, setting), setting.model()
    with torch.no_grad():
        wanted = model(setting.images)
        assert (ready.run(setting.images) - wanted).abs().max() <= TOLERANCES[kind] * wanted.abs().max()
    if name.startswith("torchao"):
        assert ready.layers == {"layers": 9, "of": 10}  # all but the head
        assert ready.bytes < sum(parameter.numel() for parameter in model.parameters()) * 2


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_one_layer_of_a_half_model_is_cast_for(kind, settings):
    setting = settings("vit_mean")
    model = in_type(setting.model(), kind, setting.images)
    assert hooked(model) == ["norm"]
    with torch.no_grad():
        assert model(setting.images.to(kind)).dtype == kind


OPTIONS = {
    "count": 200,
    "size": 32,
    "classes": 4,
    "format": "png",
    "quality": 90,
    "grayscale_share": 0.0,
    "evaluation_share": 0.25,
    "seed": 0,
}


def test_a_kept_model_is_measured_by_all_that_this_node_has(tmp_path):
    manifest = reorganise([], tmp_path / "data", "synthetic", OPTIONS)
    cache = tmp_path / "data/cache/pillow.npy"
    build(manifest, "pillow", cache)
    vit = ("model.width=32", "model.depth=2", "model.heads=2", "trainer.optimiser=adamw")
    axes = {"augment": "torch", "model": "vit_lite", "precision": "bf16", "batch_size": 50, "epochs": 10}
    cell = Cell(experiment="e", dataset="synthetic", loader="resident", device="cuda", overrides=vit, **axes)
    cell = {**cell.asdict(), "hyper": Composer()(cell, "the test")}
    path, stores, table = tmp_path / "model.pt", Stores(cache), tmp_path / "data/manifest.parquet"
    trained = train_model(cell, table, stores, None, "here")
    assert trained.about["status"] == "done", trained.about["sentence"]
    save(trained.about, trained.model, path)
    listed = {
        "exported": export.export_model(cell, path, tmp_path / "exported", "here"),
    }
    EXPORTED.write(listed["exported"], tmp_path / "exported.json")
    found = exported_files.find({tmp_path / "exported.json": tmp_path / "exported"})
    calibration = {"images": 64, "method": "minmax", "seed": 0}
    listed["quantised"] = quantise.quantise_model(
        cell, found, table, stores, calibration, tmp_path / "quantised", "here"
    )
    EXPORTED.write(listed["quantised"], tmp_path / "quantised.json")
    found = exported_files.find({tmp_path / f"{name}.json": tmp_path / name for name in listed})
    settings = {
        "backends": list(BACKENDS),
        "precisions": ["fp32", "fp16", "bf16"],
        "batch_sizes": [8, 64],
        "calls": 20,
        "rounds": 2,
        "seconds": 0.01,
    }
    measured = measure_inference(cell, path, found, table, stores, settings, "here")
    INFERENCE.write(measured, tmp_path / "found.json")
    assert measured["status"] == "done", measured["sentence"]
    rows = {(row["backend"], row["precision"]): row for row in measured["rows"]}
    assert {name: row["sentence"] for name, row in rows.items() if row["status"] == "failed"} == {}
    for name in (("eager", "fp32"), ("cuda_graphs", "bf16"), ("export", "fp32")):
        row = rows[name]
        assert row["status"] == "done", row["sentence"]
        assert row["images"] == 50
        assert row["latency"]["n"] == 20
        assert 0 < row["latency"]["device_ms"]["median"] <= row["latency"]["host_ms"]["p99"]
        assert [entry["batch"] for entry in row["throughput"]] == [8, 64]
        assert min(entry["peak_gpu_mib"] for entry in row["setup"]) > 0
    assert rows["eager", "fp32"]["agreement"] == 1
    for row in rows.values():
        if row["status"] == "done":
            assert row["agreement"] > 0.8
            assert np.isfinite(row["over_bf16"])
