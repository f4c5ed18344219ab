"""Files that are either whole or not there."""

import os
from pathlib import Path


def write_whole(path: str | Path, text: str) -> None:
    """Writes `text` (UTF-8) beside `path` and renames it, so that a killed job leaves no half file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
