"""The answer of ceilings in short: who leads a task, by how much, and who cannot be told from it."""

from collections.abc import Mapping, Sequence

from gpufeed.benchmarks.ceilings.shares import END
from gpufeed.report import wording
from gpufeed.report.sections import ceilings_verdict
from gpufeed.report.sections.ceilings_rows import origin

Rows = Sequence[tuple[str, Mapping]]  # as `ceilings_rows.groups` gives them, the highest AU first


def headline(rows: Rows) -> str:
    """The pipeline with the highest AU, its images/s, those beside and behind it, and its verdict.

    Those that a busy machine spoilt are left out; where all are, the first says so.
    """
    rows = [row for row in rows if not ceilings_verdict.busy(row[1])] or rows[:1]
    name, found = rows[0]
    au, rate = wording.tenths(found["shares"]["au"]["median"]), wording.count(speed(found)["median"])
    sentence = ceilings_verdict.of(found).sentence
    beside = "".join((standing(rows), faster(rows)))
    return f"{name}: AU {au}, {rate} images/s{beside}. {sentence[:1].upper()}{sentence[1:]}"


def standing(rows: Rows) -> str:
    """Whose AU is not told apart from that of the first, and who comes behind these."""
    (_, first), *others = rows
    au = first["shares"]["au"]
    close = [(name, found) for name, found in others if not apart(au, found["shares"]["au"])]
    behind = [(name, found) for name, found in others if apart(au, found["shares"]["au"])]
    told = ""
    if close:
        told = f", not told apart from {' or '.join(with_au(*one) for one in close)}"
    elif behind:
        told = f", the highest AU of {len(rows)} pipelines"
    if behind:
        points = ceilings_verdict.points_of(au["median"] - behind[0][1]["shares"]["au"]["median"])
        told += f"; next {with_au(*behind[0])}, {points} below"
    return told


def faster(rows: Rows) -> str:
    """Who has the most images/s, where it is another than the first; empty where none is known to."""
    (_, first), *_ = rows
    name, found = max(rows, key=lambda row: speed(row[1])["median"])
    elsewhere = origin(found) != origin(first)
    if found is first or not (elsewhere or apart(speed(found), speed(first))):
        return ""
    where = ", on another GPU or by another version of gpufeed" if elsewhere else ""
    return f"; most images/s: {name}, {wording.count(speed(found)['median'])}{where}"


def apart(one: Mapping, other: Mapping) -> bool:
    """Whether the 95 % intervals of two summaries keep apart; without intervals nothing does."""
    if one["ci95_low"] is None or other["ci95_low"] is None:
        return False
    return one["ci95_low"] > other["ci95_high"] or other["ci95_low"] > one["ci95_high"]


def with_au(name: str, found: Mapping) -> str:
    return f"{name} {wording.tenths(found['shares']['au']['median'])}"


def speed(found: Mapping) -> Mapping:
    """The summary of its images per second, end to end."""
    return found["images_per_s"][END]


def mixed(rows: Rows) -> str:
    """That the rows of a table are of several GPUs or versions, and which; empty where they are not."""
    origins: dict[tuple[str, str], list[str]] = {}
    for name, found in rows:
        origins.setdefault(origin(found), []).append(name)
    if len(origins) < 2:
        return ""
    told = ". ".join(f"{commit} on {place}: {'; '.join(names)}" for (place, commit), names in origins.items())
    return (
        "AU and what is lost are of one process each, on one GPU, and can be held against each other; "
        f"images/s are of several GPUs or versions of gpufeed. {told}."
    )
