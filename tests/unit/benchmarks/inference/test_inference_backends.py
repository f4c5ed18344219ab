"""Every registered backend keeps the contract: the model's answers for a batch, or a sentence why not."""

import re
import sys

import inference_fixtures as made
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from gpufeed.benchmarks.inference import backend, export, quantise
from gpufeed.benchmarks.inference.backend import Setting
from gpufeed.benchmarks.inference.backends import onnx_runtime, tensor_rt
from gpufeed.benchmarks.inference.exported_files import NAMES, Files
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.core.registry import BACKENDS, fetch, modules_of

BATCH = 4
PAIRS = [(name, kind) for name, entry in BACKENDS.items() for kind in entry.precisions]
# Largest difference of logits from eager fp32, as a share of the largest logit.
TOLERANCES = {"fp32": 5e-4, "bf16": 0.04, "fp16": 0.005, "int8": 0.08, "fp8": 0.12}
CASES = ("simple_cnn", pytest.param("vit_mean", marks=pytest.mark.slow))  # whose export takes seconds
# torchao has nothing to do for convolutions
MODEL_OF = {name: "vit_mean" if name.startswith("torchao") else "simple_cnn" for name in BACKENDS}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Gives a Setting on the CPU with all files of a model of MODELS, each exported once."""
    known = {}

    def of(case, kind="fp32", **changes):
        if case not in known:
            folder, saved = tmp_path_factory.mktemp(case), made.saved(case)
            paths = {format: folder / name for format, name in NAMES.items()}
            export.write_program(saved, paths["program"])
            made.write_onnx_files(saved, paths)
            known[case] = saved, Files(paths, {})
        saved, files = known[case]
        return Setting(saved, files, made.noise(BATCH), kind, **changes)

    return of


@pytest.fixture
def traced_only(monkeypatch):
    """torch.compile traces as ever and leaves the operations as they are: compiling C++ takes minutes."""
    whole = torch.compile

    def trace(function, **options):
        return whole(
            function, backend="aot_eager", dynamic=options["dynamic"], fullgraph=options["fullgraph"]
        )

    monkeypatch.setattr(torch, "compile", trace)


def prepared(name, setting):
    """Ready, or the test is skipped for what this node lacks, with a full sentence."""
    try:
        with torch.no_grad():
            return fetch("backend", name)(setting)
    except Skip as skip:
        said = str(skip)
    assert re.fullmatch(r"[A-Za-z].{20,}\.", said), said
    return pytest.skip(said)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_backend_says_what_the_model_says(name, kind, case, settings, traced_only):
    setting = settings(case, kind)
    ready = prepared(name, setting)
    assert ready.bytes > 0
    model = setting.model()
    with torch.no_grad():
        for images in (setting.images, setting.images.flip(0)):
            wanted, found = model(images), ready.run(images)
            assert (found.shape, found.dtype, found.device) == (wanted.shape, torch.float32, wanted.device)
            assert (found - wanted).abs().max() <= TOLERANCES[kind] * wanted.abs().max()
    if kind in ("int8", "fp8") and ready.layers:
        assert 0 < ready.layers["layers"] <= ready.layers["of"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if of == "vit_mean" else ()) for name, of in MODEL_OF.items()],
)
def test_a_backend_says_the_same_twice_and_leaves_its_images_alone(name, settings, traced_only):
    setting = settings(MODEL_OF[name], BACKENDS[name].precisions[0])
    ready, before = prepared(name, setting), setting.images.clone()
    with torch.no_grad():
        once = ready.run(setting.images).clone()
        assert torch.equal(ready.run(setting.images), once)
    assert torch.equal(setting.images, before)


FILES_OF = {
    ("export", "fp32"): "program",
    ("onnxruntime", "fp32"): "onnx",
    ("onnxruntime_int8", "int8"): "onnx_int8",
    ("tensorrt", "fp32"): "onnx",
    ("tensorrt", "fp16"): "onnx_fp16",
    ("tensorrt_int8", "int8"): "onnx_int8",
    ("tensorrt_rtx", "fp32"): "onnx",
    ("tensorrt_rtx", "fp16"): "onnx_fp16",
    ("tensorrt_rtx_int8", "int8"): "onnx_int8_fp16",
}


@pytest.mark.parametrize(("name", "kind"), FILES_OF)
def test_without_its_file_a_backend_is_skipped_with_the_reason(name, kind, settings):
    setting = settings("simple_cnn")
    lacking = Files({}, {format: f"The exporter had no paper for {format}." for format in NAMES})
    with pytest.raises(Skip, match=rf"no paper for {FILES_OF[name, kind]}\."):
        fetch("backend", name)(Setting(setting.saved, lacking, setting.images, kind))


def test_onnx_runtime_gets_the_gpu_where_its_package_has_one_and_float32_without_tf32():
    both, cpu = ["CUDAExecutionProvider", "CPUExecutionProvider"], ["CPUExecutionProvider"]
    on_gpu = onnx_runtime.providers(torch.device("cuda", 1), both)
    assert on_gpu == [("CUDAExecutionProvider", {"device_id": 1, "use_tf32": "0"}), *cpu]
    assert onnx_runtime.providers(torch.device("cuda"), cpu) == cpu
    assert onnx_runtime.providers(torch.device("cpu"), both) == cpu


def test_a_session_that_reads_torchs_memory_waits_for_torch(settings, monkeypatch):
    """Its stream is not torch's: nothing else keeps it from images that are still being written."""
    setting, order = settings("simple_cnn"), []

    class Session:
        def io_binding(self):
            return self

        def bind_input(self, *what):
            self.given = what

        def bind_output(self, *what):
            self.gives = what

        def run_with_iobinding(self, binding):
            order.append("run")

    session = Session()
    monkeypatch.setattr(onnx_runtime, "synchronise", lambda device: order.append(device))
    logits = onnx_runtime.bound(session, setting)(setting.images)
    assert order == [setting.device, "run"]
    assert session.given[-2:] == (tuple(setting.images.shape), setting.images.data_ptr())
    assert session.gives[-2:] == (tuple(logits.shape), logits.data_ptr())
    assert logits.shape == (BATCH, len(setting.saved.classes))


