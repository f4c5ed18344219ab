"""A composed cell as a YAML file: what a run by hand leaves beside its weights."""

from pathlib import Path

import yaml

from gpufeed.core.cells import LATER, Cell, copied
from gpufeed.core.config_schema import read_yaml
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import whole

WIDTH = 110


def write(path: str | Path, cell: Cell, comment: str) -> None:
    """Writes the cell, whole or not at all, in the order of its fields; comment: lines for the reader."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    text = head + yaml.safe_dump(cell.asdict(), sort_keys=False, width=WIDTH)
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read(path: str | Path) -> dict:
    """The cell as Cell.asdict gives it; raises GpufeedError for a file that is missing or no cell."""
    fields = Cell.__dataclass_fields__
    try:
        cell = read_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise unreadable(path, str(error)) from error
    if isinstance(cell, dict):  # a choice that came after it was written is as things were before
        cell = copied({name: before for name, before, *deeper in LATER if not deeper}) | cell
    if not isinstance(cell, dict) or set(cell) != set(fields):
        raise unreadable(path, "other keys than a cell has")
    return cell


def unreadable(path: str | Path, why: str) -> GpufeedError:
    return GpufeedError(
        f"no readable cell at {path} ({why})",
        "cell.yaml as python -m gpufeed.train writes it",
        "put it back, or name another folder",
    )
