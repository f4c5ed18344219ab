"""How many repeats an experiment has: a number, or as many as its cells need (`repeats: auto`).

A repeat during which other processes used the cores is measured once more. Its second record lies beside the
first, as 3-again.json beside 3.json. Standard library only: used while planning.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError

AGAIN = "-again"  # suffix of a repeat's second record
DISTURBED = 0.05  # share of the cores that other processes may use at most


@dataclass(frozen=True)
class Auto:
    """Adds blocks of repeats until the confidence interval of every cell's median is narrow enough.

    least, most: repeats of a cell. within: the largest distance from the median to an end of its 95 %
    interval, as a share of the median.
    """

    least: int = 6  # the fewest that have an interval
    most: int = 20
    within: float = 0.03

    def count(self, decision: Callable[[int], str | Path]) -> int:
        """Return the repeats that the decisions so far ask for.

        decision: number of repeats -> the file that says whether more are needed ({"more": true}). It is
        called for one number after another, and its exceptions propagate. A missing file means no more.
        """
        repeats = self.least
        while repeats < self.most and wants_more(decision(repeats)):
            repeats += 1
        return repeats


def wants_more(path: str | Path) -> bool:
    """Return whether a decision exists and asks for another block."""
    try:
        return bool(json.loads(Path(path).read_text())["more"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_auto(value: int | str | Mapping, experiment: str) -> Auto | None:
    """Return the settings of `repeats: auto`, None for a number; raise GpufeedError if least > most."""
    if isinstance(value, int):
        return None
    found = Auto(**({} if value == "auto" else value))
    if found.most < found.least:
        raise GpufeedError(
            f"repeats of experiment {experiment!r}: least {found.least}, most {found.most}",
            "least no larger than most",
            "raise `most` or lower `least`",
        )
    return found


def number_of(name: str) -> int | None:
    """Return the number of a repeat by the name of its record: 3 for `3` and `3-again`, None for others."""
    number = name.removesuffix(AGAIN)
    return int(number) if number.isdecimal() else None


def again(record: str | Path) -> Path:
    """Return the path of the second record of a repeat."""
    record = Path(record)
    return record.with_name(f"{record.stem}{AGAIN}{record.suffix}")


def others_share(telemetry: Mapping | None) -> float | None:
    """Return the share of the cores that other processes used; None if the record does not have it."""
    return telemetry["host"].get("others_cpu_share") if isinstance(telemetry, Mapping) else None


def is_disturbed(telemetry: Mapping | None) -> bool:
    """Return whether other processes used more of the cores than DISTURBED; False if unknown."""
    return (others_share(telemetry) or 0.0) > DISTURBED


def disturbed(records: Iterable[str | Path]) -> list[str]:
    """Return CELL/REPEAT of each disturbed record; unreadable ones are reported elsewhere."""
    found = []
    for path in map(Path, records):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if is_disturbed(json.loads(path.read_text())["telemetry"]):
                found.append(f"{path.parent.name}/{path.stem}")
    return found


def counting(records: Mapping[Path, tuple[Hashable, Mapping | None]]) -> list[Path]:
    """Return the records that count, one for each repeat, in their order.

    records: path -> machine and telemetry. Of a repeat with two records the first counts. The second replaces
    it if the first was disturbed and the second, on the same machine, less.
    """
    second = {path: again(path) for path in records if again(path) in records}
    better = {path: other for path, other in second.items() if stands_in(records[other], records[path])}
    left_out = {*second.values()} - {*better.values()} | {*better}
    return [path for path in records if path not in left_out]


def machine(record: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Return what repeats must share to form a sample: hardware, stack, torch and the batch size used.

    record: the fields of a whole one.
    """
    environment, resolved = record["environment"], record.get("resolved") or {}
    gpu = environment["gpu"] if resolved.get("device") == "cuda" else None
    hardware, torch = gpu["name"] if gpu else environment["cpu"], environment["versions"].get("torch")
    batch_size = resolved.get("batch_size") or record["cell"]["batch_size"]
    return hardware, environment["stack"], torch or "unknown", batch_size


def stands_in(second: tuple[Hashable, Mapping | None], first: tuple[Hashable, Mapping | None]) -> bool:
    """Return whether the second record of a repeat replaces the first."""
    (machine, telemetry), (machine_before, telemetry_before) = second, first
    share = others_share(telemetry)
    less = share is not None and is_disturbed(telemetry_before) and share < others_share(telemetry_before)
    return less and machine == machine_before
