"""Whether pipelines, and forms of the activation, learn the same: how far their final losses lie apart."""

import itertools
import json
from collections.abc import Iterator

import pandas as pd

from gpufeed.report import tables, wording

# Cells that train the same way up to the same last step.
SAME_LENGTH = ["epochs", "step_limit"]
ACTIVATION = "model.activation="  # the override
# The same task, whatever the activation of the model; `rest` is added by `tasks`.
SAME_TASK = [column if column != "overrides" else "rest" for column in tables.SAME_TASK]
# What else than its activation tells a cell from others of its task.
SAME_PIPELINE = [
    "loader", "workers", "prefetch_factor", "pin_memory", "persistent_workers", "augment", "channels_last",
    "cuda_graphs", "compile",
]  # fmt: skip


def tasks(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """As `tables.tasks` of all cells with a finished repeat, but those that differ in the model's activation
    are of one task.

    activation: its name, empty for a model that has none. rest: the overrides without it. variant, which
    names the task, is without it too where a task has several.
    """
    trained = tables.trained(cells)
    trained["activation"] = [activation_of(hyper) for hyper in trained["hyper"]]
    trained["rest"] = [without_activation(overrides) for overrides in trained["overrides"]]
    groups = [rows for _, rows in trained.groupby(SAME_TASK, dropna=False, sort=False)]
    for rows in sorted(groups, key=lambda rows: rows["synchronise"].iloc[0] != "epoch"):
        several = rows["activation"].nunique() > 1
        yield rows.assign(variant=rows["variant"].map(without_activation)) if several else rows


def activation_of(hyper: str) -> str:
    """The activation in a cell's hyper-parameters (JSON)."""
    return json.loads(hyper).get("model", {}).get("activation", "")


def without_activation(overrides: str) -> str:
    """`a; b` without the one that names the activation."""
    return "; ".join(text for text in overrides.split("; ") if text and not text.startswith(ACTIVATION))


def difference(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """What the final training losses say, in sentences. epochs: as `records.read_epochs` makes it.

    Repeats of the same number have the same seed, so their difference is not that of other seeds.
    """
    return f"{between_pipelines(cells, epochs)} {between_activations(cells, epochs)}".rstrip()


def between_pipelines(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """The largest difference between pipelines of one task, repeat by repeat."""
    groups = list(_comparable(cells, final_losses(epochs)))
    if not groups:
        return "No two pipelines trained equally long in the same repeat, so their losses are not compared."
    furthest = max(groups, key=lambda rows: _widest(rows, "repeat"))
    sentence = (
        "The largest difference of the final loss between pipelines of one task, in repeats with the same "
        f"seed, is {_widest(furthest, 'repeat'):.2g}"
    )
    if furthest["repeat"].nunique() < 2:
        return f"{sentence}."
    apart = _widest(furthest, "cell_id")
    return f"{sentence}; there, repeats of one pipeline, whose seeds differ, lie up to {apart:.2g} apart."


def between_activations(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """Which two activations differ by more than two seeds do; empty where no pipeline has two of them."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for pair, apart, seeds in _pairs(cells, final_losses(epochs)):
        if pair not in worst or apart - seeds > worst[pair][0] - worst[pair][1]:
            worst[pair] = apart, seeds
    if not worst:
        return ""
    parts = [f"{a} and {b} {apart:.2g} ({seeds:.2g})" for (a, b), (apart, seeds) in worst.items()]
    sentence = (
        "How far the final losses of two activations lie apart in one pipeline with one seed, and in "
        f"brackets how far those of one activation with two seeds do: {wording.listing(parts)}."
    )
    beyond = [f"{a} and {b}" for (a, b), (apart, seeds) in worst.items() if apart > seeds]
    if not beyond:
        return f"{sentence} No two differ by more than two seeds do."
    return f"{sentence} {'; '.join(beyond)}: they differ by more than two seeds do."


def _pairs(cells: pd.DataFrame, final: pd.DataFrame) -> Iterator[tuple[tuple[str, str], float, float]]:
    """(two activations, how far apart they are, how far two seeds are), in each pipeline that can tell."""
    for rows in tasks(cells):
        for _, same in tables.pipelines(rows).groupby([*SAME_PIPELINE, *SAME_LENGTH], dropna=False):
            losses = final.merge(same[[*tables.IDENTITY, "activation"]], on=tables.IDENTITY)
            for pair in itertools.combinations(sorted(set(losses["activation"])), 2):
                ours = losses[losses["activation"].isin(pair)]
                both = ours[ours.groupby("repeat")["activation"].transform("nunique") == 2]
                if both["repeat"].nunique() > 1:
                    yield pair, _widest(both, "repeat"), _widest(ours, "activation")


def _widest(rows: pd.DataFrame, key: str) -> float:
    """The widest range of the loss among rows of the same `key`."""
    losses = rows.groupby(key)["train_loss"]
    return float((losses.max() - losses.min()).max())


def final_losses(epochs: pd.DataFrame) -> pd.DataFrame:
    """The last epoch of every repeat that has more than one."""
    many = epochs[epochs.groupby("path")["epoch"].transform("nunique") > 1]
    return many.sort_values("epoch").drop_duplicates("path", keep="last").dropna(subset=["train_loss"])


def _comparable(cells: pd.DataFrame, final: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Final losses, a frame for each task and length with a repeat that two pipelines share."""
    for rows in tables.tasks(cells, tables.trained):
        for _, ours in tables.pipelines(rows).groupby(SAME_LENGTH, dropna=False):
            losses = final.merge(ours[tables.IDENTITY], on=tables.IDENTITY)
            losses = losses[losses.groupby("repeat")["cell_id"].transform("nunique") > 1]
            if len(losses):
                yield losses
