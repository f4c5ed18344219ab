"""The ops on the CPU: values, derivatives, and that torch knows them."""

import logging
import math

import pytest
import torch
import torch.utils.checkpoint
from gelu_fixtures import FORMS, all_values, exact_derivative, exact_gelu, ulps
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufeed import native
from gpufeed.core.errors import GpufeedError
from gpufeed.native import loading, torch_reference

NARROW = (torch.bfloat16, torch.float16, torch.float32)
MLP = [(3, 4), (8, 4), (8,), (6, 8), (6,)]
SHAPES = {"bias_gelu": [(3, 4), (4,)], "linear_bias_gelu": MLP[:3], "gelu_mlp": MLP}


pytestmark = pytest.mark.usefixtures("extension")


@pytest.fixture
def without_extension(monkeypatch):
    """A process whose library could not be built."""
    monkeypatch.setattr(loading, "current", loading.Loaded(sentence="There is no compiler here."))
    monkeypatch.setattr(loading, "chosen", {})


def random(*shape, dtype=torch.float64, seed=0, grad=False) -> torch.Tensor:
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (2 * values).to(dtype).requires_grad_(grad)


def inputs(shapes, dtype=torch.float32) -> list[torch.Tensor]:
    """Tensors that want gradients, each of a seed of its own."""
    return [random(*shape, dtype=dtype, seed=seed, grad=True) for seed, shape in enumerate(shapes)]


def backward(grad, x, bias, form):
    return torch.ops.gpufeed.bias_gelu_backward(grad, x, bias, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_of_16_bits(form, dtype):
    x = all_values(dtype).reshape(256, 256)
    expected = exact_gelu(x.double(), form).to(dtype)
    assert ulps(native.bias_gelu(x, torch.zeros(256), form), expected).max() <= 1
    slope = exact_derivative(x.double(), form).to(dtype)
    assert ulps(backward(torch.ones_like(x), x, None, form)[0], slope).max() <= 1


@pytest.mark.parametrize("form", FORMS)
def test_float32_far_into_the_tail(form):
    x = torch.linspace(-14, 14, 20_001).unsqueeze(0)
    bias = torch.zeros(x.shape[1])
    # in the tail an error of the exponent counts as often as the exponent is large, up to 100 times here
    torch.testing.assert_close(
        native.bias_gelu(x, bias, form).double(), exact_gelu(x.double(), form), rtol=3e-5, atol=2e-44
    )
    found = backward(torch.ones_like(x), x, bias, form)[0].double()
    torch.testing.assert_close(found, exact_derivative(x.double(), form), rtol=3e-5, atol=5e-7)


@pytest.mark.parametrize("form", FORMS)
def test_infinities_and_nan(form):
    inf, nan = float("inf"), float("nan")
    x, bias = torch.tensor([[inf, -inf, nan, 1.0, inf]]), torch.tensor([0.0, 0, 0, nan, -inf])
    expected = torch.tensor([[inf, 0, nan, nan, nan]])
    torch.testing.assert_close(native.bias_gelu(x, bias, form), expected, equal_nan=True)
    dx, dbias = backward(torch.ones_like(x), x, bias, form)
    torch.testing.assert_close(dx, torch.tensor([[1.0, 0, nan, nan, nan]]), equal_nan=True)
    torch.testing.assert_close(dbias, dx[0], equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_that_the_type_of_x_cannot_hold(form):
    x = torch.tensor([[1.0, 256.0, -3e38, 1.0]], dtype=torch.bfloat16)
    bias = torch.tensor([2**-10, -255.5, 3e38, 2**-20], dtype=torch.float32)
    z = x.double() + bias.double()
    assert z[0, 1] == 0.5
    assert torch.equal(native.bias_gelu(x, bias, form), exact_gelu(z, form).bfloat16())
    rounded = (x + bias.bfloat16()).double()
    assert not torch.equal(exact_gelu(rounded, form).bfloat16(), exact_gelu(z, form).bfloat16())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 4), (3,), (1, 1)])
def test_gradcheck(form, shape):
    x, bias = random(*shape, grad=True), random(shape[-1], seed=1, grad=True)
    assert torch.autograd.gradcheck(lambda x, bias: native.bias_gelu(x, bias, form), (x, bias))


def test_gradcheck_of_the_linear_functions():
    x, bias1, bias2 = random(3, 5, 4, grad=True), random(8, seed=2, grad=True), random(6, seed=4, grad=True)
    weight1, weight2 = random(8, 4, seed=1, grad=True), random(6, 8, seed=3, grad=True)
    assert torch.autograd.gradcheck(native.linear_bias_gelu, (x, weight1, bias1))
    assert torch.autograd.gradcheck(native.gelu_mlp, (x, weight1, bias1, weight2, bias2))


