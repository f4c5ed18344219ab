"""torch.compile, for one size of batch."""

from collections.abc import Callable, Mapping

import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting
from gpufeed.benchmarks.inference.inference_precision import forward_of, weight_bytes
from gpufeed.native.torch_compile import require_compiler


def prepare(setting: Setting, options: Mapping | None = None) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says. options: as for `compiled`."""
    require_compiler(setting.device)
    model, forward = forward_of(setting)
    return Ready(compiled(forward, setting.images, options), weight_bytes(model))


def compiled(forward: Callable, images: torch.Tensor, options: Mapping | None = None) -> Run:
    """The function compiled and run once. options: of Inductor, beside its defaults."""
    run = torch.compile(forward, dynamic=False, fullgraph=True, options=dict(options or {}))
    run(images)
    return run
