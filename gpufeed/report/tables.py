"""The two tables of every experiment: one row a cell, and one row a batch."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import pandas as pd

from gpufeed.core.cells import without_later
from gpufeed.core.registry import LOADERS
from gpufeed.core.repeats import is_disturbed
from gpufeed.report import wording
from gpufeed.report.load_records import PHASES, STEP_COLUMNS, nested, timed
from gpufeed.report.significance import standing
from gpufeed.system.statistics import BUSY, FAR, FEW_PERCENT, WIDE, summarise

EPOCH_MEASURES = ["epoch_start_share", "within_epoch_images_per_s", "epoch_batches"]
# A longer epoch of N images takes at least its start + N / the steady rate. Of a cell: medians over repeats.
RATES = ("steady_images_per_s", "epoch_start_s")
FEWEST_STEPS = 8  # of an epoch: the first half of fewer is over before what was loaded ahead is used up


def epoch_starts(records: pd.DataFrame, steps: pd.DataFrame | None) -> pd.DataFrame:
    """Return one row a repeat (columns: path, EPOCH_MEASURES and RATES), over its steps after warm-up.

    epoch_start_share: share of the wait that falls on the first step of an epoch; NaN if no epoch starts
    after warm-up or nothing waits. within_epoch_images_per_s: the rate without these steps.
    epoch_batches: steps of its longest epoch. RATES: see `two_numbers`. steps: as `read_steps` makes it; None
    for none.
    """
    if steps is None or steps.empty:
        return pd.DataFrame(columns=["path", *EPOCH_MEASURES, *RATES], dtype=object)
    rows = steps.merge(records[["path", "warmup_steps"]].dropna(), on="path")
    by_epoch = rows.groupby(["path", "epoch"])["step"]
    rows = rows.assign(starts=rows["step"] == by_epoch.transform("min"), length=by_epoch.transform("size"))
    counted = rows[rows["step"] >= rows["warmup_steps"]]
    first, later = (counted[counted["starts"] == starts].groupby("path") for starts in (True, False))
    wait_ms, within_s = counted.groupby("path")["wait_ms"].sum(), later["total_ms"].sum() / 1e3
    measures = {
        "epoch_start_share": (first["wait_ms"].sum() / wait_ms).where(wait_ms > 0),
        "within_epoch_images_per_s": (later["images"].sum() / within_s).where(within_s > 0),
        "epoch_batches": rows.groupby("path")["length"].max(),
    }
    return pd.DataFrame(measures).join(two_numbers(rows)).rename_axis("path").reset_index()


def two_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return RATES by path: the rate in the later half of each epoch, and the cost of its start.

    In the first half batches that were loaded ahead may still hide the wait, and workers that start may still
    lengthen it. In the later half batches that workers made ahead may be used up. epoch_start_s: the seconds
    of an epoch less those that its images take at the steady rate, median over the epochs that began after
    warm-up. NaN without such a one; both, where epochs have fewer
    than FEWEST_STEPS. A last epoch that was cut short counts if it has half of its steps.
    """
    longest = rows.groupby("path")["length"].transform("max")
    long_enough = (rows["length"] >= FEWEST_STEPS) & (rows["length"] >= longest / 2)
    rows = rows[long_enough & (rows["step"] >= rows["warmup_steps"])].sort_values(["path", "step"])
    epoch, both = rows.groupby(["path", "epoch"])["starts"], ["images", "total_ms"]
    late = rows[epoch.cumcount() + 1 > epoch.transform("size") / 2].groupby("path")[both].sum()
    rate = late["images"] / (late["total_ms"] / 1e3)
    begun = rows[epoch.transform("any")].groupby(["path", "epoch"])[both].sum()
    at_rate_s = begun["images"] / rate.reindex(begun.index, level="path")
    start_s = (begun["total_ms"] / 1e3 - at_rate_s).groupby("path").median()
    return pd.DataFrame({"steady_images_per_s": rate, "epoch_start_s": start_s})


