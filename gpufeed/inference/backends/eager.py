"""torch as it is: each operation launched from Python."""

from gpufeed.inference.base import Ready, Setting
from gpufeed.inference.precision import forward_of, weight_bytes


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says."""
    model, forward = forward_of(setting)
    return Ready(forward, weight_bytes(model))
