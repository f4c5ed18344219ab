"""One thing that preflight found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Found, expected, what to do. note: the run may start all the same."""

    found: str
    expected: str
    remedy: str
    note: bool = False

    def __str__(self) -> str:
        kind = "note" if self.note else "found"
        return f"{kind}: {self.found}\n  expected: {self.expected}\n  what to do: {self.remedy}"
