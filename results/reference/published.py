"""The published results: their cells, and numbers of them with n, range, card, commit and records."""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from page_numbers import Number

from gpufeed.report import load_records, tables
from gpufeed.report.significance import standing
from gpufeed.system.statistics import FASTER

NODES = {"H100": "h100", "H200": "h200"}
PHOTOGRAPHS = {  # what the texts say of every share of theirs
    "dataset": "imagenet_800",
    "recipe": "random_resized_crop",
    "batch_size": 256,
    "precision": "bf16",
    "compile": True,
    "cuda_graphs": True,
}


class Published:
    """The published results. folder: with the documents in their places (packed_results.unpacked)."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cells = cache(self._cells)

    def _cells(self, experiment: str, node: str) -> pd.DataFrame:
        paths = sorted((self.folder / node / "records" / experiment).glob("*/*.json"))
        return tables.cells(load_records.read_records(paths)).assign(node=node)

    def number(
        self, what: str, values: Iterable[float], *sides: pd.Series | Path, n: int | None = None
    ) -> Number:
        """Return a number. values: itself and its range. sides: the cells, or the documents, that give it."""
        paths = [path for side in sides for path in self.paths(side)]
        documents = [json.loads(path.read_text()) for path in paths]
        made_by = [document["environment"] for document in documents]
        hosts = [document.get("telemetry", {}).get("host", {}) for document in documents]
        if {host.get("page_cache_share", 1) for host in hosts} - {1, None}:
            raise ValueError(f"files of {what} were not in the page cache: change the sentence")
        value, low, high = values
        return Number(
            what,
            *(value, low, high),
            int(min(side["n_repeats"] for side in sides) if n is None else n),
            " and ".join(sorted({one["gpu"]["name"] for one in made_by})),
            sorted({one["commit"][:12] for one in made_by}),
            sorted({str(path.relative_to(self.folder)) for path in paths}),
        )

    def paths(self, side: pd.Series | Path) -> list[Path]:
        """Return the documents of a cell; a document is its own."""
        if isinstance(side, Path):
            return [side]
        folder = self.folder / side["node"] / "records" / side["experiment"] / side["cell_id"]
        return sorted(folder.glob("*.json"))

    def photographs(self, model: str, card: str) -> pd.DataFrame:
        found = self.cells("photographs", NODES[card])
        found = found[(found["model"] == model) & found["cuda_graphs"]]
        for name, value in PHOTOGRAPHS.items():
            same(f"{name} of photographs", [*found[name], value])
        return found

    def share(
        self, card: str, loader: str, cores: int, model: str = "resnet18", engines: float | None = None
    ) -> Number:
        """Return which share of the limit a loader reaches, in percent."""
        found = self.photographs(model, card)
        limit = the(found, loader="replay", cores_asked=cores)
        load = found["hw_decoder_load"]
        cell = the(
            found[load.isna() if engines is None else load == engines], loader=loader, cores_asked=cores
        )
        said = f"share of the limit, {model}, {loader}, {cores} cores, in percent"
        return self.number(said, in_percent(cell, limit), cell, limit)

    def ceilings(self, **axes: Any) -> tuple[Path, dict]:
        """Return the one document of the H200's `feed` whose cell has these values."""
        found = {
            path: json.loads(path.read_text()) for path in (self.folder / "h200/ceilings/feed").glob("*.json")
        }
        (pair,) = [pair for pair in found.items() if axes.items() <= pair[1]["cell"].items()]
        return pair


def the(rows: pd.DataFrame, **axes: Any) -> pd.Series:
    """Return the one row that has these values."""
    for name, value in axes.items():
        rows = rows[rows[name] == value]
    if len(rows) != 1:
        raise ValueError(f"found {len(rows)} cells with {axes}; expected one")
    return rows.iloc[0]


def same(what: str, values: Iterable[Any]) -> Any:
    """Return the one value that all have."""
    found = set(values)
    if len(found) != 1:
        raise ValueError(f"found {sorted(found, key=str)}; expected one {what}: change the sentence")
    return found.pop()


def in_percent(cell: pd.Series, limit: pd.Series) -> list[int]:
    """Return the median share of the limit, and the widest range that both ranges allow."""
    shares = [
        cell["images_per_s"] / limit["images_per_s"],
        cell["images_per_s_min"] / limit["images_per_s_max"],
        cell["images_per_s_max"] / limit["images_per_s_min"],
    ]
    return [round(100 * share) for share in shares]


def times_as_fast(of: Published, cell: pd.Series, other: pd.Series) -> Number:
    """Return how many times as fast a cell is as another in pairs of one block, with the 95 % interval."""
    found = standing(cell, other)
    if found.how != FASTER or not found.ratio.paired:
        raise ValueError(
            f"{cell['loader']} beside {other['loader']}: {found.how}, {found.words}: change the sentence"
        )
    said = f"{cell['loader']} over {other['loader']}, images/s in pairs; the range is the 95 % interval"
    times = [round(ratio, 1) for ratio in (found.ratio.median, *found.bounds)]
    return of.number(said, times, cell, other, n=found.ratio.n)