@pytest.mark.parametrize("used", ["out", "aux", "both"])
def test_both_outputs_of_the_linear_op_have_gradients(used):
    def outputs(x, weight, bias):
        out, aux = torch.ops.gpufeed.linear_bias_gelu(x, weight, bias)
        return {"out": out, "aux": aux, "both": (out, aux)}[used]

    inputs = random(5, 4, grad=True), random(8, 4, seed=1, grad=True), random(8, seed=2, grad=True)
    assert torch.autograd.gradcheck(outputs, inputs)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("wide_bias", [False, True])
def test_gradients_have_the_types_of_what_they_belong_to(dtype, wide_bias):
    x = random(6, 9, dtype=dtype, grad=True)
    bias = random(9, dtype=torch.float32 if wide_bias else dtype, grad=True)
    out = native.bias_gelu(x, bias)
    out.sum().backward()  # a gradient without memory of its own
    assert out.dtype == x.grad.dtype == dtype
    assert bias.grad.dtype == bias.dtype
    z = x.detach().double() + bias.detach().double()
    slope = exact_derivative(z, "none")
    torch.testing.assert_close(x.grad, slope.to(dtype), atol=1e-6, rtol=8e-3 if dtype.itemsize == 2 else 1e-5)
    torch.testing.assert_close(bias.grad, slope.sum(0).to(bias.dtype))


def test_the_gradient_of_the_bias_is_summed_before_rounding():
    x, grad = torch.zeros(5000, 3, dtype=torch.bfloat16), torch.full((5000, 3), 2 / 3, dtype=torch.bfloat16)
    dx, dbias = backward(grad, x, torch.full((3,), 1e-3), "none")
    exact = exact_derivative(torch.full((3,), 1e-3).double(), "none") * grad[0].double() * 5000
    torch.testing.assert_close(dbias.double(), exact, rtol=1e-5, atol=0)
    assert (dx.double().sum(0) / exact - 1).abs().min() > 1e-4  # rounded rows give another sum


