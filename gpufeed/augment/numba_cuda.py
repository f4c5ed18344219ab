"""numba.cuda, which kernels are written with.

numba-cuda 0.30.4, the newest, names numpy.row_stack while it loads its arrays, with the first kernel that is
compiled, and NumPy 2.5 has no such name any more: no kernel could be compiled. So its arrays are loaded here,
with the name in place for as long as that takes; nothing uses what it stands for.
"""

from collections.abc import Callable
from unittest.mock import patch

import numba
import numpy as np
from numba import cuda

if not hasattr(np, "row_stack") and not numba.config.ENABLE_CUDASIM:  # the simulator has no arrays of its own
    with patch.object(np, "row_stack", np.vstack, create=True):
        import numba.cuda.cudaimpl


def jit_within(registers: int) -> Callable:
    """cuda.jit for a kernel of at most so many registers a thread; the simulator has none to limit."""
    return cuda.jit if numba.config.ENABLE_CUDASIM else cuda.jit(max_registers=registers)


__all__ = ["cuda", "jit_within"]
