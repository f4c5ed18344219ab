"""ONNX Runtime, for the float32 file and the one with Q/DQ nodes.

With a CUDA provider, images and logits stay on the GPU. Without it, ONNX Runtime computes on the CPU, and a
call includes the copies of images and logits between GPU and host. The CUDA provider has not been run yet.
"""

from collections.abc import Sequence

import numpy as np
import torch

from gpufeed.benchmarks.inference.backend import Ready, Run, Setting
from gpufeed.benchmarks.inference.export import packages
from gpufeed.benchmarks.inference.exported_files import INPUT, OUTPUT
from gpufeed.system.timing import synchronise

FILES = {"fp32": "onnx", "int8": "onnx_int8"}
CUDA = "CUDAExecutionProvider"
# On x86-64 without VNNI, products of unsigned and signed bytes are summed in 16 bits, which may overflow.
# With this key such a CPU uses unsigned bytes; others are not affected. Source: ONNX Runtime, session keys.
WHOLE_PRODUCTS = "session.x64quantprecision"
THROUGH_HOST = (
    "Computes on {threads} CPU threads, since this onnxruntime has no CUDA provider: its times include the "
    "copies of images and logits between GPU and host."
)


def prepare(setting: Setting) -> Ready:
    """Prepare the file of the precision, on the GPU if possible (see `benchmarks.inference.backend`)."""
    path = setting.files.path(FILES[setting.precision])
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
    """Return the providers of a session, a GPU first, without TF32 as in torch."""
    cpu = "CPUExecutionProvider"
    if device.type != "cuda" or CUDA not in available:
        return [cpu]
    return [(CUDA, {"device_id": device.index or 0, "use_tf32": "0"}), cpu]


def on_host(session, device: torch.device) -> Run:
    """Return a run on the CPU, for images on any device."""

    def run(images: torch.Tensor) -> torch.Tensor:
        (logits,) = session.run([OUTPUT], {INPUT: images.cpu().numpy()})
        return torch.from_numpy(logits).to(device)

    return run


def bound(session, setting: Setting) -> Run:
    """Return a run on the GPU, from and to torch's memory.

    The session has its own stream, since ONNX Runtime takes torch's default stream (address 0) for none. So
    each call first waits for torch's work, and returns when its own is done.
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