TAKEN = {"j_per_1000_images": "gpu", "cpu_s_per_1000_images": "host"}  # measure -> its part of the telemetry
GROWN = ("host", "gpu_allocated", "gpu_process")  # kinds of memory


def with_telemetry(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records with measures from their telemetry; NaN or False where there is none.

    TAKEN: joules of the GPU and CPU seconds of the process tree. accompanied: whether another process had a
    context on the GPU. disturbed: whether other processes used the cores. leaking: whether a memory grew as
    one that leaks does.
    """
    each = records["telemetry"]
    taken = {name: [nested(one, part, name) for one in each] for name, part in TAKEN.items()}
    leaks = [[nested(one, "growth", kind, "suspected_leak_mib") for kind in GROWN] for one in each]
    return records.assign(
        **{name: pd.Series(values, records.index, dtype=float) for name, values in taken.items()},
        accompanied=[(nested(one, "gpu", "other_processes", "max") or 0) > 0 for one in each],
        disturbed=list(map(is_disturbed, each)),
        leaking=[any(mib is not None for mib in kinds) for kinds in leaks],
    )


# Numbers from two GPU models, stacks or torch versions never share a row, nor those of two batches, of which
# the smaller one fitted into memory.
IDENTITY = ["experiment", "cell_id", "hardware", "stack", "torch", "batch_size"]
SETTINGS = [
    "dataset", "loader", "workers", "prefetch_factor", "pin_memory", "persistent_workers", "decoder",
    "hw_decoder_load", "augment", "recipe", "model", "trainer", "precision", "channels_last",
    "cuda_graphs", "compile", "synchronise", "epochs", "step_limit", "overrides", "hyper", "device",
    "devices", "nodes", "cores",
]  # fmt: skip
MEASURES = [
    "wait_share", *PHASES, "epoch_s", "first_batch_s", "setup_s", "top1", "peak_gpu_mib", "peak_host_mib",
    "fell_back_share", *EPOCH_MEASURES, *TAKEN,
]  # fmt: skip
RANGED = ("images_per_s", "wait_share", "epoch_s", *RATES)
MARKS = ("accompanied", "disturbed", "measured_again", "leaking")  # of repeats, which a cell counts
THROUGHPUT = ["images_per_s", *(f"images_per_s_{name}" for name in ("min", "max", "ci95_low", "ci95_high"))]
# What is known of a cell's ceiling: rate with range, repeats, and its time on the device.
CEILING = [
    "ceiling_images_per_s", "ceiling_images_per_s_min", "ceiling_images_per_s_max", "ceiling_n_repeats",
    "ceiling_train_ms",
]  # fmt: skip
CELL_COLUMNS = [
    *IDENTITY, *SETTINGS, "cores_asked", "status", "sentence", "n_repeats", *THROUGHPUT,
    *(f"{name}{end}" for name in RATES for end in ("", "_min", "_max")), "epoch_start_n", *CEILING,
    "ceiling_share", "against_ceiling", *MEASURES, "wait_share_min", "wait_share_max",
    "epoch_s_min", "epoch_s_max", "fell_back_to", "accompanied", "disturbed", "others_cpu_share_max",
    "measured_again", "commit", "variant",
]  # fmt: skip
WHOLE = (
    "workers", "prefetch_factor", "batch_size", "epochs", "step_limit", "cores", "n_repeats", "epoch_batches",
)  # fmt: skip
# What a row has beside the columns of a file.
UNWRITTEN = ["repeats", "ceiling_repeats", "batch_size_asked", "images_from", "settings", "leaking"]
AS_ASKED = ("batch_size_asked", "cores_asked", "settings")
# Of each timed repeat, what a comparison needs (see `standing`); no column of a file.
REPEAT = ["repeat", "started_at", "images_per_s", "gpu", "machine", "node"]
# What a task and a ceiling have in common.
SAME_WORK = [
    "experiment", "dataset", "model", "trainer", "precision", "batch_size", "synchronise", "overrides",
    "device", "devices", "nodes", "cores_asked", "hardware", "stack", "torch",
]  # fmt: skip
# The same work on the device, whatever brings the samples: what `replay` bounds.
SAME_CEILING = [*SAME_WORK, "augment", "channels_last", "cuda_graphs", "compile", "hyper"]
# The same training task: pipelines within it compete. `augmented` is added by `tasks`.
SAME_TASK = [*SAME_WORK, "augmented", "recipe"]
BATCH_COLUMNS = {name: f"{name.removesuffix('_ms').title()}(ms)" for name in PHASES[:4]}


def cells(records: pd.DataFrame, steps: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row a cell and machine (CELL_COLUMNS), with medians over its finished repeats.

    steps: from `read_steps`; without them EPOCH_MEASURES (see `epoch_starts`) are NaN. Times and n_repeats
    are of the timed repeats: one that was resumed has no times. images_per_s has min, max and, from six
    repeats on, a 95 % interval.

    variant: the overrides that not all cells of its experiment share. cores_asked: those that the cell was
    pinned to, 0 for all. Of the timed repeats, accompanied counts those with another process on the GPU,
    disturbed those in which other processes used more of the cores than `repeats.DISTURBED`
    (others_cpu_share_max: the most in any), measured_again those that were measured twice. ceiling_share:
    images_per_s over that of the `replay` cells with the same work on the device, NaN without one.
    against_ceiling: see the function of that name; empty for ceilings, and without one.

    UNWRITTEN: repeats, a table of the timed repeats (REPEAT); ceiling_repeats, that of the cell's ceiling, or
    None; batch_size_asked, larger than batch_size if it did not fit; settings, whether the loader's were
    tuned; leaking, in how many repeats a memory seemed to leak.
    """
    records = with_telemetry(records.merge(epoch_starts(records, steps), on="path", how="left"))
    groups = records.groupby(IDENTITY, dropna=False, sort=False)
    table = pd.DataFrame([_cell_row(rows) for _, rows in groups], columns=[*CELL_COLUMNS, *UNWRITTEN])
    table = table.astype(dict.fromkeys(WHOLE, "Int64"))
    table["variant"] = ""
    for _, rows in table.groupby("experiment", sort=False):
        shared = shared_overrides(rows)
        table.loc[rows.index, "variant"] = [
            "; ".join(text for text in _split(overrides) if text not in shared)
            for overrides in rows["overrides"]
        ]
    return _with_ceiling(table)


def shared_overrides(cells: pd.DataFrame) -> list[str]:
    """Return the overrides that all cells have, in their order."""
    each = [_split(overrides) for overrides in cells["overrides"].dropna()]
    return [text for text in each[0] if all(text in others for others in each)] if each else []


def _split(overrides: object) -> list[str]:
    """Return the overrides of a cell; none for a damaged record."""
    return overrides.split("; ") if isinstance(overrides, str) and overrides else []


def _cell_row(rows: pd.DataFrame) -> dict:
    done = rows[rows["status"] == "done"]
    first, counted = (done if len(done) else rows).iloc[0], timed(done)
    row = {column: first[column] for column in [*IDENTITY, *SETTINGS, *AS_ASKED]}
    row |= {measure: pd.to_numeric(done[measure]).median() for measure in MEASURES}
    for name in RANGED:
        found = summarise(done[name])
        row |= {name: found["median"]} | {f"{name}_{end}": value for end, value in found.items()}
    return row | {
        "n_repeats": row["images_per_s_n"],
        "epoch_start_n": row["epoch_start_s_n"],
        "epoch_batches": pd.to_numeric(done["epoch_batches"]).max(),  # a whole number, of any repeats
        "status": _status(rows["status"]),
        "sentence": "; ".join(rows["sentence"].dropna().unique()),
        "fell_back_to": " or ".join(name for name in done["fell_back_to"].dropna().unique() if name),
        "images_from": " or ".join(words for words in done["images_from"].dropna().unique() if words),
        "repeats": counted[REPEAT],
        **{name: int(counted[name].sum()) for name in MARKS},
        "others_cpu_share_max": pd.to_numeric(counted["others_cpu_share"]).max(),
        "commit": wording.commits(rows),
    }


def _status(statuses: pd.Series) -> str:
    """Return `done` or, if only some repeats finished, `partly`; else the worst other status."""
    if (statuses == "done").all():
        return "done"
    if (statuses == "done").any():
        return "partly"
    return next(status for status in ("failed", "unusable", "skipped") if (statuses == status).any())


def is_ceiling(loader: object) -> bool:
    """Return whether a loader is a bound for the others, not a pipeline; False for unknown names."""
    return loader in LOADERS and LOADERS[loader].ceiling


def _with_ceiling(table: pd.DataFrame) -> pd.DataFrame:
    alike = table.assign(hyper=table["hyper"].map(as_in_names))
    replays = alike[table["loader"].map(is_ceiling).astype(bool) & table["images_per_s"].notna()]
    bounds = {key: _ceiling(rows) for key, rows in replays.groupby(SAME_CEILING, dropna=False)}
    own = [bounds.get(key, {}) for key in alike[SAME_CEILING].itertuples(index=False, name=None)]
    table[CEILING] = pd.DataFrame(own, columns=CEILING, index=table.index).astype(float)
    table["ceiling_n_repeats"] = table["ceiling_n_repeats"].astype("Int64")
    table["ceiling_repeats"] = [bound.get("repeats") for bound in own]
    table["ceiling_share"] = table["images_per_s"] / table["ceiling_images_per_s"]
    table["against_ceiling"] = [
        against_ceiling(row, bound) if bound and not is_ceiling(row["loader"]) else ""
        for bound, (_, row) in zip(own, table.iterrows(), strict=True)
    ]
    return table


@cache
def as_in_names(hyper: object) -> object:
    """Return hyper-parameters (JSON) as cell ids have them, without later fields at their old value."""
    if not isinstance(hyper, str):
        return hyper
    return json.dumps(without_later({"hyper": json.loads(hyper)}), sort_keys=True)


def _ceiling(replays: pd.DataFrame) -> dict:
    """Return CEILING and `repeats` of the `replay` cells with the same work, however many steps each has."""
    return {
        "ceiling_images_per_s": replays["images_per_s"].median(),
        "ceiling_images_per_s_min": replays["images_per_s_min"].min(),
        "ceiling_images_per_s_max": replays["images_per_s_max"].max(),
        "ceiling_n_repeats": replays["n_repeats"].sum(),
        "ceiling_train_ms": replays["train_ms"].median(),
        "repeats": pd.concat(replays["repeats"].tolist()),
    }


def against_ceiling(row: pd.Series, ceiling: Mapping) -> str:
    """Compare a pipeline with its ceiling, in a word or two; empty without a finished repeat.

    By the 95 % interval of their ratio, or without one by their ranges (see `standing`): `below` if all of it
    is below 1. `above`, by FEW_PERCENT at most, and `disturbed`, by more, if all of it is above 1, and
    both have two repeats or more. `replay` does the same work without any input, so that in a sound run no
    pipeline is above. `disturbed` also if the medians say more than FAR above, however few repeats there are.
    BUSY: the bounds are more than WIDE apart, so that a 1 among them says nothing. `not distinguishable`:
    anything else.
    """
    if pd.isna(row["images_per_s"]):
        return ""
    ratio = standing(row, ceiling).ratio
    low, high = ratio.log_interval or ratio.log_range
    if high < 0:
        return "below"
    above = row["ceiling_share"] - 1
    settled = low > 0 and ratio.n > 1
    if above > (FEW_PERCENT if settled else FAR):
        return "disturbed"
    if high - low > math.log(WIDE):
        return BUSY
    return "above" if settled else "not distinguishable"


def trained(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with a finished repeat, and `augmented`: what changes the pixels, in words."""
    done = cells[cells["status"].isin(["done", "partly"])].copy()
    done["augmented"] = done["augment"].map(wording.augmented)
    return done


def measured(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of `trained` that have a rate: one repeat or more ran through in one process."""
    return trained(cells[cells["images_per_s"].notna()])


def tasks(
    cells: pd.DataFrame,
    which: Callable[[pd.DataFrame], pd.DataFrame] = measured,
    same: Sequence[str] = SAME_TASK,
) -> Iterator[pd.DataFrame]:
    """Yield the measured cells task by task: rows of one DataFrame differ in their pipeline alone.

    Free-running tasks come before step-synchronised ones: they are how one trains. which: picks the cells, as
    `measured` or `trained`. same: the columns that one task has in common.
    """
    groups = [rows for _, rows in which(cells).groupby([*same], dropna=False, sort=False)]
    yield from sorted(groups, key=lambda rows: rows["synchronise"].iloc[0] != "epoch")


def pipelines(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that are pipelines, ceilings left out."""
    return cells[~cells["loader"].map(is_ceiling).astype(bool)]


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a task with `label`, fastest first; `bound` ones, the ceilings, come last."""
    rows = rows.assign(label=wording.labels(rows), bound=rows["loader"].map(is_ceiling).astype(bool))
    return rows.sort_values(["bound", "images_per_s"], ascending=[True, False])


SWEPT = ("loader", "prefetch_factor", "pin_memory", "persistent_workers")


def held(rows: pd.DataFrame, setting: str) -> pd.DataFrame:
    """Return the rows in which every setting of SWEPT but `setting` has its most frequent value."""
    for other in SWEPT:
        if other != setting and rows[other].notna().any():
            rows = rows[rows[other] == rows[other].mode().iloc[0]]
    return rows


def waited_for(records: pd.DataFrame, steps: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the steps of the cells with `synchronise: step`, up to their step limit.

    keys: columns of the records that each step gets.
    """
    synchronised = timed(records[records["synchronise"] == "step"])
    phases = steps[["path", *STEP_COLUMNS[3:]]]
    rows = synchronised[["path", "step_limit", *keys]].merge(phases, on="path")
    # a short cell runs more steps than `steps` to be timed long enough; the table has only the first `steps`
    place = rows.sort_values(["epoch", "step"]).groupby("path").cumcount()
    limit = rows["step_limit"].astype("float64")  # NaN without one
    return rows[~(place.reindex(rows.index) >= limit)]


def batches(records: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the medians over repeats of each batch, for cells in which every phase was waited for.

    Of a cell with a step limit, no batches beyond it.

    Columns: experiment, loader, workers, prefetch_factor, pin_memory, persistent_workers, cell_id, hardware,
    stack, torch, batch_size, epoch, batch (counted from 1), n_repeats, images, Load(ms), Transfer(ms),
    Train(ms), Total(ms).
    """
    keys = ["experiment", "loader", "workers", *SWEPT[1:], *IDENTITY[1:]]
    columns = [*keys, "epoch", "batch", "n_repeats", "images", *BATCH_COLUMNS.values()]
    rows = waited_for(records, steps, keys)
    if rows.empty:
        return pd.DataFrame(columns=columns)
    groups = rows.groupby([*keys, "epoch", "step"], dropna=False)
    table = groups[["images", *BATCH_COLUMNS]].median()
    table["n_repeats"] = groups.size()
    table = table.reset_index().rename(columns=BATCH_COLUMNS)
    in_cell = table.groupby(IDENTITY, dropna=False)
    return table.assign(batch=in_cell.cumcount() + 1, images=table["images"].astype(int))[columns]
