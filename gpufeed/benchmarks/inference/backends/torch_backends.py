"""The backends of torch alone: eager, torch.compile, the forward pass as one CUDA graph, and torch.export.

Source: CUDA Graphs in the PyTorch notes, whole-network capture.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting, forward_of, weight_bytes
from gpufeed.core.errors import Skip
from gpufeed.native.jit_toolchain import MAX_AUTOTUNE, require_compiler
from gpufeed.training.cuda_graph import captured


def prepare_eager(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says."""
    model, forward = forward_of(setting)
    return Ready(forward, weight_bytes(model))


def prepare_compiled(setting: Setting, options: Mapping | None = None) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says. options: as for `compiled`."""
    require_compiler(setting.device)
    model, forward = forward_of(setting)
    return Ready(compiled(forward, setting.images, options), weight_bytes(model))


def compiled(forward: Callable, images: torch.Tensor, options: Mapping | None = None) -> Run:
    """The function compiled and run once. options: of Inductor, beside its defaults."""
    run = torch.compile(forward, dynamic=False, fullgraph=True, options=dict(options or {}))
    run(images)
    return run


WARMUP = 3  # calls on a side stream: capture may allocate no workspace and tune no convolution


def prepare_graph(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says; of the eager model."""
    require_cuda(setting.device)
    ready = prepare_eager(setting)
    return replace(ready, run=CapturedRun(ready.run, setting.images))


def prepare_compiled_graph(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says; of the compiled model."""
    require_cuda(setting.device)
    ready = prepare_compiled(setting)
    return replace(ready, run=CapturedRun(ready.run, setting.images))


def prepare_autotuned_graph(setting: Setting) -> Ready:
    """As `benchmarks.inference.backend` says; each matrix product compiled by the fastest of many kernels.

    Those written in Triton take what follows into the product: bias, GELU, the residual. Raises Skip
    without a CUDA GPU.
    """
    require_cuda(setting.device)
    ready = prepare_compiled(setting, MAX_AUTOTUNE)
    return replace(ready, run=CapturedRun(ready.run, setting.images))


def require_cuda(device: torch.device) -> None:
    """Raises Skip without a CUDA GPU."""
    if device.type != "cuda":
        raise Skip(f"CUDA graphs need a CUDA GPU, and this cell's device is {device.type}.")


class CapturedRun:
    """A run for batches of one shape as a CUDA graph; it copies its images to where the graph reads them.

    It holds the run: a graph knows the addresses of the weights and keeps none of them alive.
    """

    def __init__(self, run: Run, images: torch.Tensor):
        self.run, self.images, self.graph = run, images.clone(), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(images.device)
        side.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                run(self.images)
        torch.cuda.current_stream(images.device).wait_stream(side)
        with captured(self.graph):
            self.logits = run(self.images)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, classes); the next call overwrites them."""
        self.images.copy_(images)
        self.graph.replay()
        return self.logits


def prepare_program(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says."""
    # an older torch lacks it, which shall cost this backend alone
    from torch.export.passes import move_to_device_pass

    path = setting.files.path("program")
    module = move_to_device_pass(torch.export.load(path), str(setting.device)).module()
    return Ready(module, path.stat().st_size)
