"""Kernels alone, those of the augments and of an MLP: time, bytes and share of the copy bandwidth of each."""
