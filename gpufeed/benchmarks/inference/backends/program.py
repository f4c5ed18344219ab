"""The program of torch.export, read from its file and run operation by operation."""

import torch
from torch.export.passes import move_to_device_pass

from gpufeed.benchmarks.inference.backend import Ready, Setting


def prepare(setting: Setting) -> Ready:
    """As `gpufeed.benchmarks.inference.backend` says."""
    path = setting.files.path("program")
    module = move_to_device_pass(torch.export.load(path), str(setting.device)).module()
    return Ready(module, path.stat().st_size)
