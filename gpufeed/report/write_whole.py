"""Files that are either whole or not there."""

from pathlib import Path

from gpufeed.core.file_writes import whole


def write_whole(path: str | Path, text: str) -> None:
    """Writes `text` (UTF-8) beside `path` and renames it, so that a killed job leaves no half file."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
