"""How counts and sizes are written in sentences, and read from command lines, in every room."""

from argparse import ArgumentTypeError

GIB = 2**30


def plural(number: int, noun: str, nouns: str = "", form: str = "") -> str:
    """Return `1 worker` or `2 workers`. nouns: the plural, if not noun + s. form: the number's format."""
    return f"{number:{form}} {noun if number == 1 else nouns or noun + 's'}"


def gib(size: int) -> str:
    """Return a size in GiB, or in MiB if it is less than a tenth of one."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def integer(text: str, least: int = 0) -> int:
    """Parse a whole number from a command line; raise ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) < least:
        raise ArgumentTypeError(f"found: {text}; expected: a whole number of {least} or more")
    return int(text)
