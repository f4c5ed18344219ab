"""A model trained on CUDA: its file is read with and without a GPU, and says the same on both."""

import numpy as np
import pytest
import torch

from gpufeed.benchmarks.saved_models.evaluation import evaluate_model
from gpufeed.benchmarks.saved_models.model_file import load, save
from gpufeed.benchmarks.saved_models.prediction import Predictor
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.core.cells import Cell
from gpufeed.core.config import Composer
from gpufeed.core.record import EVALUATION, MODEL
from gpufeed.datasets.manifest import Manifest
from gpufeed.datasets.synthetic import reorganise
from gpufeed.predict import main
from gpufeed.stores.decoded_cache import build
from gpufeed.training.runtime_context import Stores

OPTIONS = {
    "count": 400,
    "size": 32,
    "classes": 4,
    "format": "png",
    "quality": 90,
    "grayscale_share": 0.0,
    "evaluation_share": 0.25,
    "seed": 0,
}
CELLS = {
    "plain, eager": {},
    "plain, graphs": {"cuda_graphs": True},
    "fastai": {"trainer": "fastai", "precision": "fp16"},
    "fused": {"augment": "fused", "precision": "fp16"},
    "resnet18": {"model": "resnet18", "overrides": ("model.stem=cifar",)},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The manifest's path and that of its cache."""
    root = tmp_path_factory.mktemp("synthetic")
    build(reorganise([], root, "synthetic", OPTIONS), "pillow", root / "cache/pillow.npy")
    return root / "manifest.parquet", root / "cache/pillow.npy"


@pytest.mark.parametrize("case", CELLS)
def test_a_model_trained_on_cuda_says_the_same_with_and_without_a_gpu(dataset, tmp_path, case, capsys):
    manifest, cache = dataset
    axes = {"augment": "torch", "precision": "fp32", "batch_size": 50, "epochs": 4, "device": "cuda"}
    cell = Cell(experiment="e", dataset="synthetic", loader="resident", **{**axes, **CELLS[case]})
    cell = {**cell.asdict(), "hyper": Composer()(cell, "the test")}
    stores, path = Stores(cache), tmp_path / "model.pt"
    trained = train_model(cell, manifest, stores, None, "here")
    if trained.about["status"] == "skipped":
        pytest.skip(trained.about["sentence"])
    assert trained.about["status"] == "done", trained.about["sentence"]
    assert next(trained.model.parameters()).device.type == "cuda"
    assert trained.about["epochs"][-1]["train_loss"] < trained.about["epochs"][0]["train_loss"]
    MODEL.write(trained.about, tmp_path / "model.json")
    save(trained.about, trained.model, path)

    saved, pixels = load(path), np.array(np.load(cache, mmap_mode="r"))
    assert {tensor.device.type for tensor in saved.state_dict.values()} == {"cpu"}
    on_cpu, on_cuda = (Predictor(saved, torch.device(name)).probabilities(pixels) for name in ("cpu", "cuda"))
    assert on_cuda == pytest.approx(on_cpu, abs=1e-3)
    best = np.sort(on_cpu, axis=1)
    sure = best[:, -1] - best[:, -2] > 2e-3  # of the others the order may turn by rounding
    assert sure.mean() > 0.9
    assert np.array_equal(on_cuda.argmax(1)[sure], on_cpu.argmax(1)[sure])

    found = evaluate_model(cell, path, manifest, stores, "here")
    EVALUATION.write(found, tmp_path / "evaluation.json")
    assert (found["status"], found["resolved"]["device"]) == ("done", "cuda"), found["sentence"]
    assert found["n"] == np.sum(found["confusion"]) == 100
    samples = Manifest.read(manifest)
    held_out = samples.ids("test")
    correct = int((on_cpu.argmax(1)[held_out] == samples.labels()[held_out]).sum())
    assert found["correct"] == pytest.approx(correct, abs=3)  # fp16 may turn a few

    file = str(samples.paths()[held_out[0]])
    said = []
    for device in ("cpu", "cuda"):
        assert main([str(path), file, "--device", device, "--format", "csv", "--top", "1"]) == 0
        said.append(capsys.readouterr().out.splitlines()[1].split(",")[2])
    assert said == [saved.classes[on_cpu[held_out[0]].argmax()]] * 2 or not sure[held_out[0]]
