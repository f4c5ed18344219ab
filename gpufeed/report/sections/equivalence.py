"""The gate's verdicts as rows of the report: are the samples of the loaders the same?"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gpufeed.core.equivalence_verdict import WINDOWS_ALPHA, Verdict, settings_in_words
from gpufeed.core.errors import GpufeedError, first_line
from gpufeed.core.registry import LOADERS
from gpufeed.report import wording
from gpufeed.report.load_records import grouped
from gpufeed.report.tables import is_ceiling
from gpufeed.report.wording import listing, plural, rounded_ends

EXEMPT = "It repeats one batch and bounds the others, so there is nothing to compare."
REPLACEMENT = "It draws with replacement: an epoch has as many samples, some twice and others not at all."
WINDOWS = {"area": "area", "ratio": "ratio of sides", "x": "place in x", "y": "place in y", "flip": "flips"}
UNJUDGED = "No result was found: what was measured of it is from a time or place without this check."


@dataclass(frozen=True)
class GateRow:
    """A loader on a dataset. status: passed, failed, skipped, exempt, not judged or unusable; the rest as
    shown, "-" where there is nothing to say. troubles: (which settings, sentence). notes: sentences on what
    is no trouble."""

    dataset: str
    loader: str
    status: str
    decoder: str = "-"
    allowed: str = "-"
    largest: str = "-"
    mean: str = "-"
    compared: str = "-"
    machine: str = "-"
    troubles: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def rows(paths: Iterable[Path], measured: pd.DataFrame) -> list[GateRow]:
    """Return a row for each loader and dataset of `measured`, in order, and for each machine that judged it.

    paths: verdict files, <dataset>/<loader>/<settings>.json; those of other loaders are left out.
    measured: columns dataset and loader.
    """
    files = grouped(paths, lambda path: (path.parent.parent.name, path.parent.name))
    pairs = measured[["dataset", "loader"]].dropna().drop_duplicates().itertuples(index=False, name=None)
    found = []
    for dataset, loader in pairs:
        if is_ceiling(loader):
            found.append(GateRow(dataset, loader, "exempt", troubles=(("", EXEMPT),)))
        elif (dataset, loader) not in files:
            found.append(GateRow(dataset, loader, "not judged", troubles=(("", UNJUDGED),)))
        else:
            found += judged(files[dataset, loader])
    return found


def judged(paths: list[Path]) -> list[GateRow]:
    """Return the verdicts on one loader and dataset, a row a machine and version, unreadable files too."""
    verdicts, damaged = [], []
    for path in paths:
        try:
            verdicts.append(Verdict.read(path))
        except GpufeedError as error:
            said = (("", first_line(error.found)),)
            damaged.append(GateRow(path.parent.parent.name, path.parent.name, "unusable", troubles=said))
    groups = grouped(verdicts, lambda verdict: (machine(verdict), str(verdict.pixels)))
    return [row(alike) for alike in groups.values()] + damaged


def machine(verdict: Verdict) -> str:
    """Return the model of the GPU that the loader brought its samples to, or of the CPU."""
    gpu = verdict.environment["gpu"]
    return gpu["name"] if gpu else verdict.environment["cpu"]


def row(verdicts: list[Verdict]) -> GateRow:
    """Return the row of one machine's verdicts on a loader; the status is the worst."""
    first = verdicts[0]
    found = {verdict.status for verdict in verdicts}
    pixels = first.pixels
    return GateRow(
        dataset=first.dataset,
        loader=first.loader,
        status=next(status for status in ("failed", "skipped", "passed") if status in found),
        decoder=f"{pixels['version']}{by_others(verdicts)}" if pixels else "-",
        allowed=f"{pixels['max']} (mean {pixels['mean']:.3g})" if pixels else "-",
        largest=rounded_ends((verdict.max_difference for verdict in verdicts), 3),
        mean=rounded_ends((verdict.mean_difference for verdict in verdicts), 3),
        compared=compared(verdicts),
        machine=machine(first),
        troubles=troubles(verdicts),
        notes=(
            *images_from(verdicts),
            *[REPLACEMENT] * (first.loader in LOADERS and LOADERS[first.loader].replacement),
            *reduced(verdicts),
            *windows(verdicts),
        ),
    )


def images_from(verdicts: list[Verdict]) -> list[str]:
    """Return what was made of the images before the loader decodes them; nothing if it takes the files."""
    known = (wording.images_from(one.loader, one.settings.get("recipe"), one.loading) for one in verdicts)
    return [f"It reads {words}." for words in dict.fromkeys(known) if words]


def reduced(verdicts: list[Verdict]) -> list[str]:
    """Return why more than `allowed` was allowed: the verdict has what whole images may differ by."""
    more = (one.pixels and (one.max_difference or 0) > one.pixels["max"] for one in verdicts)
    passed = all(one.status == "passed" for one in verdicts)
    return ["What it decodes at a fraction of its size may differ more than that."] * (passed and any(more))


def windows(verdicts: list[Verdict]) -> list[str]:
    """Return how windows that a library draws itself compare with ours, over all settings; else nothing."""
    known = [one.windows for one in verdicts if one.windows]
    if not known:
        return []
    worst = {name: min((one[name] for one in known), key=lambda found: found["p"]) for name in WINDOWS}
    differ = [name for name, found in worst.items() if found["p"] < WINDOWS_ALPHA]
    shown = differ or [min(worst, key=lambda name: worst[name]["p"])]
    said = listing(
        f"{WINDOWS[name]} {worst[name]['statistic']:.3f} (p {worst[name]['p']:.2g})" for name in shown
    )
    verdict = "another rule than ours" if differ else "our rule, as far as can be seen"
    reasons = [one["why"] for one in known if one["why"]] or ["Why is not known."]
    why = reasons[0] if differ else ""
    return [
        f"It draws its windows itself, by {verdict}. The Kolmogorov-Smirnov statistic of "
        f"{known[0]['count']:,} windows: {said}. {why}".strip()
    ]


def by_others(verdicts: list[Verdict]) -> str:
    """Return how many images other decoders had to decode, over all settings; empty if none."""
    known = [verdict.loading for verdict in verdicts if verdict.loading]
    others: Counter[str] = Counter()
    for loading in known:
        others.update(loading["fell_back"])
    images = sum(loading["images"] for loading in known)
    said = listing(f"{count:,} by {name}" for name, count in sorted(others.items())) if others else ""
    return f"; of {images:,} images {said}" if said else ""


def compared(verdicts: list[Verdict]) -> str:
    """Return how much was compared, over all settings."""
    epochs, images = sum(one.epochs for one in verdicts), sum(one.compared for one in verdicts)
    settings = plural(len(verdicts), "setting")
    return f"{images:,} images in {plural(epochs, 'epoch')}, {settings}"


def troubles(verdicts: list[Verdict]) -> tuple[tuple[str, str], ...]:
    """Return (settings, sentence) of what did not pass; settings with one sentence are counted together."""
    failed, said = [one for one in verdicts if one.status != "passed"], []
    for sentence, ones in grouped(failed, lambda one: one.sentence or "no reason was recorded").items():
        more = f" and {plural(len(ones) - 1, 'more setting')}" if len(ones) > 1 else ""
        said.append((settings_in_words(ones[0].settings) + more, sentence))
    return tuple(said)
