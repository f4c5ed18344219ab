"""python -m gpufeed.watch watch.json ... -o watch.html: a page about trainings that gpufeed.watch watched."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_named


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="gpufeed report",
        description="Writes a page about one or several trainings that gpufeed.watch watched: how far each "
        "is from its limit. It opens without a network.",
    )
    found.add_argument("files", metavar="watch.json", nargs="+", help="what gpufeed.watch wrote")
    found.add_argument(
        "-o", "--output", type=Path, default=Path("watch.html"), help="the page (default: watch.html)"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 2 without a page, with the reason on standard error."""
    asked = parser().parse_args(arguments)
    try:
        if os.path.realpath(asked.output) in map(os.path.realpath, asked.files):
            raise GpufeedError(
                f"{asked.output} both to read and to write", "a page beside its files", "name another with -o"
            )
        from gpufeed.watch import watch_page  # imports matplotlib and pandas, which --help does not need

        page = watch_page.page({file: watch_page.read(file) for file in asked.files})
        write_named(asked.output, page, "-o")
    except GpufeedError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
