"""The whole forward pass as one CUDA graph: captured once, replayed with one launch.

Source: CUDA Graphs in the PyTorch notes, whole-network capture.
"""

from dataclasses import replace

import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting
from gpufeed.benchmarks.inference.backends import compiled, eager
from gpufeed.core.errors import Skip
from gpufeed.native.torch_compile import MAX_AUTOTUNE
from gpufeed.training.cuda_graph import captured

WARMUP = 3  # calls on a side stream: capture may allocate no workspace and tune no convolution


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says; of the eager model."""
    require(setting.device)
    ready = eager.prepare(setting)
    return replace(ready, run=Captured(ready.run, setting.images))


def prepare_compiled(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says; of the compiled model."""
    require(setting.device)
    ready = compiled.prepare(setting)
    return replace(ready, run=Captured(ready.run, setting.images))


def prepare_autotuned(setting: Setting) -> Ready:
    """As `benchmarks.inference.backend` says; each matrix product compiled by the fastest of many kernels.

    Those written in Triton take what follows into the product: bias, GELU, the residual. Raises Skip
    without a CUDA GPU.
    """
    require(setting.device)
    ready = compiled.prepare(setting, MAX_AUTOTUNE)
    return replace(ready, run=Captured(ready.run, setting.images))


def require(device: torch.device) -> None:
    """Raises Skip without a CUDA GPU."""
    if device.type != "cuda":
        raise Skip(f"CUDA graphs need a CUDA GPU, and this cell's device is {device.type}.")


class Captured:
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
        """Logits (N, classes); the next call writes them anew."""
        self.images.copy_(images)
        self.graph.replay()
        return self.logits
