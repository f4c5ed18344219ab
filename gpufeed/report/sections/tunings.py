"""What tunings tried, as tables of the report."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError
from gpufeed.core.loader_setting import Setting
from gpufeed.core.record import TUNED


def section(paths: Iterable[Path], experiment: str) -> list[dict[str, Any]]:
    """Return one table for each tuning of an experiment: its cell, rows and lines to paste, or why none."""
    return [table(path) for path in paths if path.parent.name == experiment]


def table(path: Path) -> dict[str, Any]:
    """Return the table of one tuning; without rows `trouble` says what stopped it."""
    try:
        found = TUNED.read(path)
    except GpufeedError as error:
        return {"cell": path.stem, "trouble": error.found, "rows": []}
    tried, loader = found["tried"], found["cell"]["loader"]
    if not tried:
        return {"cell": found["cell_id"], "trouble": found["sentence"], "rows": []}
    return {
        "cell": found["cell_id"],
        "settings": len(found["settings"]),
        "spent": f"{found['spent_s']:.0f}",
        "lines": list(Setting.of(tried[0]).lines(loader, found["cell"]["batch_size"]).values()),
        "rows": [
            {
                "setting": Setting.of(one).in_words(loader),
                "rung": one["rung"],
                "seconds": f"{one['seconds']:.1f}",
                "rate": f"{one['images_per_s']:,.0f}",
                "share": f"{one['images_per_s'] / tried[0]['images_per_s']:.0%}",
            }
            for one in tried
        ],
    }
