"""The CUDA kernels of the ops against float64, as training uses them: streams, graphs, autocast, compile."""

import math

import pytest
import torch
from gelu_fixtures import FORMS, all_values, exact_derivative, exact_gelu, ulps

from gpufeed import native
from gpufeed.core.errors import GpufeedError
from gpufeed.native import loading, torch_reference

CUDA = torch.device("cuda")
NARROW = (torch.bfloat16, torch.float16, torch.float32)
# of float32: the arithmetic; of the others: rounding, and a part of it where a tiny value is next to 0
RELATIVE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ODD = [(7, 5), (3, 1), (1, 1), (2, 3, 129), (65, 1023), (1, 4099), (3000, 8), (513, 384)]

pytestmark = pytest.mark.usefixtures("extension")


def random(*shape, dtype=torch.float32, seed=0, grad=False) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (2 * values).to(CUDA, dtype).requires_grad_(grad)


def backward(grad, x, bias, form):
    return torch.ops.gpufeed.bias_gelu_backward(grad, x, bias, form)


def exact(x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x + bias in float64, on the CPU."""
    return x.detach().cpu().double() + (0 if bias is None else bias.detach().cpu().double())


def assert_near(found: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """To the dtype's precision, of the largest value where many were added up."""
    relative = RELATIVE[found.dtype] * scale
    torch.testing.assert_close(
        found.detach().cpu().double(),
        expected,
        rtol=relative,
        atol=relative * max(1.0, expected.abs().max().item()),
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide_bias", [False, True])
def test_every_value_of_16_bits(form, dtype, wide_bias):
    x = all_values(dtype).reshape(256, 256)
    bias = torch.zeros(256, dtype=torch.float32 if wide_bias else dtype, device=CUDA)
    expected = exact_gelu(x.double(), form).to(dtype)
    assert ulps(native.bias_gelu(x.cuda(), bias, form).cpu(), expected).max() <= 1
    slope = exact_derivative(x.double(), form).to(dtype)
    for given in (bias, None):
        found = backward(torch.ones_like(x, device=CUDA), x.cuda(), given, form)[0].cpu()
        # beside its zero crossing the derivative is a difference: absolute to the precision of its parts
        near = (found.double() - slope.double()).abs() <= 1e-5
        assert ((ulps(found, slope) <= 1) | near).all()


@pytest.mark.parametrize("form", FORMS)
def test_every_value_of_16_bits_with_an_odd_number_of_columns(form):
    """The same by the path of rows whose length no vector divides."""
    x = all_values(torch.bfloat16)[: 255 * 257].reshape(257, 255)
    found = native.bias_gelu(x.cuda(), torch.zeros(255, device=CUDA), form).cpu()
    assert ulps(found, exact_gelu(x.double(), form).bfloat16()).max() <= 1


@pytest.mark.parametrize("form", FORMS)
def test_float32_far_into_the_tail(form):
    x = torch.linspace(-12, 12, 20_000, device=CUDA).unsqueeze(0)
    bias = torch.zeros(x.shape[1], device=CUDA)
    torch.testing.assert_close(
        native.bias_gelu(x, bias, form).cpu().double(), exact_gelu(exact(x), form), rtol=5e-5, atol=1e-37
    )
    found = backward(torch.ones_like(x), x, bias, form)[0].cpu().double()
    torch.testing.assert_close(found, exact_derivative(exact(x), form), rtol=5e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("columns", [8, 5])
def test_infinities_and_nan(form, dtype, columns):
    inf, nan = float("inf"), float("nan")
    x = torch.zeros(2, columns, dtype=dtype, device=CUDA)
    x[0, :5] = torch.tensor([inf, -inf, nan, 1.0, inf])
    bias = torch.zeros(columns, dtype=torch.float32, device=CUDA)
    bias[3:5] = torch.tensor([nan, -inf])
    out = native.bias_gelu(x, bias, form)[0, :5].float().cpu()
    torch.testing.assert_close(out, torch.tensor([inf, 0, nan, nan, nan]), equal_nan=True)
    dx = backward(torch.ones_like(x), x, bias, form)[0][0, :5].float().cpu()
    torch.testing.assert_close(dx, torch.tensor([1.0, 0, nan, nan, nan]), equal_nan=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_that_the_type_of_x_cannot_hold(form):
    x = torch.tensor([[1.0, 256.0, -3e38, 1.0]], dtype=torch.bfloat16, device=CUDA)
    bias = torch.tensor([2**-10, -255.5, 3e38, 2**-20], device=CUDA)
    found = native.bias_gelu(x, bias, form).cpu()
    assert ulps(found, exact_gelu(exact(x, bias), form).bfloat16()).max() <= 1
    assert found[0, 1].item() == pytest.approx(0.5 * 0.6915, abs=3e-3)  # and not gelu(0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("wide_bias", [False, True])
@pytest.mark.parametrize("shape", ODD)
def test_any_shape_forward_and_backward(shape, dtype, wide_bias, form):
    bias = random(shape[-1], dtype=torch.float32 if wide_bias else dtype, seed=1, grad=True)
    x, grad = random(*shape, dtype=dtype, grad=True), random(*shape, dtype=dtype, seed=2)
    out = native.bias_gelu(x, bias, form)
    out.backward(grad)
    assert (out.shape, out.dtype, x.grad.dtype, bias.grad.dtype) == (x.shape, dtype, dtype, bias.dtype)
    z = exact(x, bias)
    slope = exact(grad) * exact_derivative(z, form)
    assert_near(out, exact_gelu(z, form))
    assert_near(x.grad, slope)
    assert_near(bias.grad, slope.reshape(-1, shape[-1]).sum(0))


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_views_that_no_vector_access_may_touch(offset, dtype):
    whole = random(64 * 40 + offset, dtype=dtype)
    x, bias = whole[offset:].view(64, 40), random(40 + offset, dtype=dtype, seed=1)[offset:]
    grad = random(64 * 40 + offset, dtype=dtype, seed=2)[offset:].view(64, 40)
    assert x.data_ptr() % 16
    z = exact(x, bias)
    assert_near(native.bias_gelu(x, bias), exact_gelu(z, "none"))
    dx, dbias = backward(grad, x, bias, "none")
    slope = exact(grad) * exact_derivative(z, "none")
    assert_near(dx, slope)
    assert_near(dbias, slope.sum(0))


def test_transposed_and_expanded_tensors():
    x, bias = random(48, 6, 32).transpose(0, 1), random(64, seed=1)[::2]
    out = native.bias_gelu(x, bias)
    assert_near(out, exact_gelu(exact(x, bias), "none"))
    assert out.is_contiguous()
    ones = torch.ones((), device=CUDA).expand(x.shape)  # as sum().backward() gives
    dx, dbias = backward(ones, x, bias, "tanh")
    slope = exact_derivative(exact(x, bias), "tanh")
    assert_near(dx, slope)
    assert_near(dbias, slope.sum((0, 1)))


def test_nothing_in_nothing_out():
    for shape in ((0, 5), (4, 0), (0,), (2, 0, 3)):
        x, bias = torch.empty(shape, device=CUDA), torch.ones(shape[-1], device=CUDA)
        assert native.bias_gelu(x, bias).shape == shape
        dx, dbias = backward(x, x, bias, "none")
        assert dx.shape == shape
        assert torch.equal(dbias, torch.zeros_like(bias))
    x, weight1, weight2 = (torch.ones(shape, device=CUDA) for shape in ((0, 4), (8, 4), (6, 8)))
    out = native.gelu_mlp(
        x.requires_grad_(), weight1, torch.ones(8, device=CUDA), weight2, torch.ones(6, device=CUDA)
    )
    out.sum().backward()
    assert (out.shape, x.grad.shape) == ((0, 6), (0, 4))


@pytest.mark.parametrize("shape", [(4096, 768), (10_001, 129), (257, 3072)])
def test_the_same_bits_twenty_times(shape):
    x, grad = random(*shape, dtype=torch.bfloat16), random(*shape, dtype=torch.bfloat16, seed=2)
    bias = random(shape[-1], seed=1)
    first = (native.bias_gelu(x, bias), *backward(grad, x, bias, "none"))
    for _ in range(20):
        again = (native.bias_gelu(x, bias), *backward(grad, x, bias, "none"))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_gradient_of_the_bias_is_summed_before_rounding():
    x = torch.zeros(50_000, 3, dtype=torch.bfloat16, device=CUDA)
    grad, bias = torch.full_like(x, 2 / 3), torch.full((3,), 1e-3, device=CUDA)
    dbias = backward(grad, x, bias, "none")[1].cpu().double()
    expected = (
        exact_derivative(torch.tensor([1e-3], dtype=torch.float32).double(), "none")
        * grad[0, 0].item()
        * 50_000
    )
    torch.testing.assert_close(dbias, expected.expand(3), rtol=2e-5, atol=0)


def test_on_a_side_stream():
    """A kernel on another stream would read x before the slow one has written it."""
    side, bias = torch.cuda.Stream(), random(768, seed=1)
    source = random(65_536, 768, dtype=torch.bfloat16)
    expected = native.bias_gelu(source, bias), *backward(source, source, bias, "tanh")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x = torch.full_like(source, 3.0)
        torch.cuda._sleep(50_000_000)
        x.copy_(source)
        found = native.bias_gelu(x, bias), *backward(x, x, bias, "tanh")
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("function", ["bias_gelu", "gelu_mlp"])
def test_captured_in_a_graph(function):
    inputs = mlp_inputs(torch.bfloat16) if function == "gelu_mlp" else [random(512, 384), random(384, seed=1)]
    inputs = [value.detach().requires_grad_() for value in inputs]

    def step():
        out = getattr(native, function)(*inputs)
        return out, *torch.autograd.grad(out.float().square().sum(), inputs)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        inputs[0].copy_(random(*inputs[0].shape, dtype=inputs[0].dtype, seed=9))
    graph.replay()
    for found, expected in zip(captured, step(), strict=True):
        torch.testing.assert_close(found, expected)


def mlp_inputs(dtype, rows=(6, 50), width=64, hidden=256, out=64):
    shapes = ((*rows, width), (hidden, width), (hidden,), (out, hidden), (out,))
    scales = (1, width**-0.5, 1, hidden**-0.5, 1)
    return [
        (random(*shape, dtype=torch.float32, seed=i) * scale).to(dtype).requires_grad_()
        for i, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
    ]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "sizes", [((6, 50), 64, 256), ((1,), 8, 8), ((1000,), 192, 768), ((33,), 12, 20), ((7,), 5, 9)]
)
def test_linear_bias_gelu_against_float64(dtype, sizes):
    rows, width, hidden = sizes
    x, weight, bias, *_ = mlp_inputs(dtype, rows, width, hidden)
    with torch.no_grad():
        out, aux = torch.ops.gpufeed.linear_bias_gelu(x, weight, bias)
    z = exact(x) @ exact(weight).T + exact(bias)
    assert out.shape == aux.shape == (*rows, hidden)
    assert_near(aux, z, scale=2)
    assert_near(out, exact_gelu(z, "tanh"), scale=2)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "shape", [(65536, 192), (6, 50, 64), (1, 8), (1000, 33), (7, 1), (3, 2000), (100_000, 2)]
)
@pytest.mark.parametrize("offset", [0, 1])
def test_the_sum_of_each_column_against_float64(dtype, shape, offset):
    """offset: of the address, in values, so that rows are read in packs of every width."""
    x = random(math.prod(shape) + offset, dtype=dtype)[offset:].view(shape)
    found = torch.ops.gpufeed.column_sum(x)
    assert (found.shape, found.dtype) == (shape[-1:], dtype)
    wide = exact(x).reshape(-1, shape[-1])
    near = wide.abs().sum(0) * 1e-6 + wide.sum(0).abs() * RELATIVE[dtype] + 1e-6
    assert ((exact(found) - wide.sum(0)).abs() <= near).all()
    assert torch.equal(torch.ops.gpufeed.column_sum(x), found)
    assert torch.equal(torch.ops.gpufeed.column_sum(x[:0]), torch.zeros_like(found))


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_products_of_views_that_cublas_may_not_read_in_16_bytes(offset, dtype):
    """Each argument in turn is a view at an odd offset, as the parameters of a flat buffer are."""

    def moved(tensor):
        return torch.cat([tensor.new_zeros(offset), tensor.detach().flatten()])[offset:].view(tensor.shape)

    x, weight, bias, *_ = (tensor.detach() for tensor in mlp_inputs(dtype))
    out, aux = torch.ops.gpufeed.linear_bias_gelu(x, weight, bias)
    for args in ((moved(x), weight, bias), (x, moved(weight), bias), (x, weight, moved(bias))):
        assert any(one.data_ptr() % 16 for one in args)
        for found, expected in zip(torch.ops.gpufeed.linear_bias_gelu(*args), (out, aux), strict=True):
            assert_near(found, exact(expected), scale=2)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("function", ["linear_bias_gelu", "gelu_mlp"])
def test_the_gradients_of_the_linear_functions_against_float64(dtype, function):
    inputs = mlp_inputs(dtype)[: 3 if function == "linear_bias_gelu" else 5]
    wide = [value.detach().cpu().double().requires_grad_() for value in inputs]
    out, expected = getattr(native, function)(*inputs), getattr(torch_reference, function)(*wide)
    grad = random(*out.shape, dtype=dtype, seed=7)
    out.backward(grad)
    expected.backward(grad.cpu().double())
    assert_near(out, expected.detach(), scale=2)
    for ours, theirs in zip(inputs, wide, strict=True):
        assert (ours.grad.shape, ours.grad.dtype) == (theirs.shape, dtype)
        # the hidden rows were rounded in between
        assert_near(ours.grad, theirs.grad, scale=4 if dtype != torch.float32 else 8)


@pytest.mark.parametrize("function", ["bias_gelu", "linear_bias_gelu", "gelu_mlp"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_master_weights_in_float32(function, dtype):
    x, weight1, bias1, weight2, bias2 = mlp_inputs(torch.float32)
    with torch.autocast("cuda", dtype):
        if function == "bias_gelu":
            used, out = (x, weight1, bias1), native.bias_gelu(torch.nn.functional.linear(x, weight1), bias1)
        elif function == "linear_bias_gelu":
            used, out = (x, weight1, bias1), native.linear_bias_gelu(x, weight1, bias1)
        else:
            used = (x, weight1, bias1, weight2, bias2)
            out = native.gelu_mlp(*used)
    assert out.dtype == dtype
    out.float().sum().backward()
    assert {value.grad.dtype for value in used} == {torch.float32}
    assert all(value.grad.isfinite().all() for value in used)


@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_whole_with_backward(autocast, monkeypatch):
    def block(x, weight1, bias1, weight2, bias2):
        x = native.bias_gelu(x, bias2, "none") + x
        x = native.gelu_mlp(x, weight1, bias1, weight2, bias2) + x
        return native.linear_bias_gelu(x, weight1, bias1)

    def run(function):
        inputs = mlp_inputs(torch.float32)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            out = function(*inputs)
        out.float().square().mean().backward()
        return [out, *(value.grad for value in inputs)]

    expected = run(block)
    torch._dynamo.reset()
    monkeypatch.setattr(loading, "chosen", {})
    for found, other in zip(run(torch.compile(block, fullgraph=True)), expected, strict=True):
        scale = other.abs().max().item()
        torch.testing.assert_close(found / scale, other / scale, rtol=0, atol=2e-2 if autocast else 2e-3)


@pytest.mark.parametrize("dtype", NARROW)
def test_torch_finds_nothing_wrong_with_the_ops(dtype):
    def tensor(*shape, grad=False):
        return random(*shape, dtype=dtype, grad=grad)

    samples = {
        "bias_gelu": [
            (tensor(3, 40, grad=True), tensor(40, grad=True), "none"),
            (tensor(4, 3, 5).transpose(0, 1), random(5, grad=True), "tanh"),
        ],
        "bias_gelu_backward": [
            (tensor(3, 40), tensor(3, 40), random(40), "none"),
            (tensor(5, 3).t(), tensor(3, 5), None, "tanh"),
        ],
        "linear_bias_gelu": [(tensor(2, 3, 8, grad=True), tensor(16, 8, grad=True), tensor(16, grad=True))],
        "column_sum": [(tensor(2, 3, 24, grad=True),), (tensor(24, 8).t(),)],
    }
    for op, calls in samples.items():
        for arguments in calls:
            torch.library.opcheck(
                getattr(torch.ops.gpufeed, op).default, arguments, rtol=RELATIVE[dtype], atol=RELATIVE[dtype]
            )


def test_what_the_kernels_do_not_take_is_told():
    x = random(2, 4)
    with pytest.raises(TypeError, match="found: x of Double on cuda:0"):
        native.bias_gelu(x.double(), torch.zeros(4, device=CUDA))
    with pytest.raises(ValueError, match="found: bias on cpu and x on cuda:0"):
        native.bias_gelu(x, torch.zeros(4))
    with pytest.raises(GpufeedError, match="the only form"):
        native.linear_bias_gelu(x, random(8, 4), random(8), "none")


@pytest.mark.alone
@pytest.mark.parametrize("columns", [768, 33])
def test_more_elements_than_32_bits_count(columns):
    rows = 2**31 // columns + 1000
    needed, free = 2 * 4 * rows * columns, torch.cuda.mem_get_info()[0]
    if free < 1.2 * needed:
        pytest.skip(f"{needed / 2**30:.0f} GiB of GPU memory are needed, {free / 2**30:.0f} GiB are free")
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device=CUDA)
    x[-1], x[0] = random(columns, dtype=torch.bfloat16), 1.0
    bias = random(columns, seed=1)
    out = native.bias_gelu(x, bias)
    dx, dbias = backward(x, x, bias, "none")  # the gradient is x: the rows of zeros add nothing
    ends = x[[0, -1]].clone()
    z = exact(ends, bias)
    slope = exact(ends) * exact_derivative(z, "none")
    assert_near(out[[0, -1]], exact_gelu(z, "none"))
    assert_near(dx[[0, -1]], slope)
    assert_near(dbias, slope.sum(0))
    assert torch.equal(out[rows // 2], out[1])
