"""The backends of torch: eager, torch.compile, the forward pass as a CUDA graph, and torch.export.

Source: CUDA Graphs in the PyTorch notes, whole-network capture.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting, forward_of, weight_bytes
from gpufeed.core.errors import Skip
from gpufeed.native.jit_toolchain import MAX_AUTOTUNE, require_compiler
from gpufeed.training.cuda_graph import captured

WARMUP = 3  # calls on a side stream: capture may allocate no workspace and tune no convolution


def prepare_eager(setting: Setting) -> Ready:
    """Prepare the eager model (see `gpufeed.benchmarks.inference.backend`)."""
    model, forward = forward_of(setting)
    return Ready(forward, weight_bytes(model))


def prepare_compiled(setting: Setting, options: Mapping | None = None) -> Ready:
    """Prepare the compiled model (see `gpufeed.benchmarks.inference.backend`). options: as in `compiled`."""
    require_compiler(setting.device)
    model, forward = forward_of(setting)
    return Ready(compiled(forward, setting.images, options), weight_bytes(model))


def compiled(forward: Callable, images: torch.Tensor, options: Mapping | None = None) -> Run:
    """Compile the function and run it once. options: of Inductor, besides its defaults."""
    run = torch.compile(forward, dynamic=False, fullgraph=True, options=dict(options or {}))
    run(images)
    return run


def prepare_graph(setting: Setting) -> Ready:
    """Prepare the eager model as a CUDA graph (see `gpufeed.benchmarks.inference.backend`)."""
    return as_graph(setting, prepare_eager)


def prepare_compiled_graph(setting: Setting) -> Ready:
    """Prepare the compiled model as a CUDA graph (see `gpufeed.benchmarks.inference.backend`)."""
    return as_graph(setting, prepare_compiled)


def prepare_autotuned_graph(setting: Setting) -> Ready:
    """Prepare a CUDA graph whose matrix products use the fastest of many kernels.

    Kernels in Triton can fuse what follows the product: bias, GELU, the residual. See
    `benchmarks.inference.backend`.
    """
    return as_graph(setting, partial(prepare_compiled, options=MAX_AUTOTUNE))


def as_graph(setting: Setting, prepare: Callable[[Setting], Ready]) -> Ready:
    """Return what `prepare` does as a CUDA graph; raise Skip without a CUDA GPU."""
    if setting.device.type != "cuda":
        raise Skip(f"CUDA graphs need a CUDA GPU, and this cell's device is {setting.device.type}.")
    ready = prepare(setting)
    return replace(ready, run=CapturedRun(ready.run, setting.images))


class CapturedRun:
    """A run for batches of one shape as a CUDA graph, which copies images to the graph's input.

    It keeps the run alive: a graph has the addresses of the weights, but does not own them.
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
        """Return logits (N, classes), which the next call overwrites."""
        self.images.copy_(images)
        self.graph.replay()
        return self.logits


def prepare_program(setting: Setting) -> Ready:
    """Prepare the program of torch.export (see `gpufeed.benchmarks.inference.backend`)."""
    # here, since an older torch lacks it
    from torch.export.passes import move_to_device_pass

    path = setting.files.path("program")
    module = move_to_device_pass(torch.export.load(path), str(setting.device)).module()
    return Ready(module, path.stat().st_size)