@pytest.mark.parametrize("shape", [(1000, 257), (64, 1), (65, 3), (1, 40_000), (20_000, 1)])
def test_the_number_of_threads_changes_no_bit(shape):
    x, grad, bias = (
        random(*size, dtype=torch.float32, seed=i) for i, size in enumerate((shape, shape, shape[-1:]))
    )
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            found.append((native.bias_gelu(x, bias), *backward(grad, x, bias, "tanh")))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    dtype=st.sampled_from(NARROW),
    wide_bias=st.booleans(),
    form=st.sampled_from(FORMS),
    layout=st.sampled_from(["whole", "transposed", "every other", "expanded"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_any_shape_and_layout_is_as_the_reference(shape, dtype, wide_bias, form, layout, seed):
    x = random(*shape, dtype=dtype, seed=seed)
    if layout == "transposed":
        x = x.transpose(0, -1)
    elif layout == "every other":
        x = x[..., ::2]
    elif layout == "expanded":
        x = x[:1].expand(shape)
    bias = random(2 * x.shape[-1], dtype=torch.float32 if wide_bias else dtype, seed=seed + 1)[::2]
    out, expected = native.bias_gelu(x, bias, form), torch_reference.bias_gelu(x, bias, form)
    assert out.shape == x.shape
    torch.testing.assert_close(out, expected)
    dx, dbias = backward(torch.ones_like(x), x, bias, form)
    slope = exact_derivative(x.double() + bias.double(), form)
    torch.testing.assert_close(dx, slope.to(dtype), atol=1e-6, rtol=1e-2 if dtype != torch.float32 else 1e-5)
    rows = slope.reshape(-1, x.shape[-1]) if x.numel() else slope.new_zeros(0, x.shape[-1])
    torch.testing.assert_close(dbias, rows.sum(0).to(bias.dtype), atol=1e-5, rtol=1e-2)


def test_nothing_in_nothing_out():
    for shape in ((0, 5), (4, 0), (0,), (2, 0, 3)):
        x, bias = torch.empty(shape), torch.ones(shape[-1])
        assert native.bias_gelu(x, bias).shape == shape
        dx, dbias = backward(x, x, bias, "none")
        assert dx.shape == shape
        assert torch.equal(dbias, torch.zeros(shape[-1]))
    x, weight1, weight2 = torch.empty(0, 4), torch.ones(8, 4), torch.ones(6, 8)
    assert native.gelu_mlp(x, weight1, torch.ones(8), weight2, torch.ones(6)).shape == (0, 6)


@pytest.mark.parametrize("function", ["linear_bias_gelu", "gelu_mlp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_linear_functions_and_their_gradients_are_the_references(function, dtype):
    def run(module):
        given = inputs(shapes, dtype)
        out = getattr(module, function)(*given)
        (out * out.detach()).sum().backward()
        return [out, *(value.grad for value in given)]

    shapes = [(2, 7, 16), (24, 16), (24,)] + ([(8, 24), (8,)] if function == "gelu_mlp" else [])
    for found, expected in zip(run(native), run(torch_reference), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        scale = expected.abs().max().item()
        torch.testing.assert_close(
            found / scale, expected / scale, rtol=0, atol=1e-5 if dtype.itemsize == 4 else 2e-2
        )


@pytest.mark.parametrize("shape", [(5, 8), (3, 4, 7), (1, 1), (1000, 3), (0, 4), (4, 0), (6,)])
@pytest.mark.parametrize("dtype", NARROW)
def test_the_sum_of_each_column(shape, dtype):
    x = random(*shape, dtype=dtype)
    found = torch.ops.gpufeed.column_sum(x)
    assert (found.shape, found.dtype) == (shape[-1:], dtype)
    wide = x.double().reshape(math.prod(shape[:-1]), shape[-1])
    torch.testing.assert_close(found, wide.sum(0).to(dtype))


def test_the_sum_of_each_column_is_kept_in_float32():
    x = torch.ones(5000, 3, dtype=torch.bfloat16)  # bfloat16 has no 257: a sum kept in it stands still at 256
    assert torch.equal(torch.ops.gpufeed.column_sum(x), torch.full((3,), 5000.0).bfloat16())


@pytest.mark.parametrize("op", ["bias_gelu", "bias_gelu_backward", "linear_bias_gelu", "column_sum"])
@pytest.mark.parametrize("dtype", NARROW)
def test_torch_finds_nothing_wrong_with_the_ops(op, dtype):
    def tensor(*shape, grad=False):
        return random(*shape, dtype=dtype, grad=grad)

    samples = {
        "bias_gelu": [
            (tensor(3, 5, grad=True), tensor(5, grad=True), "none"),
            (tensor(4, 3, 5).transpose(0, 1), random(5, dtype=torch.float32, grad=True), "tanh"),
            (tensor(0, 5), tensor(5), "none"),
        ],
        "bias_gelu_backward": [
            (tensor(3, 5), tensor(3, 5), tensor(5), "none"),
            (tensor(5, 3).t(), tensor(3, 5), None, "tanh"),
            (tensor(2, 3, 5), tensor(2, 3, 5), random(5, dtype=torch.float32), "tanh"),
        ],
        "linear_bias_gelu": [
            (tensor(2, 3, 4, grad=True), tensor(8, 4, grad=True), tensor(8, grad=True)),
            (tensor(3, 4), tensor(8, 4), tensor(8)),
        ],
        "column_sum": [(tensor(2, 3, 6, grad=True),), (tensor(8, 4).t(),), (tensor(0, 3),)],
    }
    for arguments in samples[op]:
        torch.library.opcheck(getattr(torch.ops.gpufeed, op).default, arguments, rtol=2e-2, atol=2e-2)


def test_a_float32_bias_stays_float32_under_autocast():
    layer, bias = torch.nn.Linear(6, 10, bias=False), torch.nn.Parameter(random(10, dtype=torch.float32))
    x = random(4, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = native.bias_gelu(layer(x), bias)
        expected = exact_gelu(layer(x).detach().double() + bias.detach().double(), "none").bfloat16()
    assert out.dtype == torch.bfloat16
    assert ulps(out.detach(), expected).max() <= 1
    out.sum().backward()
    assert bias.grad.dtype == layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("function", ["linear_bias_gelu", "gelu_mlp"])
def test_autocast_casts_what_a_linear_layer_casts(function):
    given = inputs(SHAPES[function])
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = getattr(native, function)(*given), getattr(torch_reference, function)(*given)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=3e-2, atol=3e-2)
    out.sum().backward()
    assert {value.grad.dtype for value in given} == {torch.float32}


def mlp(x, weight1, bias1, weight2, bias2):
    x = native.bias_gelu(native.linear_bias_gelu(x, weight1, bias1), bias1, "none")
    return native.gelu_mlp(x @ weight1, weight1, bias1, weight2, bias2)


@pytest.mark.parametrize(
    ("backend", "autocast"),
    [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", True, marks=pytest.mark.slow)],
)
def test_compiled_whole_with_autocast_and_backward(backend, autocast, monkeypatch):
    def run(function):
        given = inputs(MLP)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = function(*given)
        out.float().sum().backward()
        return [out, *(value.grad for value in given)]

    expected = run(mlp)
    torch._dynamo.reset()
    monkeypatch.setattr(loading, "chosen", {})  # whether there are kernels is first asked while compiling
    found = run(torch.compile(mlp, fullgraph=True, backend=backend))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=2e-2 if autocast else 1e-4, atol=2e-1 if autocast else 1e-4
        )


X, BIAS, WEIGHT = torch.zeros(2, 4), torch.zeros(4), torch.zeros(8, 4)
WRONG = {
    "found: bias of shape [3]; expected: (4)": lambda: native.bias_gelu(X, torch.zeros(3)),
    "found: bias of shape [1, 4]": lambda: native.bias_gelu(X, torch.zeros(1, 4)),
    "found: bias of Half and x of Float": lambda: native.bias_gelu(X, BIAS.half()),
    "found: x of Long": lambda: native.bias_gelu(X.long(), BIAS),
    "found: x without dimensions": lambda: native.bias_gelu(torch.tensor(1.0), torch.zeros(1)),
    "found: grad of shape [2, 3]": lambda: backward(torch.zeros(2, 3), X, BIAS, "none"),
    "found: grad of Half": lambda: backward(X.half(), X, BIAS, "none"),
    "found: approximate 'erf'": lambda: torch.ops.gpufeed.bias_gelu(X, BIAS, "erf"),
    "found: approximate 'fast'": lambda: native.bias_gelu(X, BIAS, "fast"),
    "found: x of shape [2, 4] and weight of [4, 8]": lambda: native.linear_bias_gelu(
        X, WEIGHT.T, torch.zeros(8)
    ),
    "found: weight of shape [4]": lambda: native.linear_bias_gelu(X, BIAS, BIAS),
    "found: weight of Half": lambda: native.linear_bias_gelu(X, WEIGHT.half(), torch.zeros(8)),
    "found: approximate 'none' for linear_bias_gelu": lambda: native.linear_bias_gelu(
        X, WEIGHT, BIAS, "none"
    ),
    "found: approximate 'none' for gelu_mlp": lambda: native.gelu_mlp(
        X, WEIGHT, BIAS, WEIGHT.T, BIAS, "none"
    ),
    "found: x of Int": lambda: torch.ops.gpufeed.column_sum(torch.zeros(2, 3, dtype=torch.int32)),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_told_with_what_is_expected(sentence):
    with pytest.raises((GpufeedError, RuntimeError, ValueError, TypeError)) as told:
        WRONG[sentence]()
    assert sentence in str(told.value)
    assert "expected: " in str(told.value)
    assert "what to do: " in str(told.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_second_derivative_is_refused(form):
    x, bias = random(3, 4, grad=True), random(4, grad=True)
    (dx,) = torch.autograd.grad(native.bias_gelu(x, bias, form).sum(), x, create_graph=True)
    with pytest.raises(GpufeedError, match="second derivative"):
        dx.sum().backward()


@pytest.mark.parametrize("function", SHAPES)
def test_a_loss_with_a_second_derivative_in_it_is_refused(function):
    def loss_and_parameter(module):
        x, *others = inputs(SHAPES[function], torch.float64)
        out = getattr(module, function)(x, *others)
        (dx,) = torch.autograd.grad(out.sum(), x, create_graph=True)  # its grad needs no derivative
        return out.mean() + dx.square().sum(), others[0]

    loss, parameter = loss_and_parameter(torch_reference)
    loss.backward()
    assert parameter.grad.abs().max() > 1  # the mean alone has less than that: the rest would be lost
    with pytest.raises(GpufeedError, match="second derivative"):
        loss_and_parameter(native)[0].backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_in_the_backward_pass(reentrant):
    def run(wrap):
        given = inputs(MLP, torch.float64)
        wrap(native.gelu_mlp, *given).sum().backward()
        return [value.grad for value in given]

    def recomputed(function, *inputs):
        return torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=reentrant)

    torch.testing.assert_close(run(recomputed), run(lambda function, *inputs: function(*inputs)))


def test_the_reference_stands_in_and_says_so_once(without_extension, caplog):
    x, bias = random(3, 4), random(4, seed=1)
    weight1, weight2 = random(8, 4), random(4, 8)
    with caplog.at_level(logging.WARNING, "gpufeed"):
        for _ in range(2):
            assert torch.equal(native.bias_gelu(x, bias), torch_reference.bias_gelu(x, bias))
            assert torch.equal(
                native.gelu_mlp(x, weight1, weight1[:, 0], weight2, bias),
                torch_reference.gelu_mlp(x, weight1, weight1[:, 0], weight2, bias),
            )
    assert [record.getMessage() for record in caplog.records] == [
        "PyTorch's own operations stand in for bias_gelu on cpu: There is no compiler here."
    ]
    assert native.status("cpu") == native.Status("reference", "There is no compiler here.")


def test_a_device_without_kernels_is_told():
    assert native.status("cpu") == native.Status("extension")
    assert "the device is mps" in native.status("mps").sentence
