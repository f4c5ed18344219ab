"""What only a GPU can show of the vision transformers: attention kernels, activations, compiled graphs."""

from dataclasses import replace

import pytest
import torch
from test_cuda_trainer import SIDE, StrictLoader, losses, need, trainer
from torch._dynamo import reset
from torch._dynamo.utils import counters

from gpufeed import native
from gpufeed.core.config import read_hyper
from gpufeed.core.errors import Skip
from gpufeed.core.vit_options import BY_EXTENSION, HALF_ONLY, PLAIN_FORM
from gpufeed.models.make import make, portable, require
from gpufeed.native.jit_toolchain import require_compiler
from gpufeed.system.devices import apply_precision, autocast
from gpufeed.training.cuda_graph import GraphedStep
from gpufeed.training.engines.plain import PlainTrainer

ACTIVATIONS = ["gelu", "gelu_tanh", *BY_EXTENSION]
BACKENDS = ["auto", "flash", "efficient", "cudnn", "math"]
FUSED = ["flash", "efficient", "cudnn"]
PRECISIONS = ["fp32", "tf32", "fp16", "bf16"]
# of logits of size 1 and of gradients, against float32 with torch's own operations
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 6e-2}
LOSS_SCALE = {"fp32": 1, "tf32": 1, "fp16": 2**12, "bf16": 1}
TRAINED = {"fp32": 5e-3, "tf32": 2e-2, "fp16": 4e-2, "bf16": 6e-2}  # of losses over 12 steps
IMAGES = (64, 64)


@pytest.fixture(autouse=True)
def fresh():
    """Torch keeps at most eight graphs of the same code, and the tests together make more."""
    reset()
    yield
    reset()


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def vit(size=IMAGES, seed=0, **changes):
    """A short vit_tiny on the GPU whose weights are large enough for its parts to matter."""
    torch.manual_seed(seed)
    model = make("vit_tiny", 10, size, {**read_hyper("model", "vit_tiny"), "depth": 3, **changes})
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight *= 4
            block.mlp.fc1.weight *= 4
            block.mlp.fc1.bias += torch.linspace(-2, 2, len(block.mlp.fc1.bias))
    return model.to(device())


def outcome(model, precision, size=IMAGES, n=16):
    """Logits and the gradient of all weights as one vector, both float32."""
    apply_precision(precision)
    images = torch.rand((n, 3, *size), generator=torch.Generator().manual_seed(1)).to(device()) * 4 - 2
    images = images.contiguous(memory_format=torch.channels_last)
    with autocast(device(), precision):
        logits = model(images).float()
    # as a GradScaler does: float16 holds nothing below 6e-8, where many gradients of a mean lie
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(n, device=device()) % 10)
    (loss * LOSS_SCALE[precision]).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    return logits.detach(), gradient / LOSS_SCALE[precision]


