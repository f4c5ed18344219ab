"""numba.cuda, with a workaround for NumPy 2.5.

numba-cuda 0.30.4, the newest, refers to numpy.row_stack when it compiles its first kernel, and NumPy 2.5 has
removed that name, so that no kernel could be compiled. So the module that refers to it is imported here while
the name exists; nothing uses it afterwards.
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
    """Return cuda.jit with a limit of registers a thread, which the simulator does not have."""
    return cuda.jit if numba.config.ENABLE_CUDASIM else cuda.jit(max_registers=registers)


__all__ = ["cuda", "jit_within"]
