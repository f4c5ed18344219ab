"""The equivalence check (gate): before a loader is timed, it must yield the reference's samples.

The reference is the manifest and a cache decoded by Pillow. Module epoch_check compares one epoch, judge all
epochs of all splits, and supervised runs this in a process that may hang or die. The verdict and the settings
that it covers are in core/equivalence_verdict.py.
"""
