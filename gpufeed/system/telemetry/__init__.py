"""What a training takes of the machine while it runs: power, clocks, memory, CPU time, reads.

Beside the measurement and never in it: an error here leaves nulls and fails no cell.
"""


def wanted(switch: bool | str) -> bool:
    """The key `telemetry` of the config, which is a word where it comes from a command line."""
    return switch in (True, "on")
