"""How cells, tasks and numbers are called in figures and sentences."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from gpufeed.core.quantities import plural
from gpufeed.core.registry import AUGMENTS, LOADERS, RECIPES

# What tells two pipelines of one task apart, beyond loader and workers, and how it is said.
FEATURES = {
    "decoder": lambda value: f"decoded by {value}",
    "augment": lambda value: f"augment {value}",
    "synchronise": lambda value: "waiting after every phase" if value == "step" else "free-running",
    "prefetch_factor": lambda value: f"prefetch {value}",
    "pin_memory": lambda value: "pinned" if value else "pageable",
    "persistent_workers": lambda value: "persistent" if value else "restarted",
    "channels_last": lambda value: "channels_last" if value else "channels_first",
    "cuda_graphs": lambda value: "CUDA graphs" if value else "eager",
    "compile": lambda value: "compiled" if value else "not compiled",
    "devices": lambda value: plural(value, "device"),
    "nodes": lambda value: plural(value, "node"),
    "cores_asked": lambda value: plural(int(value), "core") if value else "all cores",
    "epochs": lambda value: plural(value, "epoch"),
    "step_limit": lambda value: f"{value} steps",
}


def count(number: float) -> str:
    """Return a rate with three to four figures and a comma for thousands: 46,120 or 3.27."""
    if number is None or pd.isna(number):
        return "-"
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def percent(share: float) -> str:
    """Return a share as a percentage, one decimal below 10 %."""
    if share is None or pd.isna(share):
        return "-"
    return f"{share * 100:.1f} %" if abs(share) < 0.1 else f"{share * 100:.0f} %"


def tenths(share: float) -> str:
    """Return a share of an epoch as a percentage with one decimal, as AU in text, tables and figures."""
    return f"{share * 100:.1f} %"


def hundredths(share: float) -> str:
    """Return a share as a percentage with two decimals, as accuracies, which differ by tenths."""
    return f"{share * 100:.2f} %"


def points(share: float) -> str:
    """Return a difference of shares in points with its sign, `+0.12`; a dash if unknown."""
    return "-" if pd.isna(share) else f"{share * 100:+.2f}"


def measured_on(environment: Mapping, on_gpu: bool = True) -> str:
    """Return where a document was measured, as `NVIDIA H200, torch 2.11.0`; on_gpu: if the node has one."""
    gpu = environment["gpu"] if on_gpu else None
    return f"{gpu['name'] if gpu else environment['cpu']}, torch {environment['versions']['torch']}"


def ends(low: float, high: float) -> str:
    """Return an interval of shares in percent, `95.3 to 97.5`; with two decimals if narrower than 0.1."""
    digits = 1 if high - low >= 0.001 else 2
    return f"{low * 100:.{digits}f} to {high * 100:.{digits}f}"


def interval(low: float | None, high: float | None) -> str:
    """Return `ends` of an interval; empty if it is unknown."""
    return "" if pd.isna(low) else ends(low, high)


def three_figures(number: float) -> str:
    """Return a time with three figures: 0.833, 3.30, 15.0, 113."""
    return f"{number:#.3g}" if number < 100 else f"{number:.0f}"


def small_percent(share: float) -> str:
    """Return `percent` of a share, and `less than 0.1 %` for a small one that is not 0."""
    return "less than 0.1 %" if 0 < share < 0.001 else percent(share)


def ratio(value: float) -> str:
    """Return a speed-up: 2.35x, 12.4x, 310x; with two figures below a tenth: 0.052x, 0.0013x."""
    if value >= 1:
        digits = max(0, 2 - int(math.log10(value)))
    else:
        digits = max(2, 1 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{digits}f}x"


# Settings that only worker processes have: without workers they say nothing.
OF_WORKERS = ("prefetch_factor", "persistent_workers")
# Options that have words of their own; the others are said as they are written.
OPTIONS = {
    "trainer.cold_files=true": "each file from the disk once, evicted from the page cache before the pass",
}
# Settings of the training step, whatever feeds it: they tell pipelines with different loaders apart as well.
OF_THE_STEP = ("cuda_graphs", "compile")


def labels(cells: pd.DataFrame, features: Iterable[str] = FEATURES, unique: bool = True) -> pd.Series:
    """Return a name for each pipeline of `cells`: its loader, its workers, and what else distinguishes it.

    Settings of the step are named where they vary among all `cells`, but for those that `task` says of most;
    others where they vary among those of a loader. features: which of FEATURES may be named. unique: names
    that would still be the same get the digest of their cell.
    """
    if cells.empty:
        return pd.Series(dtype=object)
    loaders = cells["loader"].tolist()
    workers_ = pd.to_numeric(cells["workers"]).fillna(0).astype(int).tolist()
    shares = cells.get("hw_decoder_load", pd.Series(index=cells.index, dtype=float)).tolist()
    names = [_plain_label(*row) for row in zip(loaders, workers_, shares, strict=True)]
    for feature in features:
        values, of_all = cells[feature].tolist(), feature in OF_THE_STEP
        having = [
            (number, "" if of_all else loaders[number], value)
            for number, value in enumerate(values)
            if not pd.isna(value) and (workers_[number] or feature not in OF_WORKERS)
        ]
        found: dict[object, set] = {}
        for _, group, value in having:
            found.setdefault(group, set()).add(value)
        said = of_all and mostly_on(cells[feature])  # of the task
        for number, group, value in having:
            if len(found[group]) > 1 and not (said and value):
                names[number] += f", {setting(feature, value, loaders[number])}"
    named = pd.Series(names, index=cells.index)
    return made_unique(named, cells) if unique else named


def made_unique(names: pd.Series, cells: pd.DataFrame) -> pd.Series:
    """Return the names of cells; equal ones get the digest of their cell."""
    digests = cells["cell_id"].str.rsplit("-", n=1).str[-1]
    return names.where(~names.duplicated(keep=False), names + " " + digests)


def mostly_on(values: pd.Series) -> bool:
    """Return whether more than half of the values are true."""
    return values.eq(True).sum() > len(values) / 2


def setting(feature: str, value: object, loader: str) -> str:
    """Return one of FEATURES in words, for a pipeline with that loader."""
    if feature == "persistent_workers" and loader in LOADERS and LOADERS[loader].own_process:
        return "in a process of their own" if value else "in the training process"
    return FEATURES[feature](value)


def _plain_label(loader: object, count: int, share: float) -> str:
    loader = str(loader)
    parts = [loader]
    if not pd.isna(share):
        parts.append(f"{share:.0%} of the files for JPEG engines" if share else "without JPEG engines")
    parts += [workers(loader, count)] if count else []
    parts += ["with replacement"] if loader in LOADERS and LOADERS[loader].replacement else []
    return ", ".join(parts)


def workers(loader: str, count: int, noun: str = "worker", nouns: str = "") -> str:
    """Return such as `16 workers`, or `16 threads` for loaders with threads. noun, nouns: for processes."""
    threads = loader in LOADERS and LOADERS[loader].threads
    return plural(count, "thread") if threads else plural(count, noun, nouns)


def task(rows: pd.DataFrame) -> str:
    """Return what all `rows` train, as `resnet18 on cifar10_jpeg, bf16, batch 512, augmented, CUDA graphs`.

    Of a recipe with crops of its own these are said, and the augment only where it does more than normalise.
    CUDA graphs and compiling are said where most rows have them; `labels` names those that differ.
    """
    first = rows.iloc[0]
    parts = [
        f"{first['model']} on {first['dataset']}",
        str(first["precision"]),
        f"batch {first['batch_size']}",
    ]
    crops = RECIPES[first["recipe"]].does
    parts += [crops] if crops else []
    parts += [] if crops and first["augment"] == "none" else [augmented(first["augment"])]
    parts += [FEATURES[axis](int(first[axis])) for axis in ("devices", "nodes") if first[axis] != 1]
    if first["cores_asked"] > 0:
        parts.append(FEATURES["cores_asked"](first["cores_asked"]))
    parts += [FEATURES[axis](True) for axis in OF_THE_STEP if mostly_on(rows[axis])]
    if first["trainer"] != "plain":
        parts.append(f"trainer {first['trainer']}")
    if first["variant"]:
        parts.append("; ".join(OPTIONS.get(one, one) for one in str(first["variant"]).split("; ")))
    if first["synchronise"] == "step":
        parts.append("waiting after every phase of a step")
    return ", ".join(parts)


def split_shared(tasks: Sequence[str]) -> tuple[str, list[str]]:
    """Split tasks, as `task` words them, into what all have in common and the rest of each."""
    parts = [re.split("[,;] | (?=on )", words) for words in tasks]
    shared = [part for part in parts[0] if all(part in own for own in parts)] if parts else []
    return joined(shared), [joined(part for part in own if part not in shared) for own in parts]


def joined(parts: Iterable[str]) -> str:
    """Join the parts of a task, such as `resnet18 on cifar10_jpeg, bf16`."""
    return ", ".join(parts).replace(", on ", " on ")


def images_from(loader: str, recipe: Mapping | None, loading: Mapping | None) -> str | None:
    """Return what the loader's images were made into beforehand; None if it reads the dataset's.

    recipe: options of random_resized_crop, or nothing. loading: what a record or a verdict has of that name.
    """
    if recipe and loader in LOADERS and LOADERS[loader].decoded:
        return f"a cache of decoded images with short sides of at most {recipe['short_side']} pixels"
    return (loading or {}).get("images_from")


def augmented(augment: str) -> str:
    """Return what an augment does to the pixels, in words; for an unknown one, its name."""
    return AUGMENTS[augment].does if augment in AUGMENTS else f"augmented by {augment}"


def machine(rows: pd.DataFrame) -> str:
    """Return where all `rows` were measured, such as `NVIDIA H200, cuda12, torch 2.10.0`."""
    first = rows.iloc[0]
    kind = "" if first["device"] == "cuda" else f" ({first['device']})"
    return f"{first['hardware']}{kind}, {first['stack']}, torch {first['torch']}"


def commit(found: str | None, dirty: bool | None) -> str:
    """Return a commit in short, and whether the code had changes; unknown unless a record says so."""
    if found is None:
        return "unknown"
    return found[:9] + {True: " with local changes", False: ""}.get(dirty, " (changes unknown)")


def commits(rows: pd.DataFrame) -> str:
    """Return the distinct commits of all `rows`."""
    found = {*zip(rows["commit"].tolist(), rows["dirty"].tolist(), strict=True)}
    known = [[None if pd.isna(value) else value for value in pair] for pair in found]
    return ", ".join(sorted({commit(*pair) for pair in known}))


def minute(when: str) -> str:
    """Return a record's time (UTC in ISO 8601) as `2026-11-23 07:04 UTC`."""
    return f"{when[:16].replace('T', ' ')} UTC"


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def listing(items: Iterable) -> str:
    """Join items as in `1, 2 and 4`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def in_columns(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Return the rows of a table as lines, columns two spaces apart. right: right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f">{width}" if number in right else f"<{width}" for number, width in enumerate(widths)]
    return ["  ".join(map(format, row, formats)).rstrip() for row in rows]


def rounded_ends(values: Iterable[float | None], figures: int) -> str:
    """Return `1.4` if all values agree to so many figures, else `1.4 to 1.6`; `-` without values."""
    shown = [f"{value:.{figures}g}" for value in sorted(value for value in values if value is not None)]
    return " to ".join(dict.fromkeys((shown[0], shown[-1]))) if shown else "-"


def ranged(median: float, low: float, high: float, n: int) -> str:
    """Return a rate with its range and n, as `2,313 images/s (median, range 2,235 to 2,500, n = 3)`."""
    if n == 1:
        return f"{count(median)} images/s (n = 1)"
    return f"{count(median)} images/s (median, range {count(low)} to {count(high)}, n = {n})"
