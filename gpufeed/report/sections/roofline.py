"""How near a model's training comes to what its matrix products alone would take on that GPU.

The ceilings are those that the experiment's kernel benchmark found on the same GPU and torch; the floor of
a step is gpufeed.models.vit_cost's. Only models whose cost is known there have rows.
"""

import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path

import pandas as pd

from gpufeed.core import record
from gpufeed.models import vit_cost
from gpufeed.report import tables, wording
from gpufeed.report.load_records import grouped, read_documents

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}  # of a benchmark's dtype
ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
# What an input cannot slow down: the dataset on the device, or one batch again and again.
LOADERS = ("resident", "replay")
SAME = ["model", "dataset", "batch_size"]


def section(paths: Iterable[str | Path], cells: pd.DataFrame, own_records: pd.DataFrame) -> list[dict]:
    """Return what the page shows: a dict for each GPU that has ceilings and cells of known cost.

    paths: kernel benchmarks, of which those of this experiment are read. cells: as `tables.cells` makes
    them, own_records: as `read_records`, both of this experiment. Damaged benchmarks are reported elsewhere.
    """
    found = [
        described(benchmark, cells, own_records)
        for name in own_records["experiment"].unique()
        for _, benchmark in read_documents("kernels", paths, name, record.KERNELS.read).found
        if benchmark.get("ceilings") and benchmark["environment"]["gpu"]
    ]
    return [machine for machine in found if machine["rows"]]


def described(benchmark: Mapping, cells: pd.DataFrame, own_records: pd.DataFrame) -> dict:
    """Return title, sentences and rows of one GPU, the fastest cell of each model and batch size first."""
    of, environment = benchmark["ceilings"], benchmark["environment"]
    gpu, torch = environment["gpu"]["name"], environment["versions"]["torch"]
    precision = PRECISIONS[benchmark["settings"]["dtype"]]
    facts = {row["cell_id"]: row["facts"] for _, row in own_records.iterrows() if has_size(row["facts"])}
    measured = tables.measured(cells)
    ours = measured[
        (measured["hardware"] == gpu)
        & (measured["torch"] == torch)
        & (measured["precision"] == precision)
        & measured["loader"].isin(LOADERS)
    ]
    rows = [found for _, row in ours.iterrows() if (found := against(row, facts.get(row["cell_id"]), of))]
    rows.sort(key=itemgetter(*SAME, "step_ms"))
    return {
        "title": f"{gpu}, torch {torch}, {precision}: {of['tflop_per_s']:,.0f} TFLOP/s in a large matrix "
        f"product, {of['gb_per_s']:,.0f} GB/s in a large copy",
        "sentences": [sentence(same[0]) for same in grouped(rows, itemgetter(*SAME)).values()],
        "rows": rows,
    }


def has_size(facts: object) -> bool:
    """Return whether a record has the size of its images, which older versions lack."""
    return isinstance(facts, Mapping) and {"classes", "height", "width"} <= set(facts)


def against(row: pd.Series, facts: Mapping | None, of: Mapping) -> dict | None:
    """Return a cell beside its floor; None if the cost of its model is unknown. of: a GPU's `ceilings`."""
    options = vit_cost.known(row["model"], json.loads(row["hyper"]).get("model", {}))
    if options is None or facts is None:
        return None
    batch, image = int(row["batch_size"]), (facts["height"], facts["width"])
    works = list(vit_cost.step(options, image, facts["classes"], batch))
    floor = vit_cost.floor_ms(works, ITEMSIZE[row["precision"]], of["tflop_per_s"], of["gb_per_s"])
    step_ms = batch * row["devices"] * row["nodes"] / row["images_per_s"] * 1e3  # each device has its batch
    return {
        **{key: row[key] for key in SAME},
        "settings": settings(row),
        "n": int(row["n_repeats"]),
        "rate": wording.count(row["images_per_s"]),
        "rate_range": f"{wording.count(row['images_per_s_min'])} to {wording.count(row['images_per_s_max'])}",
        "step_ms": step_ms,
        "step": wording.three_figures(step_ms),
        "floor": wording.three_figures(floor),
        "share": floor / step_ms,
        "tflop_per_s": vit_cost.flops(works) / step_ms / 1e9,
    }


def settings(row: pd.Series) -> str:
    """Return what distinguishes the cell from others of its model, dataset and batch size, in words."""
    step = [wording.FEATURES[name](row[name]) for name in wording.OF_THE_STEP]
    return ", ".join(filter(None, [row["loader"], *step, row["variant"]]))


def sentence(row: Mapping) -> str:
    """Return how near the fastest cell of a model comes to its floor."""
    what = f"{row['model']} on {row['dataset']} at batch {row['batch_size']}"
    return (
        f"{what}: its matrix products alone would take {row['floor']} ms a step. The highest median rate "
        f"({row['settings']}) is a step in {row['step']} ms (n = {row['n']}), of which that is "
        f"{wording.percent(row['share'])}; over the whole step its products run at "
        f"{row['tflop_per_s']:,.0f} TFLOP/s."
    )
