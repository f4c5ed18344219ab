"""The words of an sbatch line, and the values of its options."""

import shlex
from collections.abc import Iterator, Sequence


def words_of(text: object) -> list[str]:
    """The words of a text as a shell splits them; by blanks alone where a quote is never closed."""
    try:
        return shlex.split(str(text or ""))
    except ValueError:
        return str(text).split()


def values(words: Sequence[str], *names: str) -> Iterator[tuple[str, str]]:
    """(name, value) of each of these options: --name=VALUE, --name VALUE, -N VALUE and -NVALUE."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            yield name, value if equals or place + 1 == len(words) else words[place + 1]
        elif word[:2] in names:
            yield word[:2], word[2:]
