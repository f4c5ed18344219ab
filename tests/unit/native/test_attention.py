"""Attention over the packed product: its kernels by Triton's interpreter, and what is refused.

The interpreter is switched on before Triton is imported, so it runs in a process of its own.
"""

import importlib.util

import pytest
import torch
from test_augment_kernels import run

from gpufeed.core.errors import GpufeedError, Skip
from gpufeed.native.attention.attention_ops import packed_attention, require
from gpufeed.native.attention.tiles import BACKWARDS, CHOSEN, FORWARDS, MOST_TOKENS, WHOLE, WIDTHS, choose

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")

BEGINNING = """
import itertools
import torch
from attention_fixtures import TOLERANCE, error, exact, packed, stored, teach_bfloat16
from gpufeed.native.attention import kernels
from gpufeed.native.attention.attention_ops import packed_attention
from gpufeed.native.attention.tiles import BACKWARDS, FORWARDS, Configuration, choose

teach_bfloat16()

def grad_like(qkv, seed=1):
    n, tokens, _, heads, width = qkv.shape
    values = torch.randn((n, tokens, heads, width), generator=torch.Generator().manual_seed(seed))
    return values.to(qkv.dtype)

def check(qkv, grad, what, chosen=None, usual=True):
    out, sums = kernels.launch_forward(qkv, chosen)
    dqkv = kernels.launch_backward(grad, qkv, out, sums, chosen)
    assert out.is_contiguous() and dqkv.is_contiguous() and out.dtype == dqkv.dtype == qkv.dtype
    expected, gradient = exact(qkv, grad)
    if not usual:  # few tokens or large scores: see `stored`
        gradient = stored(qkv, grad, out)
    # of one token, or where a row is one of the keys, those of q and k are nothing but rounding
    floor = 0.1 * gradient.norm().item()
    found = [error(out, expected), *(error(dqkv[:, :, i], gradient[:, :, i], floor) for i in range(3))]
    assert max(found) < TOLERANCE[qkv.dtype], (what, found)
    q, k = qkv.double().permute(2, 0, 3, 1, 4)[:2]
    want = torch.logsumexp(q @ k.mT / qkv.shape[-1] ** 0.5, -1) / torch.log(torch.tensor(2.0))
    assert (sums - want).abs().max() < 1e-3, what
"""

# with few tokens each type of each width; with more, which take long, each width and each type
LENGTHS = """
widths, short = (16, 32, 64, 128), max({lengths}) < 70
every, each = itertools.product(TOLERANCE, widths), zip(itertools.cycle(TOLERANCE), widths)
for dtype, width in every if short else each:
    for tokens in {lengths}:
        qkv = packed(1, tokens, 2, width, dtype, scale=1.5)
        check(qkv, grad_like(qkv), (dtype, width, tokens))
"""

CANDIDATES = """
qkv = packed(1, 197, 1, 64, torch.bfloat16)
for forward, (keys, queries) in itertools.product(FORWARDS, BACKWARDS.values()):
    if forward == next(iter(FORWARDS)) or keys is next(iter(BACKWARDS.values()))[0]:
        check(qkv, grad_like(qkv), (forward, keys), Configuration(FORWARDS[forward], keys, queries))
"""

LAYOUTS = """
for dtype in TOLERANCE:
    base = packed(3, 40, 3, 32, dtype)
    grad = grad_like(base)
    wide = torch.full((3, 41, 3, 4, 32), float("nan"), dtype=dtype)
    wide[:, :40, :, 1:] = base
    turned = base.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    steps = grad.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    columns = grad.mT.contiguous().mT
    for qkv, g in itertools.product((base, wide[:, :40, :, 1:], turned), (grad, steps, columns)):
        check(qkv, g, (dtype, qkv.stride(), g.stride()))
    check(base, torch.ones((), dtype=dtype).expand(grad.shape), "expanded")
    assert kernels.launch_forward(base[:0])[0].shape == (0, 40, 3, 32)
"""

# what runs past the last token would show: NaN stands there
EXTREMES = """
for (tokens, width), dtype in itertools.product(((17, 64), (130, 16), (257, 32)), TOLERANCE):
    for size in (0.0, 3.0):
        qkv = packed(1, tokens, 1, width, dtype)
        qkv[:, :, :2] *= size  # scores near zero, and rows that are nearly one of the keys
        check(qkv, grad_like(qkv), (tokens, width, size), usual=False)
    # all scores far below zero: a padded key's would be the highest
    qkv = packed(1, tokens, 1, width, dtype)
    qkv[:, :, 0] = 20 + 0.1 * qkv[:, :, 0]
    qkv[:, :, 1] = -20 + 0.1 * qkv[:, :, 1]
    out, sums = kernels.launch_forward(qkv)
    dqkv = kernels.launch_backward(grad_like(qkv), qkv, out, sums)
    assert error(out, exact(qkv, grad_like(qkv))[0]) < TOLERANCE[dtype], (tokens, width)
    assert torch.isfinite(dqkv).all()
    # a token that is no number: its own image is, the others are not
    qkv = packed(3, tokens, 2, width, dtype)
    qkv[1, tokens // 2, 1, 0] = float("nan")
    out, sums = kernels.launch_forward(qkv)
    dqkv = kernels.launch_backward(grad_like(qkv), qkv, out, sums)
    for values in (out, dqkv):
        assert torch.isfinite(values[[0, 2]]).all() and torch.isfinite(values[1, ..., 1, :]).all()
    assert out[1, :, 0].isnan().all()
"""

