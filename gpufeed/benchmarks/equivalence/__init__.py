"""The equivalence gate: before a loader is timed it shows that it yields the samples of the reference.

The reference is the manifest and a cache decoded by Pillow. variants: what is judged apart;
pixels: what pixels may differ by; epoch: one epoch held against the reference; judge: all epochs of all
settings; watch: the same in a process that may hang or die; verdict: what is written down.
"""
