"""ONNX Runtime on the float32 file, and on the one with Q/DQ nodes.

On a GPU where the package has a CUDA provider, images and logits stay there; else it computes on the CPU, and
for images on a GPU a call has the way to the host and back in its time.
"""

from pathlib import Path

import numpy as np
import torch

from gpufeed.inference.base import Ready, Run, Setting
from gpufeed.inference.export import packages
from gpufeed.inference.files import INPUT, OUTPUT

THROUGH_HOST = (
    "Computes on {threads} CPU threads, since this onnxruntime has no CUDA provider: its times have the "
    "copies of images and logits between GPU and host in them."
)


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says."""
    return ready(setting, setting.files.path("onnx"))


def prepare_int8(setting: Setting) -> Ready:
    """As `gpufeed.inference.base` says."""
    return ready(setting, setting.files.path("onnx_int8"))


def ready(setting: Setting, path: Path) -> Ready:
    """A session on this file, on the GPU where that is possible."""
    (onnxruntime,) = packages("onnxruntime")
    options, threads = onnxruntime.SessionOptions(), torch.get_num_threads()
    options.intra_op_num_threads = threads
    on_gpu = (
        setting.device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    )
    providers: list = ["CPUExecutionProvider"]
    if on_gpu:
        where = {
            "device_id": setting.device.index or 0,
            "user_compute_stream": str(torch.cuda.current_stream(setting.device).cuda_stream),
        }
        providers.insert(0, ("CUDAExecutionProvider", where))
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    on_gpu = on_gpu and "CUDAExecutionProvider" in session.get_providers()  # it may have failed to load
    run = bound(session, setting) if on_gpu else on_host(session, setting.device)
    note = None
    if setting.device.type != "cpu" and not on_gpu:
        note = THROUGH_HOST.format(threads=threads)
    return Ready(run, path.stat().st_size, note)


def on_host(session, device: torch.device) -> Run:
    """Runs on the CPU, whatever the device of the images."""

    def run(images: torch.Tensor) -> torch.Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: images.cpu().numpy()})
        return torch.from_numpy(logits).to(device)

    return run


def bound(session, setting: Setting) -> Run:
    """Runs on the GPU, on torch's stream, from torch's memory into torch's memory."""
    n, index = len(setting.images), setting.device.index or 0
    logits = torch.empty((n, len(setting.saved.classes)), device=setting.device)

    def run(images: torch.Tensor) -> torch.Tensor:
        binding = session.io_binding()
        shape = tuple(images.shape)
        binding.bind_input(INPUT, "cuda", index, np.float32, shape, images.data_ptr())
        binding.bind_output(OUTPUT, "cuda", index, np.float32, tuple(logits.shape), logits.data_ptr())
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        return logits

    return run