@pytest.mark.slow
def test_compiled_to_the_end_it_says_what_the_model_says(settings):
    setting = settings("vit_mean", "fp32")
    ready, model = prepared("compiled", setting), setting.model()
    with torch.no_grad():
        wanted, found = model(setting.images), ready.run(setting.images)
    assert (found - wanted).abs().max() <= TOLERANCES["fp32"] * wanted.abs().max()


CARDS = ("SM75", "SM80", "SM86", "SM89")
MIB = 2**20


def engine(path, card, side=made.SIDE):
    """Bytes of the engine that TensorRT for RTX builds of a file, without a GPU, for batches of BATCH."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    target = getattr(trt.ComputeCapability, card)
    return tensor_rt.built(trt, tensor_rt.listener(trt), path, (BATCH, 3, side, side), target).nbytes


def check_engines(files, side, cards):
    """Builds each half file for each card, and the others as they are for those that have such products."""
    for card in cards:
        for format in ("onnx_fp16", "onnx_int8_fp16"):
            weights = files.path(format).stat().st_size
            assert weights < engine(files.path(format), card, side) < weights + 16 * MIB
    for format in ("onnx", "onnx_int8"):
        assert engine(files.path(format), "SM86", side) > files.path(format).stat().st_size
        with pytest.raises(GpufeedError, match=r"does not build .*FP32 GEMM"):
            engine(files.path(format), "SM75", side)


@pytest.mark.slow
def test_engines_for_rtx_cards_are_built_on_a_cpu(settings):
    check_engines(settings("vit_mean").files, made.SIDE, CARDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_lite", "resnet18"])
def test_engines_of_shipped_models_for_rtx_cards_are_built_on_a_cpu(name, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings")
    saved, paths = made.shipped(name), {format: tmp_path / file for format, file in NAMES.items()}
    made.write_onnx_files(saved, paths)
    check_engines(Files(paths, {}), saved.size[0], CARDS[-1:])
    if name == "resnet18":  # weights are most of it: in INT8 they are stored as bytes
        side = saved.size[0]
        halves = engine(paths["onnx_fp16"], "SM89", side)
        assert engine(paths["onnx_int8_fp16"], "SM89", side) < 0.7 * halves


def test_a_file_that_is_not_ours_gets_no_engine(settings, tmp_path, monkeypatch):
    onnx, files, path = pytest.importorskip("onnx"), settings("simple_cnn").files, tmp_path / "broken.onnx"
    monkeypatch.setitem(quantise.OPTIONS, "QuantizeBias", True)
    quantise.quantise(files.path("onnx"), made.noise(16).numpy(), "minmax", path)
    with pytest.raises(GpufeedError, match=r"does not read .*bias.* has type Int32") as caught:
        engine(path, "SM89")
    assert "export and quantise the model again" in caught.value.remedy
    whole = files.path("onnx_fp16").read_bytes()
    for part in (whole[: len(whole) // 2], b"", b"no model"):
        path.write_bytes(part)
        with pytest.raises(GpufeedError, match=r"found: broken\.onnx, which tensorrt_rtx"):
            engine(path, "SM89")
    model = onnx.load(files.path("onnx"))
    model.graph.output[0].name = model.graph.node[-1].output[0] = "scores"
    onnx.save(model, path)
    with pytest.raises(GpufeedError, match="expected: images and logits in float32"):
        engine(path, "SM89")


def test_a_card_that_tensorrt_for_rtx_does_not_know_is_skipped_before_anything_is_built():
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    assert tensor_rt.target_of(trt, (8, 9), "RTX 4090", "fp32") == trt.ComputeCapability.SM89
    assert tensor_rt.target_of(trt, (7, 5), "RTX 2080", "fp16") == trt.ComputeCapability.SM75
    with pytest.raises(Skip, match=r"7\.5, 8\.0, 8\.6, 8\.9, 12\.0.*, and H100 has 9\.0\."):
        tensor_rt.target_of(trt, (9, 0), "H100", "fp16")
    with pytest.raises(Skip, match=r"no float32 products for compute capability 7\.5"):
        tensor_rt.target_of(trt, (7, 5), "RTX 2080", "fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a node whose driver does not suffice")
def test_an_engine_that_a_driver_cannot_load_is_skipped_with_the_reason(settings):
    trt, setting = pytest.importorskip("tensorrt_rtx_bindings"), settings("simple_cnn", "fp16")
    path, target = setting.files.path("onnx_fp16"), trt.ComputeCapability.SM89
    with pytest.raises(Skip, match=r"does not load here.*CUDA driver"):
        tensor_rt.ready("TensorRT for RTX", trt, setting, path, target)


def test_without_its_package_tensorrt_for_rtx_says_how_to_get_it(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", None)
    with pytest.raises(Skip, match=r"pip install '.*\[rtx\]'"):
        fetch("backend", "tensorrt_rtx")(settings("simple_cnn", "fp16"))


def test_every_entry_has_a_module_of_its_own():
    modules = [module for name in BACKENDS for module in modules_of("backend", name)]
    assert {module.split(".")[-2] for module in modules} == {"backends"}


def test_only_layers_that_get_another_type_than_their_weights_are_cast():
    model = made.saved("vit_class_token").build(torch.device("cpu"))
    assert hooked(backend.in_type(model, torch.bfloat16, made.noise(2))) == []
    model = made.saved("vit_mean").build(torch.device("cpu"))  # its mean over the patches is float32
    assert hooked(backend.in_type(model, torch.bfloat16, made.noise(2))) == ["norm"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    model = made.saved("vit_mean").build(torch.device("cpu"))
    assert hooked(backend.in_type(model, torch.float32, made.noise(2))) == []


def hooked(model):
    return [name for name, layer in model.named_modules() if layer._forward_pre_hooks]


def test_bytes_of_weights_shrink_with_the_type():
    model = made.saved("vit_mean").build(torch.device("cpu"))
    whole = backend.weight_bytes(model)
    assert whole == sum(parameter.numel() for parameter in model.parameters()) * 4
    assert backend.weight_bytes(model.to(torch.bfloat16)) == whole // 2


def test_many_compiled_models_do_not_push_each_other_out(settings):
    """torch.compile gives up on a function after a few versions of it: each model must have its own."""
    setting = settings("simple_cnn")
    counter = CompileCounter()
    limit = torch._dynamo.config.recompile_limit
    runs = []
    with torch.no_grad():
        for _ in range(limit + 2):
            _, forward = backend.forward_of(setting)
            runs.append(torch.compile(forward, dynamic=False, backend=counter))
            runs[-1](setting.images)
        for run in runs:
            run(setting.images)
    assert counter.frame_count == limit + 2


def test_a_model_with_nothing_for_torchao_is_skipped_and_says_so(settings):
    pytest.importorskip("torchao")
    with pytest.raises(Skip, match="none of this model's 21 layers"):
        fetch("backend", "torchao_int8")(
            Setting(made.saved("resnet18"), Files({}, {}), made.noise(2), "int8")
        )
