"""Claims of the notebook on pipelining and of the guide to hybrid pipelines, judged on the table of cells."""

import pandas as pd

from gpufeed.report import tables, wording
from gpufeed.report.load_records import grouped
from gpufeed.report.significance import standing
from gpufeed.report.verdicts import BASELINE, NEVER, Verdict, epoch_start, speed
from gpufeed.system.statistics import overlap

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
CLAIMS = ("1.5x - 3x faster", "use 4-8 workers", "the GPU never waits")
FASTER_FROM, FASTER_TO = 1.5, 3.0
WORKERS_FROM, WORKERS_TO = 4, 8
BATCH_CLAIM, BATCH_FROM, BATCH_TO = "batch size 128-256", 128, 256
CLAIMANTS = {"pipelining": "notebook", "hybrid_gpu": "guide"}  # whose claims an experiment judges
INTRODUCED = {  # who that is, for a reader who has never seen it
    "pipelining": "The notebook is a lesson on CPU/GPU pipelining that this experiment repeats: 500 images "
    "of 224 pixels in batches of 32, a small CNN, 0 against 2 worker processes, and a wait for the GPU after "
    "each phase of a step.",
    "hybrid_gpu": "The guide is a tutorial on hybrid CPU/GPU pipelines that this experiment follows: a "
    "ResNet-18 on CIFAR-10 in half precision under fastai, with brightness and noise by CuPy and Numba "
    "kernels.",
}


def judged(low: float, high: float, least: float, most: float) -> str:
    """Return HOLDS if low to high lies within least to most, FAILS if the two are disjoint, else OPEN."""
    if low >= least and high <= most:
        return HOLDS
    return OPEN if overlap(low, high, least, most) else FAILS


def of(experiment: str, cells: pd.DataFrame) -> list[Verdict]:
    """Return the verdicts on the claims that an experiment judges."""
    if experiment not in CLAIMANTS:
        return []
    return notebook_claims(cells) if experiment == "pipelining" else guide_claims(cells)


def notebook_claims(cells: pd.DataFrame) -> list[Verdict]:
    """Return a verdict on each claim of the notebook, for each machine and task of its two loaders.

    Step-synchronised and free-running cells are one task here.
    """
    done = tables.measured(cells)
    done = done[done["loader"].isin([BASELINE, "dataloader_workers"])]
    keys = [key for key in tables.SAME_TASK if key != "synchronise"]
    verdicts = []
    for _, rows in done.groupby(keys, dropna=False, sort=False):
        # free-running first: the subject of a verdict is how one trains
        rows = rows.sort_values("synchronise", kind="stable")
        subject = f"{wording.task(rows)}; {wording.machine(rows)}"
        for claim, judge in zip(CLAIMS, (_judge_speedup, _judge_workers, _judge_wait), strict=True):
            answer, sentence = judge(rows)
            verdicts.append(Verdict(subject, sentence, claim=claim, answer=answer))
    return verdicts


def _judge_speedup(rows: pd.DataFrame) -> tuple[str, str]:
    """Judge two workers over none, in both ways of running; a way that was not measured does not count."""
    found = {
        "free-running": _speedup(rows[rows["synchronise"] == "epoch"]),
        "waiting after every phase, as the notebook did": _speedup(rows[rows["synchronise"] == "step"]),
    }
    sentence = "; ".join(f"{how}: {words}" for how, (_, words) in found.items())
    judged = {answer for answer, _ in found.values() if answer}
    answer = next((answer for answer in (OPEN, FAILS, HOLDS) if answer in judged), OPEN)
    return answer, f"2 workers over 0, waits for data included. {wording.capital(sentence)}."


def _speedup(rows: pd.DataFrame) -> tuple[str | None, str]:
    """Return the speed-up of two workers over none, each in its fastest setting; None if not measured."""
    none, two = _fastest(rows[rows["workers"] == 0]), _fastest(rows[rows["workers"] == 2])
    if none is None or two is None:
        return None, f"{'0' if none is None else '2'} workers were not measured"
    found = standing(two, none)
    speeds = f"{wording.count(two['images_per_s'])} over {wording.count(none['images_per_s'])} images/s"
    if min(none["n_repeats"], two["n_repeats"]) < 2:
        return OPEN, f"{wording.ratio(found.ratio.median)} ({speeds}, n = 1: no range)"
    return judged(*found.bounds, FASTER_FROM, FASTER_TO), f"{found.words}, {speeds}"


def _fastest(rows: pd.DataFrame) -> pd.Series | None:
    return rows.loc[rows["images_per_s"].idxmax()] if len(rows) else None


