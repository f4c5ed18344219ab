"""Vision transformers: one set of weights in every form, timm's function, and what is refused."""

from dataclasses import replace

import pytest
import torch
from config_fixtures import merged
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_fixtures import CPU, OPTIONS, register, toy_cell, toy_manifest
from trained_fixtures import about

from gpufeed import native
from gpufeed.benchmarks.end_to_end import measure
from gpufeed.benchmarks.saved_models.model_file import load, save
from gpufeed.core import vit_options
from gpufeed.core.cells import Cell, impossible_as_composed
from gpufeed.core.config import Composer, planned, read_hyper
from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.models.make import make, portable, require
from gpufeed.models.vit import PatchEmbedding, VisionTransformer
from gpufeed.native.loading import Status

OPTIONS_OF = {
    "patch": 4, "width": 24, "depth": 2, "heads": 3, "mlp_ratio": 2, "pool": "mean", "activation": "gelu",
    "residual": "float32", "sdpa": "auto", "patches": "linear",
}  # fmt: skip
SIZE = (12, 8)
IMAGES = torch.rand((3, 3, *SIZE), generator=torch.Generator().manual_seed(0))
POOLS, FORMS, ACTIVATIONS = (vit_options.CHOICES[name] for name in ("pool", "patches", "activation"))
TANH = ("gelu_tanh", "linear_bias_gelu")


def vit(seed=0, size=SIZE, classes=5, **changes):
    torch.manual_seed(seed)
    return VisionTransformer(classes, size, **{**OPTIONS_OF, **changes})


def outcome(model):
    """Logits, and the gradient of every weight by name."""
    logits = model(IMAGES)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 4])).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient.any() for gradient in gradients.values())
    return logits.detach(), gradients


