"""Freed blocks stay with the process, whatever it freed before: no page faults in a steady loop."""

import platform
import subprocess
import sys

import pytest

LOOP = """
import resource
import sys
sys.path.insert(0, {root!r})
if {keep}:
    from gpufeed.heap import keep_freed_blocks
    assert keep_freed_blocks()
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def step():
    block = libc.malloc(ctypes.c_size_t(64 * 2**20))  # above the largest threshold that glibc adapts to
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_a_steady_loop_faults_no_pages(request):
    def faults(keep: bool) -> int:
        code = LOOP.format(root=str(request.config.rootpath), keep=keep)
        return int(
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        )

    assert faults(keep=False) > 100  # the effect is there without it
    assert faults(keep=True) < 10
