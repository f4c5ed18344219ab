"""What a training takes of the machine while it runs: power, clocks, memory, CPU time, reads.

Beside the measurement and never in it: an error here leaves nulls and fails no cell.
"""
