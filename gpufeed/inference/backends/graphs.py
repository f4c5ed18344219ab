"""The whole forward pass as one CUDA graph: captured once, replayed with one launch.

Source: CUDA Graphs in the PyTorch notes, whole-network capture.
"""

from dataclasses import replace

import torch

from gpufeed.errors import Skip
from gpufeed.inference.backends import compiled, eager
from gpufeed.inference.base import Ready, Run, Setting

WARMUP = 3  # calls on a side stream: capture may allocate no workspace and tune no convolution


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says; of the eager model."""
    require(setting.device)
    ready = eager.prepare(setting)
    return replace(ready, run=captured(ready.run, setting.images))


def prepare_compiled(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says; of the compiled model."""
    require(setting.device)
    ready = compiled.prepare(setting)
    return replace(ready, run=captured(ready.run, setting.images))


def require(device: torch.device) -> None:
    """Raises Skip without a CUDA GPU."""
    if device.type != "cuda":
        raise Skip(f"CUDA graphs need a CUDA GPU, and this cell's device is {device.type}.")


def captured(run: Run, images: torch.Tensor) -> Run:
    """The same for batches of this shape, replayed; it copies its images to where the graph reads them."""
    inputs, side = images.clone(), torch.cuda.Stream(images.device)
    side.wait_stream(torch.cuda.current_stream(images.device))
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            run(inputs)
    torch.cuda.current_stream(images.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = run(inputs)

    def replay(images: torch.Tensor) -> torch.Tensor:
        inputs.copy_(images)
        graph.replay()
        return logits

    return replay