def test_a_patch_is_the_square_that_a_convolution_would_see():
    torch.manual_seed(0)
    ours, images = PatchEmbedding(4, 7), torch.rand(2, 3, 12, 8)
    kernel = ours.proj.weight.view(7, 4, 4, 3).permute(0, 3, 1, 2)
    expected = torch.nn.functional.conv2d(images, kernel, ours.proj.bias, stride=4)  # (2, 7, 3, 2)
    torch.testing.assert_close(ours(images), expected.flatten(2).mT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_patches_by_a_convolution_are_the_same_function(memory):
    """Of weights that a training with the other form has kept; in float64, where only the order differs."""
    torch.manual_seed(1)
    images = torch.rand(3, 3, *SIZE, dtype=torch.float64).contiguous(memory_format=memory)
    product, convolution = (
        vit(seed, pool="class_token", patches=form).double() for seed, form in enumerate(FORMS)
    )
    convolution.load_state_dict(product.state_dict())
    found = []
    for model in (product, convolution):
        logits = model(images)
        torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 4])).backward()
        found.append([logits, *(weight.grad for weight in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_form_of_the_patches_decides_which_operation_runs():
    called = {}
    for form in FORMS:
        model = vit(patches=form)
        with torch.profiler.profile() as profile:
            model(IMAGES)
        called[form] = "aten::conv2d" in {event.key for event in profile.key_averages()}
    assert called == {"linear": False, "conv": True}


@pytest.mark.parametrize("pool", POOLS)
def test_weights_and_names_do_not_depend_on_the_form(pool):
    plain = vit(pool=pool, width=48).state_dict()
    for change in (
        {key: name} for key, names in vit_options.CHOICES.items() if key != "pool" for name in names
    ):
        other = vit(pool=pool, width=48, **change).state_dict()
        assert list(other) == list(plain)
        assert all(torch.equal(other[name], plain[name]) for name in plain), change


@pytest.mark.parametrize("activation", vit_options.BY_EXTENSION)
def test_our_kernels_give_what_torchs_activation_of_their_form_gives(activation):
    """Weights are made larger, since at the start of a training both forms of GELU are nearly the same."""
    plain, ours = vit(activation=vit_options.PLAIN_FORM[activation]), vit(activation=activation)
    other_form = vit(activation="gelu" if activation in TANH else "gelu_tanh")
    for model in (plain, ours, other_form):
        with torch.no_grad():
            for block in model.blocks:
                block.mlp.fc1.weight *= 40
                block.mlp.fc1.bias += torch.linspace(-3, 3, 48)
    expected, gradients = outcome(plain)
    found, of_ours = outcome(ours)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert list(of_ours) == list(gradients)
    for name in gradients:
        torch.testing.assert_close(of_ours[name], gradients[name], rtol=1e-3, atol=1e-6, msg=name)
    far, near = ((other - expected).abs().max() for other in (outcome(other_form)[0], found))
    assert far > 20 * near


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_agree_under_autocast(activation):
    with torch.autocast("cpu", torch.bfloat16):
        expected = vit(activation=vit_options.PLAIN_FORM.get(activation, activation))(IMAGES)
        found = vit(activation=activation)(IMAGES)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-3)


@pytest.mark.parametrize(("residual", "dtype"), [("float32", torch.float32), ("autocast", torch.bfloat16)])
def test_residual_is_the_type_of_what_the_blocks_add_to(residual, dtype):
    model, seen = vit(residual=residual), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(IMAGES)
    assert seen == [dtype] * 2
    torch.testing.assert_close(logits.float(), vit()(IMAGES), rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize("pool", POOLS)
def test_without_autocast_residual_changes_nothing(pool):
    torch.testing.assert_close(vit(residual="autocast", pool=pool)(IMAGES), vit(pool=pool)(IMAGES))


@pytest.mark.parametrize("pool", POOLS)
def test_positions_tell_patches_apart_and_the_class_token_is_one_more(pool):
    model = vit(pool=pool).eval()
    assert model.tokens == 6 + (pool == "class_token")
    assert model.pos_embed.shape == (1, model.tokens, 24)
    upside_down = IMAGES.view(3, 3, 3, 4, 8).flip(2).reshape(IMAGES.shape)  # whole patches change places
    with torch.no_grad():
        assert not torch.allclose(model(IMAGES), model(upside_down), atol=1e-5)
        model.pos_embed[:] = 0
        torch.testing.assert_close(model(IMAGES), model(upside_down), rtol=1e-4, atol=1e-5)


def test_weights_begin_as_a_truncated_normal_and_biases_as_zero():
    model = vit(width=192, depth=1)
    for layer in (model.blocks[0].attn.qkv, model.blocks[0].mlp.fc1, model.blocks[0].mlp.fc2):
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert layer.bias.abs().max() == 0
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("pool", POOLS)
def test_timm_with_our_weights_gives_our_logits(pool, activation):
    """vit_tiny_patch16_224 with patches of 4 on 64x64 images has the shape of vit_tiny."""
    pytest.importorskip("timm")
    options = {**read_hyper("model", "vit_tiny"), "pool": pool, "activation": activation}
    torch.manual_seed(0)
    ours = make("vit_tiny", 7, (64, 64), options).eval()
    with torch.no_grad():
        for weight in ours.parameters():  # biases too, that a wrong one shows
            weight.add_(torch.randn_like(weight) * 0.02)
    token = pool == "class_token"
    theirs = make(
        "timm_vit_tiny",
        7,
        (64, 64),
        {**read_hyper("model", "timm_vit_tiny"), "pool": pool, "activation": activation},
    )
    state = ours.state_dict()
    patches = state["patch_embed.proj.weight"]
    state["patch_embed.proj.weight"] = patches.view(192, 4, 4, 3).permute(0, 3, 1, 2)
    if not token:  # timm's name of the norm after the mean
        state = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: weight
                 for name, weight in state.items()}  # fmt: skip
    theirs.load_state_dict(state)
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "found", "remedy"),
    [
        ({"heads": 5}, "model.heads 5 for model.width 24", "change model.heads"),
        ({"mlp_ratio": 1.3}, "model.mlp_ratio 1.3", "change model.mlp_ratio"),
        ({"mlp_ratio": 0.01}, "model.mlp_ratio 0.01", "change model.mlp_ratio"),
        ({"width": 27, "activation": "linear_bias_gelu"}, "an MLP of widths 27 and 54", "take bias_gelu"),
        (
            {"width": 100, "heads": 4, "mlp_ratio": 4, "activation": "linear_bias_gelu"},
            "an MLP of widths 100 and 400",
            "take bias_gelu",
        ),
        ({"width": 768, "heads": 1, "sdpa": "flash"}, "heads of 768 values", "raise model.heads"),
        ({"sdpa": "packed"}, "heads of 8 values with model.sdpa packed", "change model.heads"),
        (
            {"sdpa": "packed", "width": 48, "size": (96, 96)},
            "576 tokens with model.sdpa packed",
            "model.sdpa flash",
        ),
        ({"activation": "bias_glu"}, "model.activation 'bias_glu'", "'bias_gelu'"),
        ({"pool": "token"}, "model.pool 'token'", "'class_token'"),
        ({"patches": "conf"}, "model.patches 'conf'", "'conv'"),
        ({"sdpa": "flesh"}, "model.sdpa 'flesh'", "'flash'"),
        ({"residual": "float16"}, "model.residual 'float16'", "'float32'"),
        ({"patch": 5}, "images of 12 x 8 pixels for model.patch 5", "resize"),
        ({"patch": 16}, "images of 12 x 8 pixels for model.patch 16", "resize"),
    ],
)
def test_options_that_do_not_go_together_are_refused(change, found, remedy):
    with pytest.raises(GpufeedError) as error:
        vit(**change)
    assert found in error.value.found
    assert remedy in error.value.remedy


