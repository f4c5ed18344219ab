"""Names in findings: of rules, and of what was meant."""

from collections.abc import Iterable
from difflib import get_close_matches

from gpufeed.cluster.preflight.asked_plan import Ask


def rules_of(asks: Iterable[Ask]) -> str:
    """The rules, each once: `gate, measure_cell`."""
    return ", ".join(sorted({ask.rule for ask in asks}))


def near(name: str, choices: Iterable[str]) -> str:
    """The choice that looks most like a name, or the first; "" where there is none."""
    return next(iter([*get_close_matches(name, list(choices), n=1), *choices]), "")
