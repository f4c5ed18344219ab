"""The equivalence gate: before a loader is timed it shows that it yields the samples of the reference.

The reference is the manifest and a cache decoded by Pillow. epoch_check: one epoch held against the
reference; judge: all epochs of all settings; supervised: the same in a process that may hang or die. Which
settings are judged apart, and what is written down, is in core/equivalence_verdict.py.
"""
