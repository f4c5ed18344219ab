"""What is planned and was not measured, in words."""

from collections.abc import Iterable, Sequence

from gpufeed.report.find_results import Part
from gpufeed.report.wording import listing, plural

WORDS = {  # one and several of a kind, in the order in which they are told
    "records": ("repeat", "repeats"),
    "gates": ("verdict of the gate", "verdicts of the gate"),
    "sweeps": ("decoder alone", "decoders alone"),
    "builds": ("timed build of caches", "timed builds of caches"),
    "kernels": ("kernel benchmark", "kernel benchmarks"),
    "evaluations": ("evaluation of a model", "evaluations of models"),
    "ceilings": ("measurement of ceilings", "measurements of ceilings"),
    "inferences": ("measurement of a model in use", "measurements of models in use"),
}


def told(parts: Iterable[Part]) -> str:
    """`6 repeats of 2 cells, 1 timed build of caches and 3 decoders alone`; `nothing` if there is no part.

    A verdict that several experiments wait for counts once.
    """
    parts = list(parts)
    said = []
    for kind, nouns in WORDS.items():
        paths = {part.path for part in parts if part.kind == kind}
        if paths:
            words = plural(len(paths), *nouns)
            cells = {path.parent for path in paths}
            said.append(f"{words} of {plural(len(cells), 'cell')}" if kind == "records" else words)
    return listing(said) if said else "nothing"


def listed(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """(name, what it is) of each, the repeats of a cell together."""
    cells: dict[str, list[str]] = {}
    for part in parts:
        if part.kind == "records":
            cells.setdefault(part.path.parent.name, []).append(part.path.stem)
    rows = [(cell, f"repeat {', '.join(repeats)}") for cell, repeats in cells.items()]
    return rows + [(name(part), WORDS[part.kind][0]) for part in parts if part.kind != "records"]


def name(part: Part) -> str:
    """What tells a part from the others of its kind."""
    if part.kind == "gates":
        return f"{part.path.parent.parent.name}/{part.path.parent.name}/{part.path.stem}"
    return part.path.parent.name if part.kind == "evaluations" else part.path.stem
