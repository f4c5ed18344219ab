"""One thing that preflight found."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpufeed.core.rerun_options import options


@dataclass(frozen=True)
class Finding:
    """Found, expected, what to do. note: the run may start anyway.

    config: what `--config` must set; `{config}` in the remedy stands for that option.
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
            option += " (in one option: Snakemake uses only the last --config)"
            remedy = remedy.replace("{config}", option)
        return f"{kind}: {self.found}\n  expected: {self.expected}\n  what to do: {remedy}"


def joined(findings: Iterable[Finding], given: Mapping[str, object]) -> list[Finding]:
    """Return the findings with one common `--config`: what was given, and what all of them set."""
    found = list(findings)
    settings = dict(given)
    for finding in found:
        settings |= finding.config
    return [replace(finding, config=settings) if finding.config else finding for finding in found]