def _judge_workers(rows: pd.DataFrame) -> tuple[str, str]:
    sweep = _sweep(rows[rows["synchronise"] == "epoch"])
    counts = sweep["workers"].astype(int).tolist()
    if not counts:
        return OPEN, "No free-running cell was measured."
    measured = f"{', '.join(map(str, counts))} workers"
    if not pd.isna(cores := sweep["cores"].iloc[0]):
        measured += f" on {wording.plural(int(cores), 'CPU core')}"
    return _judge_sweep(sweep, "workers", WORKERS_FROM, WORKERS_TO, measured)


def _judge_sweep(sweep: pd.DataFrame, column: str, low: int, high: int, measured: str) -> tuple[str, str]:
    """Judge whether the smallest value that is as fast as the fastest lies between low and high.

    sweep: a row a value of `column`, all else equal. measured: the values in words.
    """
    best, values = _fastest(sweep), sweep[column].astype(int).tolist()
    enough = min(int(row[column]) for _, row in sweep.iterrows() if not standing(best, row).ahead)
    sentence = (
        f"Measured with {measured}, all else equal. The highest throughput came with {int(best[column])}: "
        f"{speed(best)}; the smallest that is not shown to be slower is {enough}. {epoch_start(best)}"
    ).rstrip()
    if (sweep["n_repeats"] < 2).any():
        return OPEN, f"{sentence} One repeat gives no range to judge it by."
    if not (min(values) < low and any(low <= value <= high for value in values) and max(values) > high):
        needed = f"values below {low}, of {low} to {high} and above {high}"
        return OPEN, f"{sentence} To judge it, {needed} are needed."
    return (HOLDS if low <= enough <= high else FAILS), sentence


def guide_claims(cells: pd.DataFrame) -> list[Verdict]:
    """Return a verdict on the guide's batch size for each machine, by its sweep with the most sizes."""
    pipelines = tables.pipelines(tables.measured(cells))
    equal = [name for name in tables.IDENTITY + tables.SETTINGS if name not in ("cell_id", "batch_size")]
    sweeps = [rows for _, rows in pipelines.groupby(equal, dropna=False, sort=False) if len(rows) > 1]
    verdicts = []
    for machine, found in grouped(sweeps, wording.machine).items():
        sweep = max(found, key=len).sort_values("batch_size")
        first, sizes = sweep.iloc[0], ", ".join(map(str, sweep["batch_size"]))
        with_ = f"augment {first['augment']}, {first['precision']}, trainer {first['trainer']}"
        measured = f"{sizes} images a batch ({first['loader']}, {with_})"
        answer, sentence = _judge_sweep(sweep, "batch_size", BATCH_FROM, BATCH_TO, measured)
        subject = f"{first['model']} on {first['dataset']}; {machine}"
        verdicts.append(Verdict(subject, sentence, claim=BATCH_CLAIM, answer=answer))
    return verdicts


def _sweep(free: pd.DataFrame) -> pd.DataFrame:
    """Return one row a worker count: none, and the others at the settings that the sweep has in common."""
    swept = pd.concat([free[free["workers"] == 0], tables.held(free[free["workers"] > 0], "loader")])
    # what is not a setting of the workers (the number of steps) may still differ: the most repeats count
    swept = swept.sort_values(["n_repeats", "images_per_s"], ascending=False).drop_duplicates("workers")
    return swept.sort_values("workers")


def _judge_wait(rows: pd.DataFrame) -> tuple[str, str]:
    best = _fastest(rows[rows["synchronise"] == "epoch"])
    best = _fastest(rows) if best is None else best
    if best["device"] != "cuda":
        return OPEN, f"Measured on the {best['device']}, where no GPU can wait."
    low, high = best["wait_share_min"], best["wait_share_max"]
    waited = wording.percent(best["wait_share"])
    if best["n_repeats"] > 1:
        waited += f" (range {wording.percent(low)} to {wording.percent(high)})"
    workers = wording.plural(int(best["workers"]), "worker")
    sentence = (
        f"With the fastest setting ({workers}, {speed(best)}) the GPU had nothing to train on for {waited} "
        f"of the time (below {wording.percent(NEVER)} would count as never). {epoch_start(best)}"
    ).rstrip()
    if best["n_repeats"] < 2:
        return OPEN, f"{sentence} One repeat gives no range to judge it by."
    if high < NEVER:
        return HOLDS, sentence
    return (FAILS if low >= NEVER else OPEN), sentence
