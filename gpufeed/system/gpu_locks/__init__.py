"""Whole GPUs for jobs on a node with several, each for one job at a time, by locks that the kernel holds."""

from gpufeed.system.gpu_locks.taking import Lease, check, hand_on, refuse, take, take_part, taken, waited_s

__all__ = ["Lease", "check", "hand_on", "refuse", "take", "take_part", "taken", "waited_s"]
