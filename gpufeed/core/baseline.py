"""Where records lie below a folder of results. Standard library only: used while planning."""

from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.repeats import number_of


def records_below(folder: str | Path) -> list[Path]:
    """The records below a folder, by path: those in its `records`, or in any folder if it has none.

    A record's file is called by the number of its repeat (see `repeats.number_of`). Published results, which
    lie in a folder `reference` of others, are not of those. Raises GpufeedError if there is none.
    """
    folder = Path(folder)
    inner = folder / "records"
    root = inner if inner.is_dir() else folder
    numbered = (path for path in root.rglob("*.json") if number_of(path.stem) is not None)
    found = sorted(path for path in numbered if "reference" not in path.relative_to(root).parts[:-1])
    if not found:
        raise GpufeedError(
            f"no record below {folder}" if folder.is_dir() else f"no folder {folder}",
            "a folder of results, or of records, <experiment>/<cell>/<repeat>.json",
            "name a folder that a run has filled, such as results or results/reference/h200",
        )
    return found


def baseline_records(folder: str | Path, experiment: str) -> list[Path]:
    """Those of one experiment, of which there may be none; raises GpufeedError for a folder without any."""
    return [path for path in records_below(folder) if path.parent.parent.name == experiment]
