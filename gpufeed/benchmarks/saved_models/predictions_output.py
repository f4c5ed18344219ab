"""Writes predictions as a table, CSV or JSON, one row at a time."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import whole

FORMATS = ("table", "csv", "json")
WIDEST = 24  # characters of a class name in a table


@dataclass(frozen=True)
class Prediction:
    """A file and its most probable classes, best first; or the reason why it has none."""

    file: str
    classes: tuple[tuple[str, float], ...]
    reason: str | None = None


def write_predictions(
    predictions: Iterable[Prediction], out: TextIO, format: str, top: int, classes: Sequence[str]
) -> int:
    """Write one row per prediction in one of FORMATS; return how many files have none.

    top: the most classes of a row; classes: all classes, for the width of a table's columns.
    """
    without = 0

    def counted() -> Iterator[Prediction]:
        nonlocal without
        for prediction in predictions:
            without += prediction.reason is not None
            yield prediction

    {"table": write_table, "csv": write_csv, "json": write_json}[format](counted(), out, top, classes)
    return without


def write_table(predictions: Iterable[Prediction], out: TextIO, top: int, classes: Sequence[str]) -> None:
    """Write a line per file: classes with their probabilities in columns, then the path."""
    width = min(max((len(shown(name)) for name in classes), default=0), WIDEST)
    for prediction in predictions:
        cells = [f"{shown(name)[:width]:<{width}} {share:6.1%}" for name, share in prediction.classes]
        said = "  ".join(cells) if prediction.reason is None else f"no prediction: {shown(prediction.reason)}"
        out.write(f"{said}  {shown(prediction.file)}\n")


def write_csv(predictions: Iterable[Prediction], out: TextIO, top: int, classes: Sequence[str]) -> None:
    """Write columns file, reason, class_1, probability_1, class_2 ...; reason is mostly empty.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    # older Pythons do not quote a carriage return, which ends the row for readers
    writer, quoting = (
        csv.writer(out, quoting=how, lineterminator="\n") for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    heads = [f"{what}_{place}" for place in range(1, top + 1) for what in ("class", "probability")]
    writer.writerow(["file", "reason", *heads])
    for prediction in predictions:
        cells = [cell for name, share in prediction.classes for cell in (no_formula(name), f"{share:.6f}")]
        cells += [""] * (len(heads) - len(cells))
        row = [no_formula(prediction.file), no_formula(prediction.reason or ""), *cells]
        (quoting if any("\r" in cell for cell in row) else writer).writerow(row)


def no_formula(text: str) -> str:
    """Return the text, with an apostrophe if it looks like a formula. Source: OWASP, CSV Injection."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def write_json(predictions: Iterable[Prediction], out: TextIO, top: int, classes: Sequence[str]) -> None:
    """Write a list of {"file", "reason", "classes": [{"class", "probability"}]}; reason is mostly null."""
    out.write("[")
    for number, prediction in enumerate(predictions):
        ranked = [{"class": name, "probability": share} for name, share in prediction.classes]
        row = {"file": prediction.file, "reason": prediction.reason, "classes": ranked}
        out.write(("," if number else "") + "\n" + json.dumps(row))
    out.write("\n]\n")


@contextmanager
def whole_file(path: str | Path) -> Iterator[TextIO]:
    """Yield a text file (UTF-8, undecodable names as their bytes) that is written whole or not at all."""
    if not (folder := Path(path).parent).is_dir():  # do not create a mistyped one
        raise GpufeedError(
            f"no folder {folder} to write {Path(path).name} in",
            "a folder that exists",
            "create it, or name another",
        )
    with (
        whole(path) as partial,
        partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


def shown(text: str) -> str:
    """Return the text with unprintable characters escaped: line ends, control codes, undecodable bytes."""
    return "".join(letter if letter.isprintable() else escaped(letter) for letter in text)


def escaped(letter: str) -> str:
    """Return a character as a backslash code; undecodable bytes of file names are U+DC80 to U+DCFF."""
    if 0xDC80 <= ord(letter) <= 0xDCFF:
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape", "surrogatepass").decode()
