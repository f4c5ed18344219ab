"""Whether pipelines learn the same: how far their final losses lie apart, in a sentence."""

from collections.abc import Iterator

import pandas as pd

from gpufeed.analysis import tables

# Cells that train the same way up to the same last step.
SAME_LENGTH = ["epochs", "step_limit"]


def difference(cells: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """The largest difference of the final training loss between pipelines of one task, repeat by repeat.

    Repeats of the same number have the same seed, so the difference is not that of other seeds.
    epochs: as `records.read_epochs` makes it.
    """
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
    for rows in tables.tasks(cells):
        for _, ours in tables.pipelines(rows).groupby(SAME_LENGTH, dropna=False):
            losses = final.merge(ours[tables.IDENTITY], on=tables.IDENTITY)
            losses = losses[losses.groupby("repeat")["cell_id"].transform("nunique") > 1]
            if len(losses):
                yield losses
