"""How counts and sizes are written in sentences, in every room."""

GIB = 2**30


def plural(number: int, noun: str, nouns: str = "", form: str = "") -> str:
    """Return `1 worker` or `2 workers`. nouns: the plural, if not noun + s. form: the number's format."""
    return f"{number:{form}} {noun if number == 1 else nouns or noun + 's'}"


def gib(size: int) -> str:
    """Return a size in GiB, or in MiB if it is less than a tenth of one."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"
