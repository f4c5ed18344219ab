"""Kernels of the augments and of an MLP, measured alone: time, bytes and share of the copy bandwidth."""
