"""Attention over a packed product, ours and torch's: python tests/bench/attention.py RESULT.json

q, k and v are normal bfloat16 values in one product (N, T, 3, H, d), by default those of vit_tiny at batch
1024. Everybody gives the result (N, T, H, d) and the gradient of that product as one packed array: torch's
kernels make three, and their copy into it is counted. Ours is timed in every configuration of
gpufeed.native.attention.tiles, forward and backward apart; after two rounds that do not count, contestants
take turns, each sample the mean of CALLS calls on the device's clock.

Shares: of what the products alone take at 790 TFLOP/s (two forward, five backward, whatever is done twice)
and of what reading and writing each array once takes at 4.26 TB/s, both measured on an H200
(docs/lab/transformers.md). Errors are relative to float64 on CHECKED images; one above LIMIT ends the run.
Prints a table, then one line of JSON, which RESULT gets too; under a minute, most of it compiling.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gpufeed.native.attention import kernels
from gpufeed.native.attention.tiles import BACKWARDS, FORWARDS, Configuration, choose
from gpufeed.system.environment import environment
from gpufeed.system.timing import Mark, synchronise

CUDA = torch.device("cuda")
TORCHS = {
    "torch flash": SDPBackend.FLASH_ATTENTION,
    "torch cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WARM_UPS, CALLS, CHECKED, LIMIT = 2, 10, 4, 1e-2
TFLOP_PER_S, TB_PER_S = 790, 4.26
Pair = tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]


def theirs(backend: SDPBackend, qkv: torch.Tensor, grad: torch.Tensor) -> Pair:
    """Forward, and backward with the copy; dqkv is written again and again."""
    q, k, v = (part.detach().requires_grad_() for part in qkv.permute(2, 0, 3, 1, 4).unbind())
    dqkv = torch.empty_like(qkv)

    def forward() -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v).transpose(1, 2)

    out = forward()

    def backward() -> torch.Tensor:
        gradients = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
        for part, gradient in enumerate(gradients):
            dqkv[:, :, part].copy_(gradient.transpose(1, 2))
        return dqkv

    return forward, backward


def ours(chosen: Configuration, qkv: torch.Tensor, grad: torch.Tensor) -> Pair:
    """Forward and backward of one configuration."""
    out, sums = kernels.launch_forward(qkv, chosen)
    return lambda: kernels.launch_forward(qkv, chosen)[0], lambda: kernels.launch_backward(
        grad, qkv, out, sums, chosen
    )


def exact(qkv: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and gradient in float64."""
    qkv = qkv.double().requires_grad_()
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
    out = (torch.softmax(q @ k.mT / math.sqrt(qkv.shape[-1]), -1) @ v).transpose(1, 2)
    return out.detach(), torch.autograd.grad(out, qkv, grad.double())[0]


def contestants(qkv: torch.Tensor, grad: torch.Tensor) -> dict[tuple[str, str], Callable | str]:
    """(forward or backward, name) -> the work, or the sentence of who cannot do it here."""
    tokens, width = qkv.shape[1], qkv.shape[-1]
    usual = choose(tokens, width)
    ways = {"ours, as chosen": usual}
    forwards, backwards = set(), set()
    if (tokens <= 256, width) == (True, 64):
        ways |= {name: Configuration(tile, usual.keys, usual.queries) for name, tile in FORWARDS.items()}
        ways |= {name: Configuration(usual.forward, *tiles) for name, tiles in BACKWARDS.items()}
        forwards, backwards = set(FORWARDS), set(BACKWARDS)
    found = {}
    makers = {name: lambda backend=backend: theirs(backend, qkv, grad) for name, backend in TORCHS.items()}
    makers |= {name: lambda chosen=chosen: ours(chosen, qkv, grad) for name, chosen in ways.items()}
    right = exact(qkv[:CHECKED], grad[:CHECKED])
    for name, make in makers.items():
        wanted = [
            way for way, others in (("forward", backwards), ("backward", forwards)) if name not in others
        ]
        try:
            works = dict(zip(("forward", "backward"), make(), strict=True))
            for way in wanted:
                expected = right[way == "backward"]
                error = ((works[way]()[:CHECKED].double() - expected).norm() / expected.norm()).item()
                if not error < LIMIT:
                    raise SystemExit(f"{name}, {way}: found an error of {error:.3g}; expected below {LIMIT}")
                found[way, name] = works[way]
        except Exception as error:  # also what Triton raises where a GPU has less shared memory
            found |= {(way, name): f"{type(error).__name__}: {error}".splitlines()[0] for way in wanted}
    return found


def milliseconds(work: Callable) -> float:
    start = Mark(CUDA)
    for _ in range(CALLS):
        work()
    end = Mark(CUDA)
    synchronise(CUDA)
    return start.ms_until(end) / CALLS


def floors(qkv: torch.Tensor) -> dict[str, dict[str, float]]:
    """Milliseconds of the products and of the bytes, forward and backward; sums and masks are left out."""
    n, tokens, _, heads, width = qkv.shape
    product, array = 2 * n * heads * tokens**2 * width, qkv.numel() / 3 * qkv.itemsize
    return {
        way: {"products": products * product / TFLOP_PER_S / 1e9, "bytes": arrays * array / TB_PER_S / 1e9}
        for way, products, arrays in (("forward", 2, 4), ("backward", 5, 8))
    }


def measure(works: dict[tuple[str, str], Callable | str], repeats: int) -> dict:
    """(way, name) -> n, median, min and max of milliseconds, or the sentence."""
    times = {key: [] for key, work in works.items() if callable(work)}
    for number in range(WARM_UPS + repeats):
        for key, samples in times.items():
            ms = milliseconds(works[key])
            if number >= WARM_UPS:
                samples.append(ms)
    return {
        key: {
            "n": repeats,
            "median": statistics.median(times[key]),
            "min": min(times[key]),
            "max": max(times[key]),
        }
        if key in times
        else {"cannot": work}
        for key, work in works.items()
    }


def table(found: dict, floor: dict) -> str:
    """A row each, as text."""
    lines = ["".ljust(52) + f"{'ms':>8}{'min':>8}{'max':>8}{'products':>10}{'bytes':>8}"]
    for (way, name), each in found.items():
        label = f"{way} {name}".ljust(52)
        if "cannot" in each:
            lines.append(label + each["cannot"][:60])
            continue
        shares = "".join(
            f"{floor[way][kind] / each['median']:>{width}.0%}"
            for kind, width in (("products", 10), ("bytes", 8))
        )
        lines.append(label + f"{each['median']:>8.3f}{each['min']:>8.3f}{each['max']:>8.3f}" + shares)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("found no CUDA GPU; expected one; run it on a GPU node")
    torch.manual_seed(0)
    shape = (given.images, given.tokens, 3, given.heads, given.width)
    qkv = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
    grad = torch.randn((*shape[:2], *shape[3:]), device=CUDA, dtype=torch.bfloat16)
    works = contestants(qkv, grad)
    found, floor = measure(works, given.repeats), floors(qkv)
    print(table(found, floor))
    result = {
        "shape": shape,
        "floor_ms": floor,
        "ms": [{"pass": way, "name": name, **each} for (way, name), each in found.items()],
        "environment": environment(CUDA),
    }
    given.result.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