HYPOTHESIS = """
from hypothesis import given, settings, strategies as st

@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 2), st.integers(1, 280), st.integers(1, 3), st.sampled_from((16, 32, 64)),
       st.sampled_from(list(TOLERANCE)), st.integers(0, 99), st.sampled_from((0.1, 1.0, 4.0)))
def anything(n, tokens, heads, width, dtype, seed, scale):
    qkv = packed(n, tokens, heads, width, dtype, seed=seed, scale=scale)
    if scale > 1:
        qkv[:, :, :2] /= scale  # wide values, scores of the usual size
    check(qkv, grad_like(qkv, seed + 1), (n, tokens, heads, width, dtype, seed, scale), usual=False)

anything()
"""

OP = """
from torch.library import opcheck
from gpufeed.core.errors import GpufeedError

qkv = packed(2, 33, 2, 16, torch.float16).requires_grad_()
grad = grad_like(qkv)
opcheck(torch.ops.gpufeed.packed_attention.default, (qkv,))
out, sums = torch.ops.gpufeed.packed_attention(qkv.detach())
opcheck(torch.ops.gpufeed.packed_attention_backward.default, (grad, qkv.detach(), out, sums))

compiled = torch.compile(packed_attention, fullgraph=True, backend="aot_eager")
compiled(qkv).backward(grad)
want = kernels.launch_backward(grad, qkv.detach(), out, sums)
assert torch.equal(qkv.grad, want)

qkv = packed(1, 5, 2, 16, torch.float32).requires_grad_()
with torch.autocast("cpu", torch.bfloat16):
    out = packed_attention(qkv)
assert out.dtype == torch.bfloat16
out.float().square().sum().backward()
assert qkv.grad.dtype == torch.float32 and error(out, exact(qkv, torch.ones_like(out))[0]) < 1e-2

qkv = packed(1, 5, 2, 16, torch.float16).requires_grad_()
first, = torch.autograd.grad(packed_attention(qkv).float().square().sum(), qkv, create_graph=True)
try:
    first.sum().backward()
except GpufeedError as error:
    assert "second derivative" in error.found
else:
    raise AssertionError("a second derivative that nobody computes")
"""

MODEL = """
import test_vit
from test_vit import CPU, IMAGES, vit
from gpufeed.models.make import require

def outcome(sdpa, pool):
    model = vit(width=48, sdpa=sdpa, pool=pool)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight *= 8
    require(model, CPU, "bf16")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(IMAGES).float()
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 4])).backward()
    return logits.detach(), torch.cat([weight.grad.flatten() for weight in model.parameters()])

for pool in ("mean", "class_token"):
    for found, expected in zip(outcome("packed", pool), outcome("math", pool), strict=True):
        assert error(found, expected.double()) < 3e-2, pool
"""


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(1, 50, 64, 65), (256, 257)], ids=str)
def test_the_kernels_against_float64(lengths):
    run(BEGINNING + LENGTHS.format(lengths=lengths), TRITON_INTERPRET="1")


# OP comes last: its `except` takes the name of a function that the others use
REST = LAYOUTS + EXTREMES + HYPOTHESIS + MODEL + OP


@pytest.mark.slow
@pytest.mark.parametrize("code", [CANDIDATES, REST], ids=["candidates", "rest"])
def test_by_the_interpreter(code):
    run(BEGINNING + code, TRITON_INTERPRET="1")


def test_every_length_and_width_has_kernels_that_hold_its_keys():
    for width in WIDTHS:
        for tokens in range(1, MOST_TOKENS + 1):
            chosen = choose(tokens, width)
            assert chosen.forward.holds(tokens) or chosen.forward.each == 1
            assert chosen.keys.holds(tokens) or chosen.queries is not None
            assert chosen.forward.holds(tokens) is (tokens <= WHOLE)


def test_tiles_are_powers_of_two_that_a_product_takes():
    tiles = [*FORWARDS.values()]
    for keys, queries in [*BACKWARDS.values(), *((each.keys, each.queries) for each in CHOSEN.values())]:
        tiles += [keys, *([queries] if queries else [])]
    for tile in [*tiles, *(each.forward for each in CHOSEN.values())]:
        for size in (tile.rows, tile.columns, tile.warps):
            assert size & (size - 1) == 0
        assert min(tile.rows, tile.columns) >= 16


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((1, 4, 3, 2, 16), torch.float32, "of float32"),
        ((1, 4, 3, 2, 24), torch.float16, "a tensor (1, 4, 3, 2, 24)"),
        ((1, 4, 2, 2, 16), torch.float16, "a tensor (1, 4, 2, 2, 16)"),
        ((4, 3, 2, 16), torch.float16, "a tensor (4, 3, 2, 16)"),
        ((1, 0, 3, 2, 16), torch.float16, "a tensor (1, 0, 3, 2, 16)"),
        ((1, MOST_TOKENS + 1, 3, 2, 16), torch.float16, "a tensor (1, 513"),
        ((1, 4, 3, 2, 16), torch.bfloat16, "on cpu"),
    ],
)
def test_other_tensors_are_refused(shape, dtype, found):
    with pytest.raises(GpufeedError) as error:
        packed_attention(torch.zeros(shape, dtype=dtype))
    assert found in error.value.found


def test_a_node_without_a_gpu_skips():
    with pytest.raises(
        Skip, match="SDPA backend packed does not run on this node's cpu with bfloat16: it is"
    ):
        require(torch.device("cpu"), torch.bfloat16, 256, 3, 64)
