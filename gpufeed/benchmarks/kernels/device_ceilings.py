"""What a device can at most: the rate of a large matrix product and that of a large copy."""

import statistics

import torch

from gpufeed.benchmarks.kernels.kernel_clock import Clock, Yardsticks

SIDE = 8192  # of the square matrices: 128 MiB each in half precision, which fills any GPU
COPIED = 2**30  # bytes read and written


def ceilings(device: torch.device, clock: Clock, yardsticks: Yardsticks, dtype: torch.dtype) -> dict:
    """The field `ceilings` of a kernel benchmark: medians, of random values in `dtype`."""
    generator = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.randn(SIDE, SIDE, dtype=torch.float32, device=device, generator=generator).to(dtype)
        for _ in range(2)
    )
    out = torch.empty_like(a)
    product_ms = statistics.median(clock.device_ms(lambda: torch.mm(a, b, out=out)))
    return {
        "side": SIDE,
        "tflop_per_s": 2 * SIDE**3 / product_ms / 1e9,
        "copied_bytes": COPIED,
        "gb_per_s": COPIED / yardsticks.ms("copy", COPIED) / 1e6,
    }
