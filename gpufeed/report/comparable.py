"""Why two measurements of a cell may not be compared, and what to keep in mind where they may."""

import json
from collections.abc import Iterable

import pandas as pd

from gpufeed.core.config_sources import QUANTITY
from gpufeed.report.load_records import nested
from gpufeed.report.significance import other_cards, places
from gpufeed.report.wording import listing

POWER_TOLERANCE = 0.01  # limits are set, not measured: a larger step is another setting
# A GPU's boost moves by a few percent with its temperature. From here on the clocks are locked otherwise, or
# one side was throttled, and explain more than most changes that anybody looks for.
CLOCK_TOLERANCE = 0.10
FACTS = {"samples": "images", "classes": "classes", "height": "pixels in height", "width": "pixels in width"}


def refusals(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """Why the finished repeats of a cell of side A (ours) may not be set against those of side B.

    Empty if they may. What a record does not tell is no reason.
    """
    return [
        *_same_repeats(ours, base),
        *_other(ours, base, "hardware", f"other {_kind(ours, base)} model"),
        *_other(ours, base, "precision", "other precision"),
        *_other(ours, base, "batch_size", "other batch size, of one that ran out of memory"),
        *_apart("power limit", *_limits(ours, base), POWER_TOLERANCE, "W"),
        *_apart("SM clock", *_clocks(ours, base), CLOCK_TOLERANCE, "MHz"),
        *_data(ours, base),
    ]


def notes(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """What else differs, or is not known, between repeats that may be compared."""
    stack = [_say(side, ("stack", "torch", "driver")) for side in (ours, base)]
    processor = [_say(side, ("cpu", "cores")) for side in (ours, base)]
    said = [f"other stack: {_sides(*stack)}"] if stack[0] != stack[1] else []
    said += _others(ours["software"], base["software"], "digest", "other packages, by their digest")
    said += [f"other CPU or cores: {_sides(*processor)}"] if processor[0] != processor[1] else []
    said += list(filter(None, [other_cards(ours, base)]))
    for key, name in (("power_limit_w", "power limit"), ("sm_clock_mhz", "SM clock")):
        unknown = [side for side, rows in (("A", ours), ("B", base)) if _lacks(rows, key)]
        said += [f"the {name} was not recorded in {listing(unknown)}"] if unknown else []
    said += _others(ours["facts"], base["facts"], "cache", "the cache was built by another version")
    disks = "the data lay on another filesystem"
    return said + _others(ours["facts"], base["facts"], "filesystem", disks)


def _others(ours: pd.Series, base: pd.Series, key: str, words: str) -> list[str]:
    """The note, if a key of these dictionaries is known to have other values on one side."""
    a, b = _known(ours, key), _known(base, key)
    return [f"{words}: {_sides(listing(a), listing(b))}"] if a and b and a != b else []


def _same_repeats(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """The reason, if a repeat is on both sides: one start, one rate and one GPU, or node without one."""
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


def _other(ours: pd.DataFrame, base: pd.DataFrame, column: str, reason: str) -> list[str]:
    """The reason, if a column has other values on one side."""
    a, b = (sorted(side[column].dropna().unique()) for side in (ours, base))
    return [f"{reason}: {_sides(listing(a), listing(b))}"] if a != b and a and b else []


def _known(facts: Iterable[object], key: str) -> list:
    """The values of a key in the dictionaries that have it, each once, in order."""
    values = (nested(one, key) for one in facts)
    return sorted({value for value in values if value is not None})


def _apart(name: str, ours: list[float], base: list[float], tolerance: float, unit: str) -> list[str]:
    """The reason, if two of these numbers differ by more than the tolerance; none where a side is unknown."""
    if not ours or not base or max(*ours, *base) <= min(*ours, *base) * (1 + tolerance):
        return []
    values = (f"{listing(f'{value:.0f}' for value in side)} {unit}" for side in (ours, base))
    return [f"other {name}: {_sides(*values)} (more than {tolerance * 100:.0f} % apart)"]


def _limits(ours: pd.DataFrame, base: pd.DataFrame) -> tuple[list[float], list[float]]:
    """The power limits of each side, in W: one that changed during a run differs from itself."""
    return _known(ours["gpu"], "power_limit_w"), _known(base["gpu"], "power_limit_w")


def _clocks(ours: pd.DataFrame, base: pd.DataFrame) -> tuple[list[float], list[float]]:
    """The median clock of each side, in MHz: while it trained, where both sides tell it, else at the end.

    A clock at the end of a repeat is one reading and may be off by itself: that is why medians speak.
    """
    training = [
        [nested(one, "gpu", "sm_clock_mhz", "median") for one in side["telemetry"]] for side in (ours, base)
    ]
    at_end = [[nested(gpu, "sm_clock_mhz") for gpu in side["gpu"]] for side in (ours, base)]
    both = training if all(None not in side for side in training) else at_end
    medians = (pd.Series(side, dtype=float).median() for side in both)
    first, second = ([] if pd.isna(value) else [float(value)] for value in medians)
    return first, second


def _data(ours: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """Other files or options, other numbers of images, or a cache by another decoder."""
    name, found = ours["dataset"].iloc[0], []
    sources = [[json.loads(text) for text in sorted(side["source"].unique())] for side in (ours, base)]
    if sources[0] != sources[1]:
        differing = [
            key for key in ("layout", "files", "options", "resize", *QUANTITY) if _differ(sources, key)
        ]
        found.append(
            f"other data: {name} was made of other {listing(differing or ['sources'])} in A than in B"
        )
    for key, word in FACTS.items():
        a, b = (_known(side["facts"], key) for side in (ours, base))
        if a and b and a != b:
            values = (f"{listing(f'{value:,}' for value in side)} {word}" for side in (a, b))
            found.append(f"other data: {_sides(*values)}")
    builders = [sorted({text.split()[0] for text in _known(side["facts"], "cache")}) for side in (ours, base)]
    if all(builders) and builders[0] != builders[1]:
        found.append(f"other data: the cache was built by {_sides(*map(listing, builders))}")
    return found


def _differ(sources: list[list[dict]], key: str) -> bool:
    a, b = ([source.get(key) for source in side] for side in sources)
    return a != b


def _say(records: pd.DataFrame, columns: Iterable[str]) -> str:
    """The values of these columns in words, such as `cuda13, torch 2.11.0, driver 580.1`."""
    words = {"torch": "torch {}", "driver": "driver {}", "cores": "cores allowed: {}"}
    values = {name: sorted(records[name].dropna().unique()) for name in columns}
    return ", ".join(words.get(name, "{}").format(listing(known)) for name, known in values.items() if known)


def _lacks(records: pd.DataFrame, key: str) -> bool:
    """Whether a repeat ran on a GPU and does not tell this of it; on the CPU there is nothing to tell."""
    gpus = (gpu for gpu in records["gpu"] if isinstance(gpu, dict))
    return any(gpu.get(key) is None for gpu in gpus)
