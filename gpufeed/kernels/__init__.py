"""The kernels of the augments, alone: time, bytes and share of the copy bandwidth of each."""
