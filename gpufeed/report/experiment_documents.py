"""The documents of one experiment among those of all."""

from collections.abc import Callable, Iterable
from pathlib import Path

from gpufeed.core.errors import GpufeedError


def documents(
    paths: Iterable[str | Path], experiment: str, read: Callable[[Path], dict]
) -> tuple[dict[str, dict], list[dict]]:
    """What could be read, by cell, and a trouble (status, who, sentence) for each that is damaged.

    paths: <experiment>/<cell>.json of all experiments. read: raises GpufeedError for a damaged one.
    """
    found, troubles = {}, []
    for path in map(Path, paths):
        if path.parent.name != experiment:
            continue
        try:
            found[path.stem] = read(path)
        except GpufeedError as error:
            troubles.append({"status": "damaged", "who": path.stem, "sentence": error.found.splitlines()[0]})
    return found, troubles
