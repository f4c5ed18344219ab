"""One thing that preflight found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpufeed.core.rerun_options import options


@dataclass(frozen=True)
class Finding:
    """Found, expected, what to do. note: the run may start all the same.

    config: what `--config` has to set for it; `{config}` in the remedy stands for that option.
    """

    found: str
    expected: str
    remedy: str
    note: bool = False
    config: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = "note" if self.note else "found"
        remedy = self.remedy
        if self.config:
            (option,) = options((), self.config, ".")
            option += " (all in one: Snakemake keeps the last --config alone)"
            remedy = remedy.replace("{config}", option)
        return f"{kind}: {self.found}\n  expected: {self.expected}\n  what to do: {remedy}"


def joined(findings: Iterable[Finding], given: Mapping[str, object]) -> list[Finding]:
    """The findings, each with one and the same `--config`: what was given, and what each of them sets."""
    found = list(findings)
    settings = dict(given)
    for finding in found:
        settings |= finding.config
    return [replace(finding, config=settings) if finding.config else finding for finding in found]
