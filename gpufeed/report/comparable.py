"""Why two measurements of a cell may not be compared, and what to keep in mind where they may."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from gpufeed.core.config_sources import QUANTITY
from gpufeed.report.load_records import nested
from gpufeed.report.significance import other_cards, places
from gpufeed.report.wording import listing

POWER_TOLERANCE = 0.01  # limits are set, not measured: a larger step is another setting
# A GPU's boost moves by a few percent with its temperature. From here on the clocks are locked otherwise, or
# one side was throttled, which explains more than most changes.
CLOCK_TOLERANCE = 0.10
FACTS = {"samples": "images", "classes": "classes", "height": "pixels in height", "width": "pixels in width"}
Sides = tuple[pd.DataFrame, pd.DataFrame]  # the finished repeats of a cell in A, and in B


def refusals(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """Return why the finished repeats of a cell of side A (ours) may not be compared with those of side B.

    Empty if they may. A field that a record lacks is no reason.
    """
    sides = ours, base
    return [
        *_same_repeats(ours, base),
        *_other(f"other {_kind(ours, base)} model", *_values(sides, "hardware")),
        *_other("other precision", *_values(sides, "precision")),
        *_other("other batch size, of one that ran out of memory", *_values(sides, "batch_size")),
        # power limits: one that changed during a run differs from itself
        *_apart("power limit", *_known(sides, "gpu", "power_limit_w"), POWER_TOLERANCE, "W"),
        *_apart("SM clock", *_clocks(ours, base), CLOCK_TOLERANCE, "MHz"),
        *_data(sides),
    ]


def notes(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """Return what else differs, or is unknown, between repeats that may be compared."""
    sides = ours, base
    said = _other("other stack", *(_say(side, ("stack", "torch", "driver")) for side in sides), say=str)
    said += _other("other packages, by their digest", *_known(sides, "software", "digest"))
    said += _other("other CPU or cores", *(_say(side, ("cpu", "cores")) for side in sides), say=str)
    said += filter(None, [other_cards(ours, base)])
    for key, name in (("power_limit_w", "power limit"), ("sm_clock_mhz", "SM clock")):
        unknown = [side for side, rows in zip("AB", sides, strict=True) if _lacks(rows, key)]
        said += [f"the {name} was not recorded in {listing(unknown)}"] if unknown else []
    said += _other("the cache was built by another version", *_known(sides, "facts", "cache"))
    return said + _other("the data lay on another filesystem", *_known(sides, "facts", "filesystem"))


def _other(words: str, ours: Any, base: Any, say: Callable[[Any], str] = listing) -> list[str]:
    """Return the sentence if both sides are known and differ; else nothing."""
    return [f"{words}: {_sides(say(ours), say(base))}"] if ours and base and ours != base else []


def _same_repeats(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """Return the reason if a repeat is on both sides: the same start, rate, and GPU, or node without one."""
    first, second = (
        set(zip(place, side["started_at"], side["images_per_s"], strict=True))
        for side, place in zip((ours, base), places(ours, base), strict=True)
    )
    both = len(first & second)
    if not both:
        return []
    counts = _sides(f"{both} of {len(first)}", f"of {len(second)}")
    return [f"A and B hold the same repeats: {counts}; compare two runs, each with results of its own"]


def _sides(ours: object, base: object) -> str:
    return f"{ours} in A, {base} in B"


def _kind(ours: pd.DataFrame, base: pd.DataFrame) -> str:
    devices = {*ours["device"], *base["device"]}
    return "GPU" if devices == {"cuda"} else "CPU" if "cuda" not in devices else "GPU or CPU"


def _values(sides: Sides, column: str) -> list[list]:
    """Return the distinct values of a column on each side, in order."""
    return [sorted(side[column].dropna().unique()) for side in sides]


def _known(sides: Sides, column: str, key: str) -> list[list]:
    """Return the distinct values of a key in the dictionaries of a column, as `_values` does."""
    found = ({nested(one, key) for one in side[column]} for side in sides)
    return [sorted(values - {None}) for values in found]


def _apart(name: str, ours: list[float], base: list[float], tolerance: float, unit: str) -> list[str]:
    """Return the reason if these numbers differ by more than the tolerance; nothing if a side is unknown."""
    if not ours or not base or max(*ours, *base) <= min(*ours, *base) * (1 + tolerance):
        return []
    values = (f"{listing(f'{value:.0f}' for value in side)} {unit}" for side in (ours, base))
    return [f"other {name}: {_sides(*values)} (more than {tolerance * 100:.0f} % apart)"]


def _clocks(ours: pd.DataFrame, base: pd.DataFrame) -> tuple[list[float], list[float]]:
    """Return each side's median clock in MHz: during training if both sides recorded that, else at the end.

    A clock at the end of a repeat is a single reading, which may be off; hence medians.
    """
    training = [
        [nested(one, "gpu", "sm_clock_mhz", "median") for one in side["telemetry"]] for side in (ours, base)
    ]
    at_end = [[nested(gpu, "sm_clock_mhz") for gpu in side["gpu"]] for side in (ours, base)]
    both = training if all(None not in side for side in training) else at_end
    medians = (pd.Series(side, dtype=float).median() for side in both)
    first, second = ([] if pd.isna(value) else [float(value)] for value in medians)
    return first, second


def _data(sides: Sides) -> list[str]:
    """Return the reasons: other files or options, other numbers of images, or a cache by another decoder."""
    name, found = sides[0]["dataset"].iloc[0], []
    sources = [[json.loads(text) for text in sorted(side["source"].unique())] for side in sides]
    if sources[0] != sources[1]:
        keys = ("layout", "files", "options", "resize", *QUANTITY)
        a, b = ({key: [source.get(key) for source in side] for key in keys} for side in sources)
        differing = [key for key in keys if a[key] != b[key]] or ["sources"]
        found.append(f"other data: {name} was made of other {listing(differing)} in A than in B")
    for key, word in FACTS.items():
        numbers = [[f"{value:,}" for value in side] for side in _known(sides, "facts", key)]
        found += _other("other data", *numbers, say=lambda side, word=word: f"{listing(side)} {word}")
    builders = [sorted({text.split()[0] for text in side}) for side in _known(sides, "facts", "cache")]
    if all(builders) and builders[0] != builders[1]:
        found.append(f"other data: the cache was built by {_sides(*map(listing, builders))}")
    return found


def _say(records: pd.DataFrame, columns: Iterable[str]) -> str:
    """Return the values of these columns in words, such as `cuda13, torch 2.11.0, driver 580.1`."""
    words = {"torch": "torch {}", "driver": "driver {}", "cores": "cores allowed: {}"}
    values = {name: sorted(records[name].dropna().unique()) for name in columns}
    return ", ".join(words.get(name, "{}").format(listing(known)) for name, known in values.items() if known)


def _lacks(records: pd.DataFrame, key: str) -> bool:
    """Return whether a repeat ran on a GPU without recording this key of it."""
    gpus = (gpu for gpu in records["gpu"] if isinstance(gpu, dict))
    return any(gpu.get(key) is None for gpu in gpus)