def test_images_of_another_size_are_refused():
    with pytest.raises(GpufeedError, match="images of 16 x 8 pixels"):
        vit()(torch.rand(1, 3, 16, 8))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model.heads=5", "model.heads 5 for model.width 192"),
        ("model.heads=0", "model.heads: 0"),
        ("model.mlp_ratio=0", "model.mlp_ratio: 0"),
        ("model.mlp_ratio=1.001", "model.mlp_ratio 1.001"),
        ("model.activation=relu", "model.activation: 'relu'"),
        ("model.patches=fold", "model.patches: 'fold'"),
        ("model.sdpa=fast", "model.sdpa: 'fast'"),
        ("model.stem=cifar", "model hyper-parameter 'stem'"),
    ],
)
def test_wrong_options_stop_the_plan(text, found):
    config = merged("config.yaml")
    config["experiments"]["accelerated_vit"]["common"]["overrides"] = [[text]]
    config["experiments"]["accelerated_vit"]["blocks"] = {"b": {"loader": "resident"}}
    with pytest.raises(GpufeedError) as error:
        planned(config)
    assert found in error.value.found
    assert "experiments.accelerated_vit.blocks.b" in error.value.found


SMALL = st.integers(1, 40)


@settings(max_examples=60)
@given(SMALL, SMALL, st.floats(0.01, 8), st.sampled_from(ACTIVATIONS), st.integers(1, 9))
def test_what_the_check_accepts_can_be_made_and_run(width, heads, ratio, activation, patch):
    options = {**OPTIONS_OF, "width": width, "heads": heads, "mlp_ratio": ratio, "activation": activation}
    options |= {"patch": patch, "depth": 1}
    try:
        vit_options.check(options, "a test")
    except GpufeedError:
        return
    plain = {**options, "activation": "gelu"}  # what is tried here are sizes
    assert VisionTransformer(2, (2 * patch, patch), **plain)(torch.rand(1, 3, 2 * patch, patch)).shape == (
        1,
        2,
    )


