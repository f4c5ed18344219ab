"""torch as it is: each operation launched from Python."""

from gpufeed.benchmarks.inference.backend import Ready, Setting
from gpufeed.benchmarks.inference.inference_precision import forward_of, weight_bytes


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says."""
    model, forward = forward_of(setting)
    return Ready(forward, weight_bytes(model))
