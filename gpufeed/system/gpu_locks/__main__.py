"""python -m gpufeed.system.gpu_locks: the GPUs of this node, and which process holds which."""

import argparse
import os
import sys
from collections.abc import Sequence

from gpufeed.system.gpu_locks import gpu_listing
from gpufeed.system.gpu_locks.file_locks import folder, holder
from gpufeed.system.gpu_locks.gpu_listing import VISIBLE_DEVICES, visible
from gpufeed.system.gpu_locks.taking import gpu_lock_name, in_words


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each GPU; return 0."""
    about = "Prints the GPUs of this node, a line each: number, kind, UUID, and the process that holds it."
    argparse.ArgumentParser(prog="python -m gpufeed.system.gpu_locks", description=about).parse_args(
        arguments
    )
    there = gpu_listing.on_node()
    if not there:
        print("NVML finds no GPU on this node: there is nothing to lock.")
        return 0
    mask = os.environ.get(VISIBLE_DEVICES)
    choices = visible(mask, there)
    print(f"GPUs of this node; those in use are marked in {folder()}")
    for gpu in there:
        by = holder(gpu_lock_name(gpu))
        state = "free" if by is None else f"held by {in_words(by)}"
        notes = ["other processes compute on it"] * (by is None and gpu.busy)
        notes += ["no job of this shell takes it"] * (gpu not in choices)
        print("  ".join([f"{gpu.number}", gpu.kind, gpu.uuid, "; ".join([state, *notes])]))
    if mask is not None:
        print(f"{VISIBLE_DEVICES}={mask}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
