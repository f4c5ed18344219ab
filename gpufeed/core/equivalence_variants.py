"""What tells two verdicts on one loader apart: the settings that a loader sees.

Standard library only: the workflow imports this while it plans.
"""

from collections.abc import Mapping

from gpufeed.core.cells import Cell

# Fields of Cell and of LoadRequest.
AXES = ("batch_size", "workers", "prefetch_factor", "persistent_workers", "pin_memory", "seed")


def settings_of(cell: Cell) -> dict:
    """The loader's settings in a cell, by name. Cells that agree in them share one verdict."""
    return {axis: getattr(cell, axis) for axis in AXES}


def variant(settings: Mapping, device: str = "auto") -> str:
    """Settings as the name of a file, such as "b32-w2-p2-persistent-pinned-s0", or "...-s0-cpu".

    device: as in the config; a verdict given on one that the config names is no other's.
    """
    parts = [f"b{settings['batch_size']}", f"w{settings['workers']}"]
    if settings["prefetch_factor"] is not None:
        parts.append(f"p{settings['prefetch_factor']}")
    parts += ["persistent"] * settings["persistent_workers"]
    parts.append("pinned" if settings["pin_memory"] else "pageable")
    parts.append(f"s{settings['seed']}")
    return "-".join(parts if device == "auto" else [*parts, device])


def words(settings: Mapping) -> str:
    """Settings for a person, such as "batch size 32, 2 workers, prefetch 2, persistent, pinned, seed 0"."""
    workers = settings["workers"]
    parts = [f"batch size {settings['batch_size']}", f"{workers} worker{'' if workers == 1 else 's'}"]
    if settings["prefetch_factor"] is not None:
        parts.append(f"prefetch {settings['prefetch_factor']}")
    parts += ["persistent"] * settings["persistent_workers"]
    parts.append("pinned" if settings["pin_memory"] else "pageable")
    return ", ".join([*parts, f"seed {settings['seed']}"])