def assert_near(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.isfinite(ours).all()
        assert ((ours - theirs).norm() / theirs.norm()).item() < tolerance


def need_for(model, precision):
    """Skips the test, with the sentence of the cell, where this node cannot run the model."""
    need(precision)
    try:
        require(model, device(), precision)
    except Skip as skip:
        pytest.skip(str(skip))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_attention_kernel_agrees_with_float32(backend, precision):
    model = vit(sdpa=backend)
    if backend in HALF_ONLY and precision in ("fp32", "tf32"):
        with pytest.raises(Skip, match=f"SDPA backend {backend} does not run on this node's cuda"):
            require(model, device(), precision)
        with pytest.raises(RuntimeError):  # nor does it quietly take another
            outcome(model, precision)
        return
    need_for(model, precision)
    assert_near(outcome(model, precision), outcome(vit(sdpa="math"), "fp32"), TOLERANCE[precision])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_has_the_attention_kernel_that_is_named(backend):
    """By the names of the operations that the profiler sees in both passes; `math` is none of the fused."""
    model = vit(sdpa=backend, depth=1)
    need_for(model, "bf16")
    compiled = torch.compile(model, dynamic=False)
    found = outcome(compiled, "bf16")
    assert_near(found, outcome(vit(sdpa="math", depth=1), "fp32"), TOLERANCE["bf16"])
    with torch.profiler.profile() as profile:
        outcome(compiled, "bf16")
    called = {event.key for event in profile.key_averages()}
    seen = {name for name in FUSED if f"aten::_scaled_dot_product_{name}_attention" in called}
    assert seen == {backend} & set(FUSED) or backend == "auto"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_patches_by_a_convolution_agree_with_float32(precision, compiled):
    model = vit(patches="conv", depth=1)
    need_for(model, precision)
    found = outcome(torch.compile(model, dynamic=False) if compiled else model, precision)
    assert_near(found, outcome(vit(depth=1), "fp32"), TOLERANCE[precision])


@pytest.mark.parametrize("heads", [3, 6, 12])
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_of_every_width_run(backend, heads):
    model = vit(sdpa=backend, heads=heads)
    need_for(model, "bf16")
    assert_near(outcome(model, "bf16"), outcome(vit(sdpa="math", heads=heads), "fp32"), TOLERANCE["bf16"])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_agrees_with_float32(activation, precision):
    model = vit(activation=activation)
    need_for(model, precision)
    plain = vit(activation=PLAIN_FORM.get(activation, activation))
    assert_near(outcome(model, precision), outcome(plain, "fp32"), TOLERANCE[precision])


@pytest.mark.parametrize("pool", ["mean", "class_token"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_residual_in_half_precision_agrees_with_float32(activation, precision, pool):
    model = vit(activation=activation, residual="autocast", pool=pool)
    need_for(model, precision)
    plain = vit(activation=PLAIN_FORM.get(activation, activation), pool=pool)
    assert_near(outcome(model, precision), outcome(plain, "fp32"), TOLERANCE[precision])


@pytest.mark.parametrize("activation", BY_EXTENSION)
def test_a_kept_model_gives_the_same_by_torchs_own_operations(activation):
    model = vit(activation=activation).eval()
    need_for(model, "fp32")
    options = portable({**read_hyper("model", "vit_tiny"), "depth": 3, "activation": activation})
    other = make("vit_tiny", 10, IMAGES, options).to(device()).eval()
    other.load_state_dict(model.state_dict())
    apply_precision("fp32")
    images = torch.rand(4, 3, *IMAGES, device=device())
    with torch.inference_mode():
        torch.testing.assert_close(other(images), model(images), rtol=1e-4, atol=1e-4)


def vit_trainer(tmp_path, activation="gelu", residual="float32", **job):
    """A prepared trainer of a short transformer on the toy of the trainer's tests."""
    made = trainer(tmp_path, **{**job, "compile": False, "cuda_graphs": False})
    torch.manual_seed(0)
    options = {**read_hyper("model", "vit_lite"), "depth": 2, "patch": 8, "heads": 2}
    options |= {"activation": activation, "residual": residual}
    model = make("vit_lite", 4, (SIDE, SIDE), options).to(made.job.device)
    need_for(model, made.job.precision)
    wanted = {"compile": job.get("compile", False), "cuda_graphs": job.get("cuda_graphs", False)}
    if wanted["compile"]:
        try:
            require_compiler(made.job.device)
        except Skip as skip:
            pytest.skip(str(skip))
    adamw = {"optimiser": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05, "decay_matrices_only": True}
    options = {**made.job.options, **adamw}
    other = PlainTrainer(replace(made.job, model=model, options=options, **wanted))
    other.prepare(torch.randint(256, (64, SIDE, SIDE, 3), dtype=torch.uint8, device=made.job.device))
    return other


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_compiled_graph_trains_like_the_eager_step(tmp_path, activation, precision):
    need(precision)
    eager = losses(vit_trainer(tmp_path, activation, precision=precision).run())
    for compile_, graphs in ((False, True), (True, False), (True, True)):
        made = vit_trainer(tmp_path, activation, precision=precision, compile=compile_, cuda_graphs=graphs)
        assert isinstance(made.step, GraphedStep) is graphs
        assert losses(made.run()) == pytest.approx(eager, rel=TRAINED[precision], abs=2e-3)


@pytest.mark.parametrize("residual", ["float32", "autocast"])
def test_a_compiled_graph_learns_with_either_residual(tmp_path, residual):
    need("bf16")
    job = {"precision": "bf16", "compile": True, "cuda_graphs": True, "epochs": 20}
    result = vit_trainer(tmp_path, "bias_gelu", residual, **job).run()
    assert result.epochs[-1]["train_loss"] < 0.8 * result.epochs[0]["train_loss"]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nothing_waits_inside_a_compiled_epoch(tmp_path, activation, graphs):
    """Nor is anything compiled there: both batch sizes were, before the clock."""
    need("bf16")
    made = vit_trainer(
        tmp_path, activation, loader=StrictLoader, precision="bf16", compile=True, cuda_graphs=graphs
    )
    compiled = counters["stats"]["unique_graphs"]
    assert len(made.run().steps) == 4 * 3
    assert counters["stats"]["unique_graphs"] == compiled > 0


def test_preparing_a_compiled_model_leaves_the_weights_as_they_were(tmp_path):
    made = vit_trainer(tmp_path, compile=True, cuda_graphs=True)
    torch.manual_seed(0)
    fresh = make(
        "vit_lite", 4, (SIDE, SIDE), {**read_hyper("model", "vit_lite"), "depth": 2, "patch": 8, "heads": 2}
    )
    for name, tensor in made.job.model.state_dict().items():
        assert torch.equal(tensor.cpu(), fresh.state_dict()[name]), name


def test_the_extension_is_what_runs(monkeypatch):
    """The ops are called, so that the times of these activations are not the reference's."""
    model = vit(activation="bias_gelu")
    need_for(model, "fp32")
    assert native.status(device()).implementation == "extension"
    monkeypatch.setattr("gpufeed.native.torch_reference.bias_gelu", None)
    monkeypatch.setattr("gpufeed.native.torch_reference.gelu_mlp", None)
    outcome(model, "fp32")
    outcome(vit(activation="linear_bias_gelu"), "fp32")
