"""What a training uses of the machine while it runs: power, clocks, memory, CPU time, reads.

Telemetry never fails a cell: an error in it leaves nulls.
"""


def wanted(switch: bool | str) -> bool:
    """Return whether the config's key `telemetry` is on; a command line gives it as a word."""
    return switch in (True, "on")
