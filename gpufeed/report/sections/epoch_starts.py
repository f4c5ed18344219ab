"""What the first batch of an epoch costs, for which nothing was prepared ahead."""

import pandas as pd

EPOCH_MEASURES = ["epoch_start_share", "within_epoch_images_per_s", "epoch_batches"]


def epoch_starts(records: pd.DataFrame, steps: pd.DataFrame | None) -> pd.DataFrame:
    """One row a repeat (columns: path and EPOCH_MEASURES), over its steps after warm-up.

    epoch_start_share: share of the wait that falls on the first step of an epoch; NaN if no epoch starts
    after warm-up or nothing waits. within_epoch_images_per_s: the rate without these steps.
    epoch_batches: steps of its longest epoch. steps: as `records.read_steps` makes it; None for none.
    """
    if steps is None or steps.empty:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in ["path", *EPOCH_MEASURES]})
    rows = steps.merge(records[["path", "warmup_steps"]].dropna(), on="path")
    by_epoch = rows.groupby(["path", "epoch"])["step"]
    rows = rows.assign(starts=rows["step"] == by_epoch.transform("min"), length=by_epoch.transform("size"))
    measures = [{"path": path, **_measures(ours)} for path, ours in rows.groupby("path", sort=False)]
    return pd.DataFrame(measures, columns=["path", *EPOCH_MEASURES])


def _measures(rows: pd.DataFrame) -> dict[str, float]:
    timed = rows[rows["step"] >= rows["warmup_steps"]]
    starts, within = timed[timed["starts"]], timed[~timed["starts"]]
    wait, seconds = timed["wait_ms"].sum(), within["total_ms"].sum() / 1e3
    return {
        "epoch_start_share": starts["wait_ms"].sum() / wait if len(starts) and wait > 0 else float("nan"),
        "within_epoch_images_per_s": within["images"].sum() / seconds if seconds > 0 else float("nan"),
        "epoch_batches": rows["length"].max(),
    }
