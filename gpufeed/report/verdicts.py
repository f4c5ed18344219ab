"""The answer to an experiment's question, in sentences from the table of cells.

Nothing is called faster or slower unless the 95 % interval of the ratio clears 1.03, which takes six repeats;
below them no more is said than that the ranges of the repeats keep apart (see `standing`).
"""

from dataclasses import dataclass

import pandas as pd

from gpufeed.core import repeats
from gpufeed.report import tables, wording
from gpufeed.report.load_records import grouped
from gpufeed.report.significance import ABOVE, BELOW, Standing, standing
from gpufeed.system.statistics import BUSY, FASTER, MATTERS, SAME, SLOWER

BASELINE = "dataloader_sync"
ON_DEVICE = "resident"  # its samples lie on the device before the first epoch: it loads nothing
NEVER = 0.01  # of the step: a smaller share of waiting counts as none
MOST_SHOWN = 2  # sentences below the lead of a headline
MOST_ANSWERS = 50  # shown beside those of the headlines
MOSTLY_AT_START = 0.25  # of the wait: from here on the first batches of the epochs are worth a sentence
# What two loaders have in common where the comparison is between the loaders alone.
EQUAL = [
    "workers", "decoder", "augment", "prefetch_factor", "pin_memory", "persistent_workers", "cuda_graphs",
    "compile", "epochs", "step_limit",
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What the numbers say: on a task (`claim` empty) or on a claim of the notebook."""

    subject: str
    sentence: str
    lead: str = ""  # the sentence in a few words
    shown: tuple[str, ...] = ()  # those of its sentences that stand below the lead; all where there are none
    claim: str = ""
    answer: str = ""  # holds | does not hold | cannot be judged; empty where there is no claim
    headline: bool = True  # belongs into the answer at the top of the page
    compares: bool = True  # pipelines with each other or with the limit


def answers(cells: pd.DataFrame) -> list[Verdict]:
    """Return a verdict a task: what preparing ahead gains (experiment `pipelining`), or what is fastest.

    The headline of a machine is its task with the most pipelines, free-running before step-synchronised.
    Other tasks in which nothing is compared are counted in one sentence, as are those beyond MOST_ANSWERS.
    """
    groups = [rows for rows in tables.tasks(cells) if len(tables.pipelines(rows))]
    first = headlines(groups)
    compared = [number for number, rows in enumerate(groups) if number in first or compares(rows)]
    left_out = [number for number in compared if number not in first][MOST_ANSWERS:]
    found = [_answer(groups[number], number in first) for number in compared if number not in left_out]
    counted = []
    if left_out:
        more = wording.plural(len(left_out), "more comparison")
        counted.append(f"{more}: the leaderboard has the numbers.")
    if alone := len(groups) - len(compared):
        tasks, them = wording.plural(alone, "task"), "it" if alone == 1 else "them"
        where = f"{tasks} with one pipeline and no limit, where nothing is compared"
        counted.append(f"{where}: the leaderboard has {them}.")
    return found + [Verdict("Besides", sentence, headline=False, compares=False) for sentence in counted]


def compares(rows: pd.DataFrame) -> bool:
    """Return whether a task has more than one pipeline, or one beside a ceiling."""
    ours = tables.pipelines(rows)
    limits = ours[[name for name in ("ceiling_share", "au") if name in ours]]
    return (len(ours) > 1 and not lengths_of_one(ours)) or bool(limits.notna().any(axis=None))


def lengths_of_one(ours: pd.DataFrame) -> bool:
    """Return whether the pipelines are one pipeline, trained for several numbers of epochs."""
    features = [name for name in wording.FEATURES if name != "epochs"]
    return ours["epochs"].is_unique and wording.labels(ours, features, unique=False).nunique() == 1


def _answer(rows: pd.DataFrame, headline: bool) -> Verdict:
    ours = tables.ranked(tables.pipelines(rows))
    about_overlap = rows["experiment"].iloc[0] == "pipelining" and (ours["loader"] != ON_DEVICE).any()
    if (ours["against_ceiling"] == "disturbed").any():
        lead, parts = _disturbed(ours)
        sure, unlike = parts[-1], ""
    elif about_overlap:
        lead, parts, sure = _does_preparing_pay(ours)
        unlike = other_steps(ours[ours["loader"] != ON_DEVICE])
    else:
        lead, parts, sure = _what_is_fastest(ours)
        unlike = other_steps(ours)
    again, *doubts = (marked(rows, mark) for mark in MARKED)
    parts += [unlike, fed(ours), fell_back(ours), images_from(ours), again, *doubts]
    subject = f"{wording.task(ours)}; {wording.machine(ours)}"
    sentence = " ".join(part for part in parts if part)
    shown = tuple(part for part in (sure, unlike, *doubts) if part)[:MOST_SHOWN]
    return Verdict(subject, sentence, lead, shown, headline=headline, compares=compares(rows))


def fed(ours: pd.DataFrame) -> str:
    """Return a sentence on AU of the fastest pipeline with measured ceilings; empty without one."""
    if "au" not in ours or ours["au"].isna().all():
        return ""
    row = ours[ours["au"].notna()].iloc[0]
    ends = wording.interval(row["au_ci95_low"], row["au_ci95_high"])
    ends = f", 95 % interval {ends} %" if ends else ""
    return (
        f"By turns with its own compute-only training in one process, {row['label']} keeps an AU of "
        f"{wording.tenths(row['au'])} ({int(row['au_pairs'])} pairs{ends}): {row['limited_by']}."
    )


def distance(row: pd.Series) -> str:
    """Return how far a cell is from the limit, in a few words: its AU, else its share, if any."""
    if not pd.isna(row.get("au")):
        return f"AU {wording.tenths(row['au'])}" + (f": {BUSY}" if row["limited_by"] == BUSY else "")
    return short_ceiling(row)


def images_from(ours: pd.DataFrame) -> str:
    """Return a sentence on pipelines that read other images than the dataset's files; else empty."""
    changed = ours[ours["images_from"].fillna("") != ""]
    return " ".join(
        f"{wording.listing(rows['label'])} read{'s' * (len(rows) == 1)} {words}."
        for words, rows in changed.groupby("images_from", sort=False)
    )


def fell_back(ours: pd.DataFrame) -> str:
    """Return a sentence on pipelines whose decoder left images to others; else empty."""
    bad = ours[pd.to_numeric(ours["fell_back_share"]) > 0].sort_values("fell_back_share", ascending=False)
    told = bad[["fell_back_share", "label", "fell_back_to"]].itertuples(index=False)
    said = [
        f"{wording.small_percent(share)} of the images of {name} by {other}" for share, name, other in told
    ]
    return f"Not decoded by the pipeline's own decoder were {wording.listing(said)}." if said else ""


def headlines(groups: list[pd.DataFrame]) -> set[int]:
    """Return the numbers of the tasks that the answers at the top of the page are about, one a machine."""

    def rank(number: int) -> tuple[bool, int]:
        rows = groups[number]
        return rows["synchronise"].iloc[0] == "epoch", len(tables.pipelines(rows))

    of_machines = grouped(range(len(groups)), lambda number: wording.machine(groups[number]))
    return {max(numbers, key=rank) for numbers in of_machines.values()}


def _disturbed(ours: pd.DataFrame) -> tuple[str, list[str]]:
    """Return lead and sentences on a task with a pipeline far above its ceiling: nothing is ranked."""
    bad = ours[ours["against_ceiling"] == "disturbed"].sort_values("ceiling_share", ascending=False)
    worst = bad.iloc[0]
    lead = f"{worst['label']}: {wording.percent(worst['ceiling_share'])} of the limit"
    more = f" {wording.listing(bad['label'][1:])}: above the limit too." if len(bad) > 1 else ""
    words = f"{worst['label']}: {speed(worst)}, {to_ceiling(worst)}.{more}"
    return f"{lead}: the measurement was disturbed", [words, "So far no order of the pipelines follows."]


MARKED = {  # columns that count repeats with a mark -> what is said of these repeats
    "measured_again": "Measured twice, since other processes used the cores the first time: {repeats}; of "
    "each the quieter measurement counts.",
    "accompanied": "Another process was on the GPU in {repeats}: if it computed there, move these records "
    "away and measure them again.",
    "disturbed": f"Other processes used more than {repeats.DISTURBED * 100:.0f} % of the cores, up to "
    "{most}, during {repeats}: for the rates of a quiet machine, end them and measure all repeats again "
    "(--forcerun measure_cell; the run printed the whole command).",
    "leaking": "Memory grew in every part of {repeats} and did not settle: look for what the loader, augment "
    "or model keeps of each batch (`telemetry.growth` in the record).",
}


def marked(rows: pd.DataFrame, mark: str) -> str:
    """Return the sentence of MARKED on the repeats of a task that have a mark; empty if none has."""
    found = rows.assign(label=wording.labels(rows))[rows[mark] > 0]
    if found.empty:
        return ""
    said = [f"{row[mark]} of {row['n_repeats']} repeats of {row['label']}" for _, row in found.iterrows()]
    if len(rows) > 1 and (rows[mark] == rows["n_repeats"]).all():
        said = [f"all {rows[mark].sum()} repeats"]
    most = wording.percent(rows["others_cpu_share_max"].max())
    return MARKED[mark].format(repeats=wording.listing(said), most=most)


def disturbance(cells: pd.DataFrame) -> str:
    """Return a sentence for each task with a pipeline far above its ceiling; else empty."""
    found = (tables.ranked(tables.pipelines(rows)) for rows in tables.tasks(cells))
    return " ".join(_disturbed(ours)[1][0] for ours in found if "disturbed" in {*ours["against_ceiling"]})


def other_steps_of(cells: pd.DataFrame) -> str:
    """Return the sentences of `other_steps` on all tasks."""
    found = (tables.ranked(tables.pipelines(rows)) for rows in tables.tasks(cells))
    return " ".join(filter(None, dict.fromkeys(other_steps(ours) for ours in found if len(ours))))


def _does_preparing_pay(ours: pd.DataFrame) -> tuple[str, list[str], str]:
    """Return lead and sentences on the pipelines that load from the host, and the one on certainty."""
    host = ours[ours["loader"] != ON_DEVICE]
    best, alike = host.iloc[0], _with_its_step(host)
    first = f"{best['label']}, the highest median of those that load from the host: {speed(best)}"
    sure = _against_baseline(alike, best)
    sentences = [f"{first}, {to_ceiling(best)}.", sure, epoch_start(best)]
    return _lead(alike, best), [*sentences, _side_stream(host), _on_device(ours)], sure


def _lead(ours: pd.DataFrame, best: pd.Series) -> str:
    """Return the best pipeline with its rate, beside the plain loader and the limit."""
    rate = f"{best['label']}: {wording.count(best['images_per_s'])} images/s"
    return ", ".join(part for part in (rate, _by_how_much(ours, best), distance(best)) if part)


def _side_stream(host: pd.DataFrame) -> str:
    """Return at which worker counts `overlap`, which copies on a side stream, is faster or slower."""
    pairs = host[(host["loader"] == "overlap") & (host["workers"] > 0)].merge(
        host[host["loader"] == "dataloader_workers"], on=EQUAL, suffixes=("", "_other")
    )
    if pairs.empty:
        return ""
    how = pairs.apply(lambda pair: standing(pair, {"repeats": pair["repeats_other"]}).how, axis=1)
    at = {side: wording.listing(sorted({*own.astype(int)})) for side, own in pairs["workers"].groupby(how)}
    said = [f"{words} at {at[side]}" for side, words in SIDES.items() if side in at]
    return f"Against dataloader_workers with as many workers, all else equal, overlap is {'; '.join(said)}."


SIDES = {
    FASTER: "faster",
    ABOVE: "ahead, its range above,",
    SLOWER: "slower",
    BELOW: "behind, its range below,",
    SAME: "not shown to differ",
}


def _on_device(ours: pd.DataFrame) -> str:
    resident = ours[ours["loader"] == ON_DEVICE]
    if resident.empty:
        return ""
    best = resident.iloc[0]
    rate = f"{best['label']} runs at {speed(best)}, {to_ceiling(best)}"
    return f"With all samples on the device beforehand, {rate}."


def _what_is_fastest(ours: pd.DataFrame) -> tuple[str, list[str], str]:
    best, alike = ours.iloc[0], _with_its_step(ours)
    sure = _rivals(alike, "measured with this step" if len(alike) < len(ours) else "measured")
    first = f"{best['label']}: {speed(best)}, {to_ceiling(best)}."
    return _lead(alike, best), [first, epoch_start(best), sure, _against_baseline(alike, best)], sure


def _with_its_step(ours: pd.DataFrame) -> pd.DataFrame:
    """Return the pipelines with the same training step as the first: only these compare."""
    steps = ours[list(wording.OF_THE_STEP)].astype(str)
    return ours[(steps == steps.iloc[0]).all(axis=1)]


def other_steps(ours: pd.DataFrame) -> str:
    """Return a sentence on pipelines (with `label`, fastest first) with another step than the first."""
    alike = _with_its_step(ours)
    rest = ours.drop(alike.index)
    if rest.empty:
        return ""
    said = f"Not compared with the others, since they train by another step: {_few(rest['label'])}."
    if alike["loader"].nunique() == 1:
        said = (
            f"No other loader was measured with the step of {ours['label'].iloc[0]}, so these do not compare "
            f"with it: {_few(rest['label'])}."
        )
    if ours.iloc[0]["cuda_graphs"] and not rest["cuda_graphs"].all():
        said += (
            " Without CUDA graphs the time to train includes the gaps while the host launches kernels, so "
            "their wait may be short although the loader is slow."
        )
    return said


def _few(labels: pd.Series) -> str:
    """Return up to three names, and how many more there are."""
    names = labels.tolist()
    return "; ".join(names[:3] + [f"{len(names) - 3} more"] * (len(names) > 3))


def _by_how_much(ours: pd.DataFrame, best: pd.Series) -> str:
    """Compare a row with the plain loader in a few words, with a factor only if it is faster."""
    base = _baseline_of(ours, best)
    if base is None or best["loader"] == BASELINE:
        return ""
    found = standing(best, base)
    if found.ahead:
        return f"{wording.ratio(found.ratio.median)} the rate of {BASELINE}"
    few = " (one repeat)" if found.ratio.n < 2 else ""
    return f"not shown to be faster than {BASELINE}{few}"


def short_ceiling(row: pd.Series) -> str:
    """Return how far a cell is from its ceiling, in a few words; empty without a ceiling."""
    return {
        "": "",
        "below": f"{wording.percent(row['ceiling_share'])} of the limit",
        "not distinguishable": "not distinguishable from the limit",
        "above": f"{wording.percent(row['ceiling_share'] - 1)} above the limit",
        "disturbed": f"{wording.percent(row['ceiling_share'])} of the limit: disturbed",
        BUSY: f"{BUSY} to tell it from the limit",
    }[row["against_ceiling"]]


def speed(row: pd.Series, of: str = "") -> str:
    """Return a cell's rate, or that `of` its ceiling, with range and n."""
    ends = (row[f"{of}images_per_s{end}"] for end in ("", "_min", "_max"))
    return wording.ranged(*ends, int(row[f"{of}n_repeats"]))


def to_ceiling(row: pd.Series) -> str:
    """Return a clause on how far a cell is from its ceiling, which has its own n and range."""
    if pd.isna(row["ceiling_share"]):
        if not pd.isna(row.get("au")):
            return f"with an AU of {wording.tenths(row['au'])}"
        return "and how far that is from the compute-only limit is unknown, for no replay cell was measured"
    ceiling, share = f"the compute-only limit (replay), {speed(row, 'ceiling_')}", row["ceiling_share"]
    again = "measure all repeats again (--forcerun measure_cell) with nothing else on the machine"
    return {
        "below": f"{wording.percent(share)} of {ceiling}",
        "not distinguishable": f"not distinguishable from {ceiling}",
        "above": f"{wording.percent(share - 1)} above {ceiling}: one of the two was disturbed, or the "
        "limit is not one here (new batches may lie better in memory than the one that is repeated); to "
        f"know, {again}",
        "disturbed": f"{wording.percent(share)} of {ceiling}, which is impossible in a sound run: replay "
        "does the same work on the device and loads nothing. One of the two was disturbed, as the machine "
        f"was too busy to answer, or measured on another machine of this kind: {again}",
        BUSY: f"{wording.percent(share)} of {ceiling}, by repeats too far apart to say whether it reaches "
        f"it. The machine was too busy to answer: {again}",
    }[row["against_ceiling"]]


def epoch_start(row: pd.Series) -> str:
    """Return a sentence if much of the wait falls on the first batch of an epoch; else empty."""
    if not (row["epoch_start_share"] > MOSTLY_AT_START and row["wait_share"] >= NEVER):
        return ""
    batches = wording.plural(int(row["epoch_batches"]), "batch", "batches")
    sentence = (
        f"{wording.percent(row['epoch_start_share'])} of its wait falls on the first batch of an epoch "
        f"({batches} an epoch)"
    )
    if pd.isna(row["within_epoch_images_per_s"]):
        return f"{sentence}."
    rate = wording.count(row["within_epoch_images_per_s"])
    return f"{sentence}; within an epoch it runs at {rate} images/s."


def shared_cores(cells: pd.DataFrame) -> str:
    """Return why wait understates the cost of loading without a CUDA GPU, in numbers; else empty."""
    shared = tables.pipelines(cells[cells["device"].isin(["cpu", "mps"])])
    groups = list(tables.tasks(shared))
    if not groups:
        return ""
    ours = groups[min(headlines(groups))]
    sentence = (
        f"On device {wording.listing(sorted(ours['device'].unique()))} loading and training share the cores, "
        "so part of the cost of loading shows as longer training, and wait understates it"
    )
    known = ours[ours["ceiling_train_ms"].notna()].reset_index(drop=True)
    if known.empty:
        return f"{sentence}."
    at = (known["train_ms"] - known["ceiling_train_ms"]).idxmax()
    most, name = known.loc[at], wording.labels(known)[at]
    longer = most["train_ms"] - most["ceiling_train_ms"]
    return (
        f"{sentence}: train takes {wording.count(most['train_ms'])} ms a step with {name}, "
        f"{wording.count(most['ceiling_train_ms'])} ms at its limit, a difference of "
        f"{longer:+.3g} ms (medians over repeats)."
    )


def _rivals(ours: pd.DataFrame, measured: str) -> str:
    """Return how far the first of `ours` (fastest first) is ahead of the next loader, and how sure that is.

    measured: how all of them were, in words.
    """
    if len(ours) < 2:
        return ""
    best, others = ours.iloc[0], ours.iloc[1:]
    found = [standing(best, row) for _, row in others.iterrows()]
    kinds, loaders = wording.plural(len(ours), "pipeline"), ours["loader"].nunique()
    if loaders == len(ours):
        kinds = wording.plural(loaders, "loader")
    here = "card" if best["device"] == "cuda" else "machine"
    second = next((n for n, name in enumerate(others["loader"]) if name != best["loader"]), 0)
    ratio = found[second].ratio.median  # of pairs: below 1 it may be although the median is higher
    ahead = "level with" if ratio < 1 else f"{wording.ratio(ratio)} the rate of"
    ahead += f" the runner-up, {others['label'].iloc[second]}"
    rank = "Fastest" if all(one.ahead for one in found) else "Highest rate"
    return f"{rank} of {kinds} {measured} on this {here}, {ahead}. {_how_sure(ours, others, found)}"


def _how_sure(ours: pd.DataFrame, others: pd.DataFrame, found: list[Standing]) -> str:
    """Return whether repeats show that the first of `ours` is faster. found: it against each other."""
    once = ours[ours["n_repeats"] < 2]["label"]
    if len(once) == len(ours):
        return "Each ran once only, so their order is not settled."
    if len(once):
        return f"Their order is not settled, since these ran once only: {_few(once)}."
    tied = others[[not one.ahead for one in found]]["label"]
    if tied.empty:
        few = {1: "the one other pipeline", 2: "both other pipelines"}
        rest = few.get(len(others), f"all {len(others)} other pipelines")
        if all(one.how == FASTER for one in found):
            whose = "the ratio" if len(others) == 1 else "each ratio"
            least, most = (end(one.ratio.n for one in found) for end in (min, max))
            pairs = f"n = {least}" + f" to {most}" * (most > least)
            pairs += " pairs" * all(one.ratio.paired for one in found)
            many = f"{len(found)} comparisons, not corrected for their number, " * (len(found) > 1)
            above = f"the 95 % interval of {whose} lies above {MATTERS}"
            return f"It is faster than {rest}: {above} ({many}{pairs})."
        rest = f"that of {rest}" if len(others) == 1 else f"those of {rest}"
        why = next(one.why_no_more for one in found if one.how != FASTER)
        cards = " on other cards" if any(one.other_cards for one in found) else ""
        return f"Its range lies above {rest}{cards}; {why}."
    return f"It is not shown to be faster than {' or '.join(_few(tied).rsplit('; ', 1))}."


def _baseline_of(ours: pd.DataFrame, best: pd.Series) -> pd.Series | None:
    """Return the plain loader's fastest row, with the same augmentation if there is one."""
    sync = ours[ours["loader"] == BASELINE]
    same = sync[sync["augment"] == best["augment"]]
    return next((rows.iloc[0] for rows in (same, sync) if len(rows)), None)


def _against_baseline(ours: pd.DataFrame, best: pd.Series) -> str:
    if best["loader"] == BASELINE:
        none = f"Nothing measured here beats {BASELINE}, the plain loader without workers."
        return none if len(ours) > 1 else ""
    base = _baseline_of(ours, best)
    if base is None:
        return ""
    against = f"{BASELINE} (augment {base['augment']}), which runs at {speed(base)}"
    found = standing(best, base)
    if found.how == FASTER:
        return f"It is faster than {against}: {found.words}."
    if found.ratio.n < 2:
        return f"One repeat is too few to call it faster than {against}; the ratio is {found.words}."
    if found.how == ABOVE:
        why = f"the ranges keep apart, and {found.why_no_more}"
        return f"Its rate is {found.words} that of {against}: {why}."
    shown = "not shown to be faster" if found.how == SAME else "not faster"
    return f"It is {shown} than {against}; the ratio is {found.words}."
