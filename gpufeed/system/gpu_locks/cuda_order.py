"""The UUIDs of the GPUs in CUDA's order, a line each. Run as a program: asking settles what a process sees.

Standard library only, and none of the package: it is run by its path. CUDA counts the fastest GPU first,
unless CUDA_DEVICE_ORDER=PCI_BUS_ID, and NVML by the bus. Source: CUDA driver API reference.
"""

import ctypes
import os
import subprocess
import sys
import uuid

LIMIT_S = 60  # loading the driver of a node with many GPUs takes seconds


def in_cuda_order() -> list[str]:
    """UUIDs without their prefix, those of the whole node; none where CUDA does not answer."""
    free = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__], env=free, capture_output=True, text=True, timeout=LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []


def main() -> int:
    """Prints them; 1 where CUDA cannot be asked."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 1
    count, device, octets = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return 1
    for ordinal in range(count.value):
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetUuid_v2(octets, device):
            return 1
        print(uuid.UUID(bytes=bytes(octets)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