TO_SIZE = {"loader": "dali_cpu", "augment": "dali", "overrides": ("augment.size=32",)}


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"overrides": ("model.sdpa=flash",), "precision": "fp32"}, "flash has no float32 kernels"),
        ({"overrides": ("model.sdpa=cudnn",), "precision": "tf32"}, "cudnn has no float32 kernels"),
        ({"overrides": ("model.sdpa=packed",), "precision": "tf32"}, "packed has no float32 kernels"),
        ({"overrides": ("model.sdpa=packed",), "device": "cpu"}, "packed needs a CUDA GPU"),
        ({"overrides": ("model.sdpa=cudnn",), "device": "cpu"}, "cudnn needs a CUDA GPU"),
        ({"overrides": ("model.sdpa=efficient",), "device": "mps"}, "efficient needs a CUDA GPU"),
        (TO_SIZE, "position embeddings for one size"),
        ({"overrides": ("model.sdpa=flash",), "precision": "fp32", "device": "cpu"}, None),
        ({"overrides": ("model.sdpa=flash",)}, None),
        ({"overrides": ("model.sdpa=math",), "precision": "fp32", "device": "mps"}, None),
        ({"loader": "dali_cpu", "augment": "dali"}, None),
    ],
)  # fmt: skip
def test_cells_that_cannot_be_are_left_out_with_a_sentence(axes, sentence):
    cell = Cell(**{"experiment": "e", "dataset": "d", "loader": "resident", "model": "vit_tiny", **axes})
    found = impossible_as_composed(replace(cell, hyper=Composer()(cell, "a test")))
    assert (found is None) if sentence is None else (sentence in found)


@pytest.mark.parametrize("activation", vit_options.BY_EXTENSION)
def test_a_node_without_the_extension_skips_and_times_no_reference(monkeypatch, activation):
    lacking = Status("reference", "there is no kernel here; build one.")
    monkeypatch.setattr(native, "status", lambda device: lacking)
    with pytest.raises(Skip, match=f"{activation} needs the extension.*build one"):
        require(vit(activation=activation), CPU, "fp32")
    require(vit(activation="gelu"), CPU, "fp32")


def test_an_attention_kernel_that_the_node_lacks_is_a_skip_with_torchs_reason():
    with pytest.raises(Skip, match="SDPA backend cudnn does not run on this node's cpu with bfloat16 and 3"):
        require(vit(sdpa="cudnn"), CPU, "bf16")
    with pytest.raises(Skip, match="SDPA backend packed does not run on this node's cpu with bfloat16"):
        require(vit(sdpa="packed", width=48), CPU, "bf16")
    for backend in ("auto", "flash", "math"):
        require(vit(sdpa=backend), CPU, "fp32")
    with pytest.raises(RuntimeError):  # it does not quietly take another one
        vit(sdpa="cudnn")(IMAGES)


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_attention_kernels_agree(backend):
    torch.testing.assert_close(vit(sdpa=backend)(IMAGES), vit()(IMAGES), rtol=1e-4, atol=1e-6)


def test_a_portable_model_is_the_same_function_without_kernels_of_its_own():
    options = {**OPTIONS_OF, "activation": "linear_bias_gelu", "sdpa": "cudnn"}
    assert portable(options) == {**OPTIONS_OF, "activation": "gelu_tanh", "sdpa": "auto"}
    assert portable({"stem": "cifar"}) == {"stem": "cifar"}


def test_a_kept_transformer_is_built_for_its_own_size_by_torchs_own_operations(tmp_path):
    options = {**OPTIONS_OF, "patch": 2, "activation": "linear_bias_gelu", "sdpa": "cudnn"}
    del options["patches"]  # a file that was written before there was a choice
    cell = Cell(
        "e", "d", "resident", model="vit_lite", hyper={"model": options, "trainer": {}, "augment": {}}
    )
    model = vit(size=(8, 10), classes=3, patch=2, activation="gelu_tanh").eval()
    save(about(cell=cell.asdict(), cell_id=cell.id), model, tmp_path / "model.pt")
    built = load(tmp_path / "model.pt").build(CPU)
    images = torch.rand(2, 3, 8, 10)
    with torch.inference_mode():
        torch.testing.assert_close(built(images), model(images))


def test_a_cell_knows_the_size_of_its_images(tmp_path, monkeypatch):
    """Through the whole of a measurement: the model is made for what the manifest says."""
    register(monkeypatch)
    manifest = toy_manifest(tmp_path)
    manifest.write()
    hyper = {"model": OPTIONS_OF, "trainer": OPTIONS, "augment": {}}
    cell = toy_cell(model="vit_lite", hyper=hyper, loader="ceiling", steps=4)
    record, steps = measure(cell, 0, tmp_path / "manifest.parquet", None, "node")
    assert (record.status, record.sentence) == ("done", None)
    assert len(steps) == 4
