"""Exported models say what the model says, of any number of images; the INT8 file is what TensorRT reads."""

import json
import sys
from collections import Counter
from pathlib import Path

import inference_fixtures as made
import measure_fixtures as toys
import numpy as np
import pytest
import torch

from gpufeed.benchmarks.inference import export, exported_files, quantise
from gpufeed.benchmarks.inference.backends.onnx_runtime import WHOLE_PRODUCTS
from gpufeed.benchmarks.inference.exported_files import EXPORTED, INPUT, METADATA, OUTPUT
from gpufeed.benchmarks.saved_models.model_file import save
from gpufeed.benchmarks.saved_models.train_model import train_model
from gpufeed.core.errors import GpufeedError, Skip, install
from gpufeed.training.cell_training import read_cell
from gpufeed.training.runtime_context import Stores

# An untrained model's logits lie close together: INT8 may move them by this share of the largest.
INT8_TOLERANCE = 0.08


def onnx():
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    return pytest.importorskip("onnx")


def run_onnx(path, images, optimised=True):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(WHOLE_PRODUCTS, "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run([OUTPUT], {INPUT: images.numpy()})[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Gives the folder with both files of a model of MODELS, and what was told of them; each made once."""
    known = {}

    def of(case):
        if case not in known:
            folder, saved = tmp_path_factory.mktemp(case), made.saved(case)
            program = export.write_program(saved, folder / "model.pt2")
            known[case] = folder, program, export.write_onnx(saved, folder / "model.onnx")
        return known[case]

    return of


TRANSFORMER = pytest.param("vit_mean", marks=pytest.mark.slow)
LARGE = pytest.param("resnet18", marks=pytest.mark.slow)  # 11 million weights, whatever the options


QUICK = ("simple_cnn",)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in made.MODELS],
)
def test_files_of_every_model_say_what_it_says_of_any_number_of_images(case, exported):
    modules, saved = onnx(), made.saved(case)
    model, (folder, program, told) = saved.build(torch.device("cpu")), exported(case)
    assert (program["dynamic_batch"], told["dynamic_batch"], told["opset"]) == (True, True, export.OPSET)
    extra = {f"{METADATA}.json": ""}
    again = torch.export.load(folder / "model.pt2", extra_files=extra).module()
    for n in (1, 4, 7):
        with torch.inference_mode():
            wanted = model(made.noise(n))
            assert again(made.noise(n)) == pytest.approx(wanted, abs=1e-5)
        assert run_onnx(folder / "model.onnx", made.noise(n)) == pytest.approx(wanted.numpy(), abs=1e-4)
    proto = modules.load(folder / "model.onnx")
    for value in (proto.graph.input[0], proto.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
    said = {entry.key: entry.value for entry in proto.metadata_props}[METADATA]
    assert said == extra[f"{METADATA}.json"]
    said = json.loads(said)
    assert said["classes"] == saved.classes
    assert (said["height"], said["width"]) == saved.size
    assert (said["mean"], said["std"]) == (saved.about["input"]["mean"], saved.about["input"]["std"])
    assert [(opset.domain, opset.version) for opset in proto.opset_import if not opset.domain] == [("", 20)]


@pytest.mark.parametrize("case", ["simple_cnn", TRANSFORMER, LARGE])
def test_the_int8_file_is_what_tensorrt_asks_for(case, exported, tmp_path):
    modules, saved = onnx(), made.saved(case)
    told = quantise.quantise(
        exported(case)[0] / "model.onnx", made.noise(40).numpy(), "minmax", tmp_path / "int8.onnx"
    )
    proto = modules.load(tmp_path / "int8.onnx")
    count = Counter(node.op_type for node in proto.graph.node)
    assert 0 < count["QuantizeLinear"] < count["DequantizeLinear"]
    assert {opset.domain for opset in proto.opset_import} == {""}
    assert [entry.key for entry in proto.metadata_props] == [METADATA]

    values = {entry.name: modules.numpy_helper.to_array(entry) for entry in proto.graph.initializer}
    assert {value.dtype.name for value in values.values()} == {"int8", "float32", "int64"}  # no int32 bias
    weights = 0
    for node in proto.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale, zero = values[node.input[1]], values[node.input[2]]
        assert zero.dtype == np.int8
        assert not zero.any()
        if node.input[0] in values:  # a weight, a scale for each output channel
            weight, (axis,) = values[node.input[0]], [a.i for a in node.attribute if a.name == "axis"]
            assert weight.dtype == np.int8
            assert scale.shape == (weight.shape[axis],)
            assert np.abs(weight.astype(int)).max() == 127
            weights += 1
        else:
            assert scale.size == 1
    # every convolution and product with weights, and no product of two activations
    in_attention = 2 * 2 if case.startswith("vit") else 0
    assert told["quantised"] == {"layers": weights, "of": weights + in_attention}
    assert weights == {"resnet18": 21, "simple_cnn": 3}.get(case, 10)

    model = saved.build(torch.device("cpu"))
    with torch.inference_mode():
        wanted = model(made.noise(6)).numpy()
    found = run_onnx(tmp_path / "int8.onnx", made.noise(6))
    difference = np.abs(found - wanted).max()
    assert 0 < difference < INT8_TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("case", ["simple_cnn", pytest.param("vit_class_token", marks=pytest.mark.slow)])
def test_half_files_have_no_float32_but_input_and_output_and_say_the_same(case, exported, tmp_path):
    modules, saved, int8 = onnx(), made.saved(case), tmp_path / "int8.onnx"
    quantise.quantise(exported(case)[0] / "model.onnx", made.noise(16).numpy(), "minmax", int8)
    with torch.inference_mode():
        wanted = saved.build(torch.device("cpu"))(made.noise(7)).numpy()
    near = {exported(case)[0] / "model.onnx": 0.005, int8: INT8_TOLERANCE}
    for source, tolerance in near.items():
        told = export.write_half(source, tmp_path / "half.onnx", tolerance)
        assert told["dynamic_batch"]
        single, half = modules.load(source), modules.load(tmp_path / "half.onnx")
        before, after = (
            Counter(value.data_type for value in file.graph.initializer) for file in (single, half)
        )
        types = modules.TensorProto
        assert after[types.FLOAT] == 0 < after[types.FLOAT16] == before[types.FLOAT]
        assert (after[types.INT8], after[types.INT64]) == (before[types.INT8], before[types.INT64])
        for value in (half.graph.input[0], half.graph.output[0]):
            assert value.type.tensor_type.elem_type == types.FLOAT
            assert value.type.tensor_type.shape.dim[0].dim_param == "batch"
        assert half.metadata_props == single.metadata_props
        assert half.opset_import == single.opset_import
        found = run_onnx(tmp_path / "half.onnx", made.noise(7), optimised=False)
        assert 0 < np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


def test_a_model_that_half_precision_cannot_hold_gets_no_half_file(exported, tmp_path):
    modules = onnx()
    model = modules.load(exported("simple_cnn")[0] / "model.onnx")
    for value in model.graph.initializer:
        if value.data_type == modules.TensorProto.FLOAT:
            large = modules.numpy_helper.to_array(value) * 1e5
            value.CopyFrom(modules.numpy_helper.from_array(large, value.name))
    modules.save(model, tmp_path / "model.onnx")
    made_of = {"format": "onnx", "status": "done", "quantised": None}
    with pytest.raises(GpufeedError, match=r"logits of model\.fp16\.onnx"):
        export.half_row(made_of, tmp_path, lambda work: ("done", None, work()))


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_ranges_by_other_methods(method, exported, tmp_path):
    onnx()
    source = exported("simple_cnn")[0] / "model.onnx"
    images = made.noise(70).numpy()  # three calls, whose histograms are joined
    quantise.quantise(source, images, method, tmp_path / "int8.onnx")
    quantise.quantise(source, images, "minmax", tmp_path / "minmax.onnx")
    found = run_onnx(tmp_path / "int8.onnx", made.noise(6))
    assert not np.array_equal(found, run_onnx(tmp_path / "minmax.onnx", made.noise(6)))
    assert found == pytest.approx(run_onnx(source, made.noise(6)), abs=0.5)


def test_calibration_images_are_drawn_from_the_training_split_by_the_seed(tmp_path, monkeypatch):
    toys.register(monkeypatch)
    samples = toys.toy_manifest(tmp_path, train=50)
    cell = read_cell(toys.toy_cell())

    def drawn(**changes):
        calibration = {"images": 40, "method": "minmax", "seed": 0, **changes}
        return quantise.calibration_images(cell, samples, Stores(), toys.CPU, calibration)

    one = drawn()
    assert one.shape == (40, 3, toys.SIDE, toys.SIDE)
    assert np.array_equal(one, drawn())
    assert not np.array_equal(one, drawn(seed=1))
    assert len(drawn(images=1000)) == 50  # all, none twice
    train = (toys.toy_images(samples.ids("train")).numpy() / 255 - 0.5) / 0.25
    known = {image.tobytes() for image in np.round(train.transpose(0, 3, 1, 2), 3).astype(np.float32)}
    found = [image.tobytes() for image in np.round(one, 3)]
    assert len(set(found)) == 40
    assert set(found) <= known


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Trains a toy cell, exports and quantises it; returns both lists, checked."""
    toys.register(monkeypatch)
    manifest = toys.toy_manifest(tmp_path).write()

    def run(**axes):
        cell = toys.toy_cell(epochs=1, **axes)
        trained = train_model(cell, manifest, Stores(), None, "login1")
        save(trained.about, trained.model, tmp_path / "model.pt")
        listed = export.export_model(cell, tmp_path / "model.pt", tmp_path / "exported", "login1", attempt=2)
        EXPORTED.write(listed, tmp_path / "exported.json")
        calibration = {"images": 20, "method": "minmax", "seed": 5}
        found = exported_files.find({tmp_path / "exported.json": tmp_path / "exported"})
        int8 = quantise.quantise_model(
            cell, found, manifest, Stores(), calibration, tmp_path / "quantised", "login1"
        )
        EXPORTED.write(int8, tmp_path / "quantised.json")
        return listed, int8

    return run


def test_lists_say_what_was_made_and_where_it_is(toy, tmp_path):
    onnx()
    listed, int8 = toy()
    rows = [*listed["rows"], *int8["rows"]]
    assert [row["format"] for row in rows] == ["program", "onnx", "onnx_fp16", "onnx_int8", "onnx_int8_fp16"]
    assert {row["status"] for row in rows} == {"done"}
    assert int8["calibration"] == {"split": "train", "images": 20, "method": "minmax", "seed": 5}
    found = exported_files.find(
        {tmp_path / f"{name}.json": tmp_path / name for name in ("exported", "quantised")}
    )
    for row in rows:
        assert found.path(row["format"]).stat().st_size == row["bytes"]
    found.path("onnx").unlink()
    found = exported_files.find({tmp_path / "exported.json": tmp_path / "exported"})
    with pytest.raises(Skip, match="is missing"):
        found.path("onnx")


def test_a_training_that_was_stopped_gives_no_files_and_its_sentence(toy, tmp_path):
    listed, int8 = toy(loader="MissingLoader")
    assert (listed["status"], listed["rows"]) == ("skipped", [])
    assert int8["rows"][0]["status"] == "skipped"
    assert "a machine that this node lacks" in int8["rows"][0]["sentence"]
    assert int8["calibration"] is None
    # else the terminal would print the document's sentence twice
    assert exported_files.troubles(listed) is exported_files.troubles(int8) is None


def test_each_failed_row_is_a_line():
    rows = [{"format": "onnx", "status": "done", "sentence": None}]
    rows += [{"format": "onnx_fp16", "status": "failed", "sentence": "why"}]
    assert exported_files.troubles({"sentence": None, "rows": rows}) == ["onnx_fp16 failed: why"]


def test_without_the_packages_the_program_is_made_and_the_rest_skipped(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)  # an import of it raises ModuleNotFoundError
    listed, int8 = toy()
    assert [row["status"] for row in listed["rows"]] == ["done", "skipped", "skipped"]
    for row in (*listed["rows"][1:], *int8["rows"]):
        assert install("onnx") in row["sentence"]
    assert sorted(path.name for path in tmp_path.glob("*ed/*")) == ["model.pt2"]


def test_a_file_that_says_something_else_is_an_error():
    exact = torch.tensor([[1.0, 20.0]])
    assert export.compared(exact + 0.01, exact, Path("model.onnx")) == pytest.approx(0.01, rel=0.1)
    for wrong in (exact + 0.03, exact * float("nan")):
        with pytest.raises(GpufeedError, match="from the model's"):
            export.compared(wrong, exact, Path("model.onnx"))
