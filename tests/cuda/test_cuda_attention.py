"""What only a GPU can show of attention over the packed product: kernels as compiled, graphs, repeats."""

import pytest
import torch
from attention_fixtures import TOLERANCE, error, exact, packed
from test_cuda_vit import TOLERANCE as OF_MODEL
from test_cuda_vit import assert_near, device, need_for, outcome, vit
from torch.library import opcheck

from gpufeed.core.errors import Skip
from gpufeed.native.attention import attention_ops
from gpufeed.native.attention.attention_ops import packed_attention
from gpufeed.native.attention.tiles import BACKWARDS, FORWARDS, Configuration

DTYPES = list(TOLERANCE)


@pytest.fixture(autouse=True)
def able():
    try:
        attention_ops.require(device(), torch.float16, 16, 1, 16)
    except Skip as skip:
        pytest.skip(str(skip))


def both(qkv, seed=1):
    """Result, and gradient of qkv, for a random gradient of the result, which is returned too."""
    qkv = qkv.detach().requires_grad_()
    out = packed_attention(qkv)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
    out.backward(grad)
    return out.detach(), qkv.grad, grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("tokens", [1, 49, 50, 64, 65, 128, 197, 256, 257, 512])
def test_against_float64(tokens, width, dtype):
    qkv = packed(3, tokens, 3, width, dtype, device=device())
    out, dqkv, grad = both(qkv)
    expected, gradient = exact(qkv, grad)
    assert error(out, expected) < TOLERANCE[dtype]
    floor = 0.1 * gradient.norm().item()  # of one token those of q and k are zero
    for part in range(3):
        assert error(dqkv[:, :, part], gradient[:, :, part], floor) < TOLERANCE[dtype], part


@pytest.mark.parametrize("tokens", [197, 256])
@pytest.mark.parametrize("name", [*FORWARDS, *BACKWARDS])
def test_every_candidate_is_right(name, tokens):
    from gpufeed.native.attention import kernels

    forward = FORWARDS.get(name, next(iter(FORWARDS.values())))
    chosen = Configuration(forward, *BACKWARDS.get(name, next(iter(BACKWARDS.values()))))
    qkv = packed(40, tokens, 3, 64, torch.bfloat16, device=device())
    out, sums = kernels.launch_forward(qkv, chosen)
    grad = torch.randn_like(out)
    dqkv = kernels.launch_backward(grad, qkv, out, sums, chosen)
    expected, gradient = exact(qkv, grad)
    assert max(error(out, expected), error(dqkv, gradient)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("tokens", [65, 256])
def test_the_same_as_torchs_and_the_same_every_time(tokens):
    qkv = packed(64, tokens, 3, 64, torch.bfloat16, device=device())
    out, dqkv, grad = both(qkv)
    for _ in range(5):
        torch.empty(dqkv.shape, dtype=dqkv.dtype, device=device()).fill_(float("nan"))  # what is given anew
        again = both(qkv)
        assert torch.equal(again[0], out)
        assert torch.equal(again[1], dqkv)
    theirs = qkv.detach().requires_grad_()
    q, k, v = theirs.permute(2, 0, 3, 1, 4).unbind()
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    wanted.backward(grad)
    assert error(out, wanted.detach().double().cpu()) < TOLERANCE[torch.bfloat16]
    assert error(dqkv, theirs.grad.double().cpu()) < TOLERANCE[torch.bfloat16]


def test_it_is_an_op():
    qkv = packed(2, 50, 2, 32, torch.float16, device=device())
    opcheck(torch.ops.gpufeed.packed_attention.default, (qkv.detach().requires_grad_(),))
    out, sums = torch.ops.gpufeed.packed_attention(qkv)
    opcheck(torch.ops.gpufeed.packed_attention_backward.default, (torch.randn_like(out), qkv, out, sums))


def test_strides_of_all_kinds_and_the_current_stream():
    qkv = packed(5, 70, 3, 32, torch.bfloat16, device=device())
    out, dqkv, grad = both(qkv)
    wide = torch.full((5, 71, 3, 4, 32), float("nan"), dtype=qkv.dtype, device=device())
    wide[:, :70, :, 1:] = qkv
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # so that another stream would come first
        view = wide[:, :70, :, 1:].detach().requires_grad_()
        found = packed_attention(view)
        found.backward(grad.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3))
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(found, out)
    assert torch.equal(view.grad, dqkv)


def test_a_captured_graph_replays_on_new_values():
    qkv = packed(8, 197, 3, 64, torch.bfloat16, device=device()).requires_grad_()
    grad = torch.randn((8, 197, 3, 64), device=device()).to(qkv)

    def step():
        out = packed_attention(qkv)
        return out, *torch.autograd.grad(out, qkv, grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        qkv.copy_(packed(8, 197, 3, 64, torch.bfloat16, seed=7, device=device()))
    graph.replay()
    for replayed, eager in zip(found, step(), strict=True):
        assert torch.equal(replayed, eager)


def test_compiled_it_is_one_graph_and_equal():
    """fullgraph: the ops are opaque, and nothing around them breaks the graph, autocast included."""
    linear = torch.nn.Linear(192, 576, device=device())
    x = torch.randn(16, 256, 192, device=device())

    def mixed(x):
        return packed_attention(linear(x).view(16, 256, 3, 3, 64)).reshape(16, 256, 192)

    gradients = []
    for work in (mixed, torch.compile(mixed, fullgraph=True, dynamic=False)):
        linear.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out = work(x)
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        gradients.append((out.detach(), linear.weight.grad.clone()))
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=2e-2, atol=2e-2 * eager.abs().max().item())


@pytest.mark.parametrize("pool", ["mean", "class_token"])
@pytest.mark.parametrize("heads", [3, 6, 12])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_model_agrees_with_float32(precision, heads, pool):
    options = {"heads": heads, "pool": pool}
    model = vit(sdpa="packed", **options)
    need_for(model, precision)
    expected = outcome(vit(sdpa="math", **options), "fp32")
    assert_near(outcome(model, precision), expected, OF_MODEL[precision])


def test_a_compiled_model_calls_it_and_none_of_torchs():
    """By the names of the operations that the profiler sees in both passes."""
    model = vit(sdpa="packed", residual="autocast", depth=1)
    need_for(model, "bf16")
    compiled = torch.compile(model, dynamic=False)
    assert_near(outcome(compiled, "bf16"), outcome(vit(sdpa="math", depth=1), "fp32"), OF_MODEL["bf16"])
    with torch.profiler.profile() as profile:
        outcome(compiled, "bf16")
    called = {event.key for event in profile.key_averages()}
    assert {"gpufeed::packed_attention", "gpufeed::packed_attention_backward"} <= called
    assert not [name for name in called if "scaled_dot_product" in name]


def test_a_precision_without_kernels_is_a_skip():
    with pytest.raises(Skip, match="it has kernels for float16 and bfloat16"):
        attention_ops.require(device(), torch.float32, 256, 3, 64)
