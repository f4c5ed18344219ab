"""Sweeps of decoders from disk to one table: a row a point, rates as median, smallest and largest."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from gpufeed.core import record
from gpufeed.core.errors import GpufeedError, first_line
from gpufeed.report import wording
from gpufeed.report.load_records import machine_of

STRIPS, STRIPS_CPU = "strips", "strips_cpu"
COLUMNS = [
    "experiment", "decoder", "kind", "version", "dataset", "height", "width", "side", "quality",
    "bytes_per_pixel", "cores", "physical_cores", "batch_size", "main", "cache", "status", "sentence", "n",
    "images_per_s", "images_per_s_min", "images_per_s_max", "megapixels_per_s", "evicted_share",
    "fell_back_share", "buffers_mib", "device", "hardware", "gpu", "cpu", "node_cores", "node", "machine",
    "driver", "stack", "torch", "commit", "finished_at",
]  # fmt: skip
TROUBLE_COLUMNS = ["decoder", "status", "sentence"]
# What nodes have in common whose rates may be compared: a cluster puts each decoder's job on another node.
SAME_MACHINE = ["gpu", "cpu", "node_cores", "driver", "stack", "torch"]


def read_sweeps(paths: Iterable[str | Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read sweep files into (points, troubles); columns: COLUMNS and TROUBLE_COLUMNS.

    side: of a square of as many pixels as an image has, in the mean where sizes differ. kind: `gpu`
    for a decoder that decodes on one, `strips`, `strips_cpu`, else `cpu`. main: whether the batch has the
    size that the sweep uses for all image sizes. Rates are of the passes after warm-up, NaN where there are
    none.
    troubles: decoders that were skipped or failed, unusable files, failed or refused points, and what was
    left out, each with its sentence.
    """
    rows: list[dict] = []
    troubles: list[tuple] = []
    for path in map(Path, paths):
        try:
            sweep = record.DECODING.read(path)
        except GpufeedError as error:
            troubles.append((path.stem, "unusable", first_line(error.found)))
            continue
        rows += _rows(sweep)
        troubles += _troubles(sweep)
    whole = {"height": "Int64", "width": "Int64"}  # empty where sizes differ
    return pd.DataFrame(rows, columns=COLUMNS).astype(whole), pd.DataFrame(troubles, columns=TROUBLE_COLUMNS)


def _rows(sweep: dict) -> list[dict]:
    """Return the points of a sweep, with more than COLUMNS."""
    machine = machine_of({}, sweep, sweep["environment"])
    same = {**machine, **sweep, "kind": _kind(sweep), "gpu": machine["gpu"] and machine["gpu"]["name"]}
    same |= {"node_cores": machine["cores"], "commit": wording.commit(machine["commit"], machine["dirty"])}
    # of each dataset the size that stands for all: it was measured first, on few cores
    usual = {point["dataset"]: point["batch_size"] for point in reversed(sweep["points"])}
    return [
        {**same, **_point(point), "main": point["batch_size"] == usual[point["dataset"]]}
        for point in sweep["points"]
    ]


def _kind(sweep: dict) -> str:
    if sweep["decoder"] in (STRIPS, STRIPS_CPU):
        return sweep["decoder"]
    return "gpu" if sweep["parallel"] == "device" else "cpu"


def _point(point: dict) -> dict:
    rates = pd.Series(point["images_per_s"], dtype=float)
    mixed = point["height"] is None
    pixels = point["pixels"] if mixed else point["height"] * point["width"]
    images = sum(point["images"])
    return point | {
        "side": round(pixels**0.5) if mixed else pixels**0.5,
        "n": len(rates),
        "images_per_s": rates.median(),
        "images_per_s_min": rates.min(),
        "images_per_s_max": rates.max(),
        "megapixels_per_s": rates.median() * pixels / 1e6,
        "evicted_share": pd.Series(point["evicted_share"], dtype=float).median(),
        "fell_back_share": point["fell_back"] / images if images else None,
    }


def _troubles(sweep: dict) -> list[tuple]:
    """Return what kept a sweep or its points from rates, as TROUBLE_COLUMNS."""
    found = [(sweep["status"], sweep["sentence"])] if sweep["status"] != "done" else []
    for point in sweep["points"]:
        if point["status"] != "done":
            cores = wording.plural(point["cores"], "core")
            where = f"{point['dataset']}, {point['cache']}, {cores}, batch {point['batch_size']}"
            found.append((point["status"], f"{where}: {point['sentence']}"))
    found += [("left out", sentence) for sentence in sweep["left_out"]]
    return [(sweep["decoder"], *one) for one in found]


def measured(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points that have rates."""
    return points[(points["status"] == "done") & (points["n"] > 0)]


def usual(points: pd.DataFrame) -> pd.DataFrame:
    """Return those of `measured` with a warm page cache and the batch size of all image sizes."""
    rows = measured(points)
    return rows[(rows["cache"] == "warm") & rows["main"].astype(bool)]


def machines(points: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the points of each machine, or of several alike nodes (SAME_MACHINE): no others compare."""
    return [rows for _, rows in points.groupby(SAME_MACHINE, sort=False, dropna=False)]


def nodes(points: pd.DataFrame) -> list[str]:
    """Return the sorted names of the nodes, each with its machine if that is known."""
    named = zip(points["node"], points["machine"], strict=True)
    return sorted({f"{node} ({machine})" if isinstance(machine, str) else node for node, machine in named})


def pixel_size(row: pd.Series) -> str:
    """Return such as `64 x 48`, the width and height of a point's images, or that they differ."""
    if pd.isna(row["height"]):
        return f"mixed sizes, as many pixels as {row['side']:g} x {row['side']:g} in the mean"
    return f"{row['width']} x {row['height']}"


def hardware(points: pd.DataFrame) -> str:
    """Return one machine in words, such as `NVIDIA H200, 16 cores of Intel(R) Xeon(R) Platinum 8480C`."""
    first = points.iloc[0]
    cores = f"{wording.plural(int(first['node_cores']), 'core')} of {first['cpu']}"
    return cores if pd.isna(first["gpu"]) else f"{first['gpu']}, {cores}"
