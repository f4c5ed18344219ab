"""Whose images a loader yields: a decoder leaves what it cannot take to another, which must not go untold."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpufeed.core.errors import Skip
from gpufeed.decoders.base import Outcome


@dataclass
class Tally:
    """Images decoded so far. decoder: whose they should be; by: who decoded how many, that one included.

    settings: of that decoder, as Decoder.settings.
    """

    decoder: str
    by: Counter[str] = field(default_factory=Counter)
    settings: dict[str, float | None] = field(default_factory=dict)

    def add(self, decoder: str, images: int = 1) -> None:
        """Counts images of one decoder."""
        self.by[decoder] += images

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Counts images that were decoded, each by its outcome's decoder."""
        self.by.update(outcome.decoder for outcome in outcomes)

    @property
    def images(self) -> int:
        return self.by.total()

    @property
    def fell_back(self) -> dict[str, int]:
        """Other decoders and their images, by name."""
        return {name: count for name, count in sorted(self.by.items()) if count and name != self.decoder}

    def asdict(self) -> dict[str, Any]:
        """The field `loading` of records and verdicts."""
        return {"decoder": self.decoder, "images": self.images, "fell_back": self.fell_back, **self.settings}

    def check(self) -> None:
        """Raises Skip if the decoder has decoded nothing of all the images: it is not the one measured."""
        others = self.fell_back
        if others and not self.by[self.decoder]:
            raise Skip(
                f"Decoder {self.decoder} takes none of these files: all {self.images:,} images that it was "
                f"given were decoded by {' and '.join(others)}."
            )


def together(tallies: Sequence[Tally]) -> Tally:
    """One tally of several of one decoder; at least one."""
    return replace(tallies[0], by=sum((tally.by for tally in tallies), Counter()))
