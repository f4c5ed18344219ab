"""ONNX Runtime on the float32 file, and on the one with Q/DQ nodes.

On a GPU where the package has a CUDA provider, images and logits stay there; else it computes on the CPU, and
for images on a GPU a call has the way to the host and back in its time. The CUDA provider has not been run
yet.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting
from gpufeed.benchmarks.inference.export import packages
from gpufeed.benchmarks.inference.exported_files import INPUT, OUTPUT
from gpufeed.system.timing import synchronise

CUDA = "CUDAExecutionProvider"
# On x86-64 without VNNI, products of unsigned by signed bytes are added in 16 bits, which may not hold them.
# With this such a CPU takes unsigned ones, and others go on as they do. Source: ONNX Runtime, session keys.
WHOLE_PRODUCTS = "session.x64quantprecision"
THROUGH_HOST = (
    "Computes on {threads} CPU threads, since this onnxruntime has no CUDA provider: its times have the "
    "copies of images and logits between GPU and host in them."
)


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says."""
    return ready(setting, setting.files.path("onnx"))


def prepare_int8(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says."""
    return ready(setting, setting.files.path("onnx_int8"))


def ready(setting: Setting, path: Path) -> Ready:
    """A session on this file, on the GPU where that is possible."""
    (onnxruntime,) = packages("onnxruntime")
    options, threads = onnxruntime.SessionOptions(), torch.get_num_threads()
    options.intra_op_num_threads = threads
    options.add_session_config_entry(WHOLE_PRODUCTS, "1")
    chosen = providers(setting.device, onnxruntime.get_available_providers())
    session = onnxruntime.InferenceSession(path, options, providers=chosen)
    on_gpu = len(chosen) > 1 and CUDA in session.get_providers()  # it may have failed to load
    run = bound(session, setting) if on_gpu else on_host(session, setting.device)
    note = None
    if setting.device.type != "cpu" and not on_gpu:
        note = THROUGH_HOST.format(threads=threads)
    return Ready(run, path.stat().st_size, note)


def providers(device: torch.device, available: Sequence[str]) -> list:
    """What a session is asked to compute by, a GPU first; float32 there without TF32, as for torch."""
    cpu = "CPUExecutionProvider"
    if device.type != "cuda" or CUDA not in available:
        return [cpu]
    return [(CUDA, {"device_id": device.index or 0, "use_tf32": "0"}), cpu]


def on_host(session, device: torch.device) -> Run:
    """Runs on the CPU, whatever the device of the images."""

    def run(images: torch.Tensor) -> torch.Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: images.cpu().numpy()})
        return torch.from_numpy(logits).to(device)

    return run


def bound(session, setting: Setting) -> Run:
    """Runs on the GPU, from torch's memory into torch's memory.

    On a stream of the session's own, since the address of torch's default stream is 0, which ONNX Runtime
    takes for none: so torch's work is waited for first, and a call returns when its own is done.
    """
    n, index = len(setting.images), setting.device.index or 0
    logits = torch.empty((n, len(setting.saved.classes)), device=setting.device)

    def run(images: torch.Tensor) -> torch.Tensor:
        binding = session.io_binding()
        shape = tuple(images.shape)
        binding.bind_input(INPUT, "cuda", index, np.float32, shape, images.data_ptr())
        binding.bind_output(OUTPUT, "cuda", index, np.float32, tuple(logits.shape), logits.data_ptr())
        synchronise(setting.device)
        session.run_with_iobinding(binding)
        return logits

    return run
