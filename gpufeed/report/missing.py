"""What is planned and was not measured, in words."""

from collections.abc import Iterable, Sequence

from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.report.find_results import Part
from gpufeed.report.wording import listing, plural


def told(parts: Iterable[Part]) -> str:
    """`6 repeats of 2 cells, 1 timed build of caches and 3 decoders alone`; `nothing` if there is no part.

    A verdict that several experiments wait for counts once.
    """
    parts = list(parts)
    said = []
    for name, kind in RESULT_KINDS.items():
        paths = {part.path for part in parts if part.kind == name}
        if paths:
            words = plural(len(paths), *(kind.listed or kind.words))
            cells = {path.parent for path in paths}
            said.append(f"{words} of {plural(len(cells), 'cell')}" if name == "records" else words)
    return listing(said) if said else "nothing"


def listed(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """(name, what it is) of each, the repeats of a cell together."""
    cells: dict[str, list[str]] = {}
    for part in parts:
        if part.kind == "records":
            cells.setdefault(part.path.parent.name, []).append(part.path.stem)
    rows = [(cell, f"repeat {', '.join(repeats)}") for cell, repeats in cells.items()]
    others = ((part, RESULT_KINDS[part.kind]) for part in parts if part.kind != "records")
    return rows + [(name(part), (kind.listed or kind.words)[0]) for part, kind in others]


def name(part: Part) -> str:
    """What tells a part from the others of its kind."""
    experiment, unit = RESULT_KINDS[part.kind].names_in(part.path)
    return unit or experiment
