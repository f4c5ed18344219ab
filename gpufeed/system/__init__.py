"""The machine: GPUs and their locks, cores, memory, processes, signals, clocks, statistics."""
