"""The least cost of training a vision transformer: its matrix products, and the bytes that they move.

Standard library only. It is a lower bound for models that store the results between products: normalisation,
activations, additions and the optimiser cost nothing here, nor do the products that attention repeats.
Source: S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpufeed.core.vit_options import hidden_width

CHANNELS = 3
# Sizes of timm's models, whose options do not state them.
SIZES = {
    "timm_vit_tiny": {"width": 192, "depth": 12, "heads": 3, "mlp_ratio": 4},
    "timm_vit_small": {"width": 384, "depth": 12, "heads": 6, "mlp_ratio": 4},
}


@dataclass(frozen=True)
class Work:
    """An operation of a training step: multiplications and additions, values read or written, repetitions."""

    name: str
    flops: int
    values: int
    times: int = 1


def known(model: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options that decide a vision transformer's cost; None for any other model."""
    found = {**SIZES.get(model, {}), **options}
    needed = ("patch", "width", "depth", "mlp_ratio", "pool")
    return {key: found[key] for key in needed} if all(key in found for key in needed) else None


def step(options: Mapping[str, Any], image: tuple[int, int], classes: int, batch: int) -> Iterator[Work]:
    """Yield one step's operations, forward and backward. options: from `known`. image: (height, width)."""
    patch, width, depth = options["patch"], options["width"], options["depth"]
    hidden = hidden_width(width, options["mlp_ratio"])
    patches = (image[0] // patch) * (image[1] // patch)
    tokens = patches + (options["pool"] == "class_token")
    rows = batch * tokens
    yield from linear("patches", batch * patches, patch * patch * CHANNELS, width, 1, first=True)
    yield from linear("q, k and v", rows, width, 3 * width, depth)
    yield from attention(batch, tokens, width, depth)
    yield from linear("projection", rows, width, width, depth)
    yield from linear("MLP, first layer", rows, width, hidden, depth)
    yield from linear("MLP, second layer", rows, hidden, width, depth)
    yield from linear("head", batch, width, classes, 1)


def linear(name: str, rows: int, inner: int, outer: int, times: int, first: bool = False) -> Iterator[Work]:
    """Yield (rows, inner) x (inner, outer) forward, and the gradients of the weight and of the input.

    first: without the gradient of the input, which the first layer does not need.
    """
    flops = 2 * rows * inner * outer
    values = rows * inner + inner * outer + rows * outer
    for _ in range(2 if first else 3):
        yield Work(name, flops, values, times)


def attention(batch: int, tokens: int, width: int, times: int) -> Iterator[Work]:
    """Yield two products forward and four backward, whose intermediate results are never stored.

    Forward reads q, k and v and writes the result; backward moves these four, their gradients and no more.
    """
    product, array = 2 * batch * tokens * tokens * width, batch * tokens * width
    yield Work("attention", 2 * product, 4 * array, times)
    yield Work("attention", 4 * product, 8 * array, times)


def flops(works: Iterator[Work]) -> int:
    """Return the multiplications and additions of all operations."""
    return sum(work.flops * work.times for work in works)


def floor_ms(works: Iterator[Work], itemsize: int, tflop_per_s: float, gb_per_s: float) -> float:
    """Return the least milliseconds of a step: each operation is bound by its arithmetic or by its bytes.

    itemsize: bytes of a value. The rates are those of a large product and a large copy on the device.
    """
    return sum(
        work.times * max(work.flops / tflop_per_s / 1e9, work.values * itemsize / gb_per_s / 1e6)
        for work in works
    )
