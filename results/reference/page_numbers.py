"""Numbers in pages: what one is, where it stands in its text, and what headline.json says of it."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property

from gpufeed.system.statistics import ENOUGH_FOR_INTERVAL


@dataclass(frozen=True)
class Number:
    """One number: what it is, its value and range, n repeats, passes or pairs, and where they are from."""

    what: str
    value: float
    low: float
    high: float
    n: int
    card: str
    commits: list[str]
    records: list[str]

    @property
    def shown(self) -> list[float]:
        return [self.value, self.low, self.high]


@dataclass(frozen=True)
class Claim:
    """A text of a page, with N at each number. shown: what stands at each N; numbers: those measured."""

    page: str
    text: str
    shown: list[float]
    numbers: list[Number] = field(default_factory=list)

    @cached_property
    def pattern(self) -> re.Pattern:
        """The text as a pattern: a space is any white space, and `...` anything but a new column."""
        words = re.escape(self.text).replace(r"\.\.\.", "[^|]*?").replace(r"\ ", r"\s+")
        return re.compile(re.sub(r"\bN\b", r"([\\d.,]*\\d)", words))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where the numbers stand; raise ValueError unless the page has the text once."""
        found = list(self.pattern.finditer(text))
        if len(found) != 1:
            raise ValueError(f"found {len(found)} times in {self.page}; expected once: {self.text}")
        spans = [found[0].span(group + 1) for group in range(self.pattern.groups)]
        if len(spans) != len(self.shown):
            raise ValueError(f"found {len(spans)} N and {len(self.shown)} numbers: {self.text}")
        return spans


def written(number: float) -> str:
    """Return a number as pages have it: 1,234 or 0.3."""
    return f"{number:,}"


def rendered(page: str, text: str, claims: Iterable[Claim]) -> str:
    """Return a page with the numbers of its claims written into it."""
    ours = [claim for claim in claims if claim.page == page]
    places = [
        (*span, written(n)) for claim in ours for span, n in zip(claim.spans(text), claim.shown, strict=True)
    ]
    for start, end, number in sorted(places, reverse=True):
        text = text[:start] + number + text[end:]
    return text


def uncovered(page: str, text: str, claims: Iterable[Claim]) -> list[str]:
    """Return the shares and factors of a page that no claim covers, but in code."""
    spans = [span for claim in claims if claim.page == page for span in claim.spans(text)]
    code = [match.span() for match in re.finditer(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)]
    found = re.finditer(r"\d[\d.,]*(?=\s+(?:%|times|images/s|images a\s+second|million))", text)
    return [match[0] for match in found if not any(a <= match.start() < b for a, b in (*spans, *code))]


def document(claims: Iterable[Claim]) -> str:
    """Return headline.json. few: whether fewer than six repeats are all there is, so no more than a range."""
    rows = [
        {
            "page": claim.page,
            "text": claim.text,
            "shown": claim.shown,
            "numbers": [{**asdict(n), "few": n.n < ENOUGH_FOR_INTERVAL} for n in claim.numbers],
        }
        for claim in claims
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
