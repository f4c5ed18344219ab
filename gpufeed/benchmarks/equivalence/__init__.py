"""The equivalence check (gate): before a loader is timed, it must yield the reference's samples.

The reference is the manifest and a cache decoded by Pillow. epoch_check compares one epoch, judge all epochs
of all splits. supervised runs this in a process that may hang or die. core/equivalence_verdict.py has the
verdict and the settings that it covers.
"""
