"""The three claims of the pipelining notebook, judged on the table of cells."""

from collections.abc import Iterator

import pandas as pd

from gpufeed.analysis import tables, wording
from gpufeed.analysis.statistics import overlap
from gpufeed.analysis.verdicts import BASELINE, NEVER, Verdict, epoch_start, speed, touch

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
CLAIMS = ("1.5x - 3x faster", "use 4-8 workers", "the GPU never waits")
FASTER_FROM, FASTER_TO = 1.5, 3.0
WORKERS_FROM, WORKERS_TO = 4, 8


def notebook_claims(cells: pd.DataFrame) -> list[Verdict]:
    """A verdict on each claim of the pipelining notebook, for each machine and task of its two loaders."""
    verdicts = []
    for rows in _notebook_tasks(cells):
        subject = f"{wording.task(rows)}; {wording.machine(rows)}"
        for claim, judge in zip(CLAIMS, (_judge_speedup, _judge_workers, _judge_wait), strict=True):
            answer, sentence = judge(rows)
            verdicts.append(Verdict(subject, sentence, claim=claim, answer=answer))
    return verdicts


def _notebook_tasks(cells: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Tasks as the notebook's: its two loaders, step-synchronised and free-running cells together."""
    done = tables.measured(cells)
    done = done[done["loader"].isin([BASELINE, "dataloader_workers"])]
    keys = [key for key in tables.SAME_TASK if key != "synchronise"]
    for _, rows in done.groupby(keys, dropna=False, sort=False):
        # free-running first: the subject of a verdict is how one trains
        yield rows.sort_values("synchronise", kind="stable")


def _judge_speedup(rows: pd.DataFrame) -> tuple[str, str]:
    """Both ways of running must settle it; a way that was not measured has no say."""
    found = {
        "free-running": _speedup(rows[rows["synchronise"] == "epoch"]),
        "waiting after every phase, as the notebook did": _speedup(rows[rows["synchronise"] == "step"]),
    }
    sentence = "; ".join(f"{how}: {words}" for how, (_, words) in found.items())
    judged = {answer for answer, _ in found.values() if answer}
    answer = next((answer for answer in (OPEN, FAILS, HOLDS) if answer in judged), OPEN)
    return answer, f"2 workers over 0, waits for data included. {sentence[0].upper()}{sentence[1:]}."


def _speedup(rows: pd.DataFrame) -> tuple[str | None, str]:
    """The speed-up of two workers over none, each in its fastest setting; None if it was not measured."""
    none, two = _fastest(rows[rows["workers"] == 0]), _fastest(rows[rows["workers"] == 2])
    if none is None or two is None:
        return None, f"{'0' if none is None else '2'} workers were not measured"
    times = two["images_per_s"] / none["images_per_s"]
    speeds = f"{wording.count(two['images_per_s'])} over {wording.count(none['images_per_s'])} images/s"
    if min(none["n_repeats"], two["n_repeats"]) < 2:
        return OPEN, f"{wording.ratio(times)} ({speeds}, n = 1: no range)"
    low = two["images_per_s_min"] / none["images_per_s_max"]
    high = two["images_per_s_max"] / none["images_per_s_min"]
    n = f"n = {int(min(none['n_repeats'], two['n_repeats']))}"
    words = f"{wording.ratio(times)} (range {wording.ratio(low)} to {wording.ratio(high)}, {speeds}, {n})"
    if low >= FASTER_FROM and high <= FASTER_TO:
        return HOLDS, words
    return (OPEN if overlap(low, high, FASTER_FROM, FASTER_TO) else FAILS), words


def _fastest(rows: pd.DataFrame) -> pd.Series | None:
    return rows.loc[rows["images_per_s"].idxmax()] if len(rows) else None


def _judge_workers(rows: pd.DataFrame) -> tuple[str, str]:
    sweep = _sweep(rows[rows["synchronise"] == "epoch"])
    counts = sweep["workers"].astype(int).tolist()
    if not counts:
        return OPEN, "No free-running cell was measured."
    best = _fastest(sweep)
    enough = min(int(row["workers"]) for _, row in sweep.iterrows() if touch(row, best))
    sentence = (
        f"Measured with {', '.join(map(str, counts))} workers{_cores(best)}, all else equal. The highest "
        f"throughput came with {int(best['workers'])}: {speed(best)}; the smallest count whose range "
        f"overlaps it is {enough}. {epoch_start(best)}"
    ).rstrip()
    if (sweep["n_repeats"] < 2).any():
        return OPEN, f"{sentence} One repeat gives no range to judge it by."
    if not _spans_the_claim(counts):
        return OPEN, f"{sentence} To judge it, counts below 4, of 4 to 8 and above 8 are needed."
    return (HOLDS if WORKERS_FROM <= enough <= WORKERS_TO else FAILS), sentence


def _sweep(free: pd.DataFrame) -> pd.DataFrame:
    """A row a worker count: none, and the others at the settings that the sweep has in common."""
    swept = pd.concat([free[free["workers"] == 0], tables.held(free[free["workers"] > 0], "loader")])
    # what is not a setting of the workers (the number of steps) may still differ: the most repeats count
    swept = swept.sort_values(["n_repeats", "images_per_s"], ascending=False).drop_duplicates("workers")
    return swept.sort_values("workers")


def _spans_the_claim(counts: list[int]) -> bool:
    within = any(WORKERS_FROM <= count <= WORKERS_TO for count in counts)
    return min(counts) < WORKERS_FROM and within and max(counts) > WORKERS_TO


def _cores(row: pd.Series) -> str:
    return "" if pd.isna(row["cores"]) else f" on {wording.plural(int(row['cores']), 'CPU core')}"


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
