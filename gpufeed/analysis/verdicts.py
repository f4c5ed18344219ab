"""Sentences from the table of cells. Nothing is called faster unless the ranges of the repeats keep apart."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from gpufeed.analysis import tables, wording
from gpufeed.analysis.statistics import overlap

BASELINE = "dataloader_sync"
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"


@dataclass(frozen=True)
class Verdict:
    """What the numbers say: on a task (`claim` empty) or on a claim of the notebook."""

    subject: str
    sentence: str
    lead: str = ""  # the sentence in a few words
    claim: str = ""
    answer: str = ""  # holds | does not hold | cannot be judged; empty where there is no claim
    headline: bool = True  # belongs into the answer at the top of the page


def answers(cells: pd.DataFrame) -> list[Verdict]:
    """One verdict a task of one experiment: the best pipeline, its ceiling, and what it beats.

    The headline of a machine is its task with the most pipelines, free-running before step-synchronised.
    """
    groups = [rows for rows in tables.tasks(cells) if len(tables.pipelines(rows))]
    headlines = _headlines(groups)
    return [
        Verdict(wording.task(rows), _answer(rows), _lead(rows), headline=number in headlines)
        for number, rows in enumerate(groups)
    ]


def _headlines(groups: list[pd.DataFrame]) -> set[int]:
    """For each machine, the number of the task that its answer at the top of the page is about."""
    best: dict[str, tuple] = {}
    for number, rows in enumerate(groups):
        free = rows["synchronise"].iloc[0] == "epoch"
        rank = (free, len(tables.pipelines(rows)), -number)
        machine = wording.machine(rows)
        best[machine] = max(best.get(machine, rank), rank)
    return {-rank[2] for rank in best.values()}


def _lead(rows: pd.DataFrame) -> str:
    ours = tables.pipelines(rows).sort_values("images_per_s", ascending=False)
    best = ours.iloc[0]
    share = (
        "" if pd.isna(best["ceiling_share"]) else f", {wording.percent(best['ceiling_share'])} of the ceiling"
    )
    return f"{wording.labels(ours).iloc[0]}: {wording.count(best['images_per_s'])} images/s{share}"


def _answer(rows: pd.DataFrame) -> str:
    ours = tables.pipelines(rows).sort_values("images_per_s", ascending=False)
    names = wording.labels(ours)
    best = ours.iloc[0]
    parts = [f"{names.iloc[0]}: {_speed(best)} on {wording.machine(rows)}, {_to_ceiling(best)}."]
    parts.append(_rivals(ours, names))
    parts.append(_against_baseline(ours, best))
    return " ".join(part for part in parts if part)


def _speed(row: pd.Series) -> str:
    n = int(row["n_repeats"])
    if n == 1:
        return f"{wording.count(row['images_per_s'])} images/s (n = 1)"
    low, high = wording.count(row["images_per_s_min"]), wording.count(row["images_per_s_max"])
    return f"{wording.count(row['images_per_s'])} images/s (median, range {low} to {high}, n = {n})"


def _to_ceiling(row: pd.Series) -> str:
    if pd.isna(row["ceiling_share"]):
        return "and how far that is from the compute-only ceiling is unknown, for no replay cell was measured"
    ceiling = f"the compute-only ceiling of {wording.count(row['ceiling_images_per_s'])} images/s (replay)"
    return f"which is {wording.percent(row['ceiling_share'])} of {ceiling}"


def _rivals(ours: pd.DataFrame, names: pd.Series) -> str:
    """How sure it is that the first of `ours` (sorted, fastest first) is the fastest."""
    if len(ours) < 2:
        return ""
    best, others = ours.iloc[0], ours.iloc[1:]
    if _too_few(ours):
        return "Some pipelines ran once only, so their order is not settled."
    tied = [names[index] for index, row in others.iterrows() if _overlap(best, row)]
    if not tied:
        rest = "the one other pipeline" if len(others) == 1 else f"all {len(others)} other pipelines"
        return f"It is faster than {rest}: no range touches its own."
    shown = "; ".join(tied[:3]) + (f"; and {len(tied) - 3} more" if len(tied) > 3 else "")
    return f"Its range overlaps that of {shown}, so it is not shown to be faster than {_them(tied)}."


def _them(names: list) -> str:
    return "that one" if len(names) == 1 else "those"


def _against_baseline(ours: pd.DataFrame, best: pd.Series) -> str:
    sync = ours[ours["loader"] == BASELINE]
    if best["loader"] == BASELINE:
        return (
            f"Nothing measured here beats {BASELINE}, the plain loader without workers."
            if len(ours) > 1
            else ""
        )
    if sync.empty:
        return f"{BASELINE} was not measured on this task."
    same_augment = sync[sync["augment"] == best["augment"]]
    base = (same_augment if len(same_augment) else sync).iloc[0]
    against = f"{BASELINE} (augment {base['augment']}, {wording.count(base['images_per_s'])} images/s)"
    times = wording.ratio(best["images_per_s"] / base["images_per_s"])
    if _too_few(pd.DataFrame([best, base])):
        return f"Its rate is {times} that of {against}; one repeat is too few to call it faster."
    if _overlap(best, base):
        return f"Its rate is {times} that of {against}, but the ranges overlap: not shown to be faster."
    return f"It is faster than {against}: {times}."


def _too_few(rows: pd.DataFrame) -> bool:
    return bool((rows["n_repeats"] < 2).any())


def _overlap(row: pd.Series, other: pd.Series) -> bool:
    return overlap(
        row["images_per_s_min"], row["images_per_s_max"], other["images_per_s_min"], other["images_per_s_max"]
    )


CLAIMS = ("1.5x - 3x faster", "use 4-8 workers", "the GPU never waits")
FASTER_FROM, FASTER_TO = 1.5, 3.0
WORKERS_FROM, WORKERS_TO = 4, 8
NO_WAIT_SHARE = 0.01  # "never" is taken as less than one hundredth of the step


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
    found = {
        "free-running": _speedup(rows[rows["synchronise"] == "epoch"]),
        "waiting after every phase, as the notebook did": _speedup(rows[rows["synchronise"] == "step"]),
    }
    sentence = "; ".join(f"{how}: {words}" for how, (_, words) in found.items())
    judged = {answer for answer, _ in found.values()} - {OPEN}
    answer = FAILS if FAILS in judged else HOLDS if judged else OPEN
    return answer, f"2 workers over 0, waits for data included. {sentence[0].upper()}{sentence[1:]}."


def _speedup(rows: pd.DataFrame) -> tuple[str, str]:
    """The speed-up of two workers over none, each in its fastest setting."""
    none, two = _fastest(rows[rows["workers"] == 0]), _fastest(rows[rows["workers"] == 2])
    if none is None or two is None:
        return OPEN, f"{'0' if none is None else '2'} workers were not measured"
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
    free = rows[rows["synchronise"] == "epoch"]
    fastest = (
        free.sort_values("images_per_s", ascending=False).drop_duplicates("workers").sort_values("workers")
    )
    counts = fastest["workers"].astype(int).tolist()
    if not counts:
        return OPEN, "No free-running cell was measured."
    best = _fastest(fastest)
    enough = min(int(row["workers"]) for _, row in fastest.iterrows() if _overlap(row, best))
    sentence = (
        f"Measured with {', '.join(map(str, counts))} workers{_cores(best)}. The highest throughput came "
        f"with {int(best['workers'])}: {_speed(best)}; the smallest count whose range overlaps it "
        f"is {enough}."
    )
    if _too_few(fastest):
        return OPEN, f"{sentence} One repeat gives no range to judge it by."
    if not _spans_the_claim(counts):
        return OPEN, f"{sentence} To judge it, counts below 4, of 4 to 8 and above 8 are needed."
    return (HOLDS if WORKERS_FROM <= enough <= WORKERS_TO else FAILS), sentence


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
    sentence = (
        f"With the fastest setting ({_workers(best)}, {_speed(best)}) the GPU had nothing to train on "
        f"for {wording.percent(best['wait_share'])} of the time "
        f"(below {wording.percent(NO_WAIT_SHARE)} would count as never)."
    )
    return (HOLDS if best["wait_share"] < NO_WAIT_SHARE else FAILS), sentence


def _workers(row: pd.Series) -> str:
    return wording.plural(int(row["workers"]), "worker")
