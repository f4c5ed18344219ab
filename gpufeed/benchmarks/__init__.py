"""What is measured: cells end to end, equivalence, ceilings, decoders, builds, kernels, models in use."""
