"""The measurements: cells end to end, equivalence, ceilings, decoders, builds, kernels, kept models."""
