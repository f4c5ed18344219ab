"""The gate's verdicts as rows of the report: are the samples of the loaders the same?"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gpufeed.analysis.tables import is_ceiling
from gpufeed.analysis.wording import plural
from gpufeed.errors import GpufeedError
from gpufeed.gate.verdict import Judged, Verdict, words

EXEMPT = "It repeats one batch and bounds the others, so there is nothing to compare."
UNJUDGED = "No verdict was found: its records are from a time or place without a gate."


@dataclass(frozen=True)
class GateRow:
    """A loader on a dataset. status: passed, failed, skipped, exempt, not judged or damaged; the rest as
    shown, "-" where there is nothing to say. troubles: (which settings, sentence)."""

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


def rows(paths: Iterable[Path], records: pd.DataFrame) -> list[GateRow]:
    """A row for each loader and dataset of `records`, in their order, and for each machine that judged it.

    paths: verdict files, <dataset>/<loader>.json; those of other loaders and datasets are left out.
    """
    files: dict[tuple[str, str], list[Path]] = {}
    for path in paths:
        files.setdefault((path.parent.name, path.stem), []).append(path)
    pairs = records[["dataset", "loader"]].dropna().drop_duplicates().itertuples(index=False, name=None)
    found = []
    for dataset, loader in pairs:
        if is_ceiling(loader):
            found.append(GateRow(dataset, loader, "exempt", troubles=(("", EXEMPT),)))
        elif (dataset, loader) not in files:
            found.append(GateRow(dataset, loader, "not judged", troubles=(("", UNJUDGED),)))
        else:
            found += [row(path) for path in files[dataset, loader]]
    return found


def row(path: Path) -> GateRow:
    """One verdict file as a row; one that cannot be read says so."""
    try:
        verdict = Verdict.read(path)
    except GpufeedError as error:
        return GateRow(path.parent.name, path.stem, "damaged", troubles=(("", error.found.splitlines()[0]),))
    pixels, gpu = verdict.pixels, verdict.environment["gpu"]
    return GateRow(
        dataset=verdict.dataset,
        loader=verdict.loader,
        status=verdict.status,
        decoder=pixels["version"] if pixels else "-",
        allowed=f"{pixels['max']} (mean {pixels['mean']:g})" if pixels else "-",
        largest=spread([one.max_difference for one in verdict.variants]),
        mean=spread([one.mean_difference for one in verdict.variants]),
        compared=compared(verdict.variants),
        machine=gpu["name"] if gpu else verdict.environment["cpu"],
        troubles=troubles(verdict.variants),
    )


def spread(values: list[float | None]) -> str:
    """One number if all settings agree to three figures, else the smallest and the largest."""
    shown = [f"{value:.3g}" for value in sorted(value for value in values if value is not None)]
    if not shown:
        return "-"
    return shown[0] if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}"


def compared(variants: list[Judged]) -> str:
    """How much was looked at, over all settings."""
    epochs, images = sum(one.epochs for one in variants), sum(one.samples for one in variants)
    settings = plural(len(variants), "setting")
    return f"{images:,} images in {plural(epochs, 'epoch')}, {settings}"


def troubles(variants: list[Judged]) -> tuple[tuple[str, str], ...]:
    """(settings, sentence) of what did not pass; settings with one sentence are counted together."""
    groups: dict[str, list[Judged]] = {}
    for one in variants:
        if one.status != "passed":
            groups.setdefault(one.sentence or "no reason was recorded", []).append(one)
    said = []
    for sentence, ones in groups.items():
        more = f" and {plural(len(ones) - 1, 'more setting')}" if len(ones) > 1 else ""
        said.append((words(ones[0].settings) + more, sentence))
    return tuple(said)
