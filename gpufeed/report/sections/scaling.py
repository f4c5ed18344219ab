"""Scaling: what the same training gains by more GPUs, or more processes on the CPU.

Each has a batch of its own, so the batch of a step grows with them (weak scaling), and an epoch has the fewer
steps. Speed-up: images per second, of whole epochs, over those of the fewest, with the 95 % interval or the
range of `standing`. Efficiency: the speed-up over how many times as many they are.
"""

import pandas as pd

from gpufeed.report import tables, wording
from gpufeed.report.significance import standing

APART = ("devices", "nodes", "cores")  # more GPUs may have more cores beside them, which the rows tell
SERIES = [column for column in tables.IDENTITY if column != "cell_id"]
SERIES += ["cores_asked", *(setting for setting in tables.SETTINGS if setting not in APART)]
NAMED = [feature for feature in wording.FEATURES if feature not in APART]


def section(cells: pd.DataFrame) -> list[dict]:
    """Return title, sentence and rows of each training that ran on several numbers of devices.

    cells: of one experiment, as `tables.cells` makes them; one that had to take a smaller batch than it
    asked for is left out. Rows ascend; the first is what others are over.
    """
    rows = tables.measured(cells)
    rows = rows[rows["batch_size"] == rows["batch_size_asked"]]
    rows = rows.assign(ranks=rows["devices"] * rows["nodes"]).sort_values(["ranks", "nodes", "cell_id"])
    groups = [group for _, group in rows.groupby(SERIES, dropna=False, sort=False)]
    groups = [group for group in groups if group["ranks"].nunique() > 1]
    names = wording.labels(rows.loc[[group.index[0] for group in groups]], NAMED, unique=False)
    return [described(group, names[group.index[0]]) for group in groups]


def described(rows: pd.DataFrame, name: str) -> dict:
    """Return one training's title, sentence and rows. name: of its pipeline."""
    first = rows.iloc[0]
    found = [scaled(row, first) for _, row in rows.iterrows()]
    task = wording.task(rows.iloc[:1].assign(devices=1, nodes=1))  # how many they are, the rows tell
    return {
        "title": f"{name}; {task}; {wording.machine(rows)}",
        "sentence": sentence(found),
        "rows": found,
    }


def scaled(row: pd.Series, first: pd.Series) -> dict:
    """Return a number of devices beside the fewest: numbers, and how they are said."""
    times = row["ranks"] / first["ranks"]
    found = {
        "devices": said(row),
        "cores": wording.count(row["cores"]),
        "images_a_step": wording.count(row["batch_size"] * row["ranks"]),
        "rate": wording.count(row["images_per_s"]),
        "rate_range": f"{wording.count(row['images_per_s_min'])} to {wording.count(row['images_per_s_max'])}",
        "n": int(row["n_repeats"]),
    }
    if times == 1:
        return found | {"speed_up": None, "efficiency": None, "words": "", "efficiency_words": ""}
    side = standing(row, first)
    found |= {"speed_up": side.ratio.median, "efficiency": side.ratio.median / times, "words": side.words}
    share = wording.tenths(found["efficiency"])
    if side.ratio.n > 1:
        share += f" ({wording.ends(*(bound / times for bound in side.bounds))})"
    return found | {"efficiency_words": share}


def said(row: pd.Series) -> str:
    """Return such as `4 GPUs`, `2 processes` on the CPU, `8 GPUs on 2 nodes`."""
    noun = ("GPU", "GPUs") if row["device"] == "cuda" else ("process", "processes")
    of_nodes = f" on {int(row['nodes'])} nodes" if row["nodes"] > 1 else ""
    return f"{wording.plural(int(row['ranks']), *noun)}{of_nodes}"


def sentence(rows: list[dict]) -> str:
    """Return what each number of devices gains over the fewest, most first, and the cores if they differ."""
    gains = [
        f"{row['devices']} train {row['words']} the images/s, an efficiency of {row['efficiency_words']}"
        for row in reversed(rows)
        if row["words"]
    ]
    cores = {row["cores"] for row in rows}
    beside = f" CPU cores of a node beside them: {wording.listing(row['cores'] for row in rows)}."
    return f"Beside {rows[0]['devices']}, {'; '.join(gains)}.{beside if len(cores) > 1 else ''}"
