"""python -m gpufeed.compare A B: is A slower than B, cell by cell? With --across: machines side by side."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpufeed.core.errors import GpufeedError, first_line, require_known
from gpufeed.core.folders import records_below

NOTHING, REGRESSED, REFUSED = 0, 1, 2  # exit codes: no regression, one is shown, no answer


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="gpufeed compare",
        description="Compares the images/s of two runs, cell by cell, regressions first: A is the new one, B "
        "the baseline. Cells that differ in GPU model, power limit, SM clock or data are refused.",
        epilog="Exit code: 0 if no cell is shown to be slower, 1 if one is, or failed where it had not, 2 if "
        "cells were refused, if none could be judged, if A lacks cells of an experiment that both have, or "
        "if the folders cannot be used.",
    )
    found.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="+",
        help="A and B: folders of results, such as results and results/reference/h200, or of records",
    )
    found.add_argument(
        "--experiment", action="append", default=[], metavar="NAME", help="compare this one only; repeatable"
    )
    found.add_argument("--force", action="store_true", help="compare refused cells too; the output is marked")
    found.add_argument(
        "--across",
        action="store_true",
        help="any number of folders, of different machines: each pipeline by its own machine's limit",
    )
    found.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here too, as Markdown")
    found.add_argument("--csv", type=Path, metavar="FILE", help="write the rows here too")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    command = parser()
    asked = command.parse_args(arguments)
    if not asked.across and len(asked.folders) != 2:
        command.error(f"two folders are compared, found {len(asked.folders)}; --across takes any number")
    try:
        return side_by_side(asked) if asked.across else one_against_one(asked)
    except GpufeedError as error:
        print(error, file=sys.stderr)
    except BrokenPipeError:  # the reader has closed the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a folder that may not be read
        print(f"stopped: {type(error).__name__}: {first_line(error)}", file=sys.stderr)
    return REFUSED


def one_against_one(asked: argparse.Namespace) -> int:
    """Compare A with B, print and write the result, and return the exit code."""
    from gpufeed.report import comparison, comparison_text  # imports pandas, which --help does not need
    from gpufeed.report.load_records import read_records

    sides = ((folder, read_records(records_below(folder))) for folder in asked.folders)
    ours, base = (only(records, asked.experiment, folder) for folder, records in sides)
    found = comparison.compare(ours, base, tuple(asked.folders), asked.force)
    say(asked, comparison_text.text(found), comparison_text.markdown(found), found.rows)
    if found.regressed:
        return REGRESSED
    if found.refused:
        print("Some cells were refused; --force compares them all the same.", file=sys.stderr)
    if found.damaged["A"]:
        print("Some files of A are no records, so a regression may be missing here.", file=sys.stderr)
    if found.vanished:
        missing = len(found.vanished)
        print(f"A has no record of {missing} of B's cells, which may have failed there.", file=sys.stderr)
    whole = not (found.refused or found.damaged["A"] or found.vanished)
    return NOTHING if found.judged and whole else REFUSED


def side_by_side(asked: argparse.Namespace) -> int:
    """Compare any number of machines, print and write the result, and return the exit code."""
    from gpufeed.report import across_machines

    found = across_machines.across(asked.folders, asked.experiment)
    say(asked, across_machines.text(found), across_machines.markdown(found), found.shares)
    return NOTHING


def only(records, experiments: Sequence[str], folder: str):
    """Return the records of these experiments, or all; raise GpufeedError for one without records here."""
    there = sorted(records["experiment"].unique())
    for name in experiments:
        require_known("experiment", name, there, folder)
    return records[records["experiment"].isin(experiments)] if experiments else records


def say(asked: argparse.Namespace, text: str, markdown: str, rows) -> None:
    """Print the text; write the files that the options name, each complete or not at all."""
    from gpufeed.core.file_writes import write_named

    if asked.markdown:
        write_named(asked.markdown, markdown, "--markdown")
    if asked.csv:
        write_named(asked.csv, rows.to_csv(index=False, lineterminator="\n"), "--csv")
    print(text, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
