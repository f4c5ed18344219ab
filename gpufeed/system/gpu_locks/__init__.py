"""Locks for whole GPUs on a node: each GPU serves one job at a time. The kernel holds the locks."""

from gpufeed.system.gpu_locks.taking import (
    Allocation,
    check,
    hand_on,
    refuse,
    take,
    take_part,
    taken,
    waited_s,
)

__all__ = ["Allocation", "check", "hand_on", "refuse", "take", "take_part", "taken", "waited_s"]
