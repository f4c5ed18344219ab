"""Predictions as text: a table to read, CSV and JSON. Each row is written as it comes."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gpufeed.core.file_writes import whole

FORMATS = ("table", "csv", "json")
WIDEST = 24  # letters of a class name that a table shows


@dataclass(frozen=True)
class Prediction:
    """A file and its most probable classes, the first one first; or the reason why it has none."""

    file: str
    classes: tuple[tuple[str, float], ...]
    reason: str | None = None


def write_predictions(
    predictions: Iterable[Prediction], out: TextIO, format: str, top: int, classes: Sequence[str]
) -> int:
    """Writes one row a prediction in one of FORMATS; returns how many files have none.

    top: classes that a row has at most; classes: all that there are, for the width of a table's columns.
    """
    write = {"table": write_table, "csv": write_csv, "json": write_json}[format]
    counter = Counter(predictions)
    write(counter, out, top, classes)
    return counter.without


class Counter:
    """Passes predictions on and counts the files that have none."""

    def __init__(self, predictions: Iterable[Prediction]):
        self.predictions, self.without = predictions, 0

    def __iter__(self) -> Iterator[Prediction]:
        for prediction in self.predictions:
            self.without += prediction.reason is not None
            yield prediction


def write_table(predictions: Iterable[Prediction], out: TextIO, top: int, classes: Sequence[str]) -> None:
    """A line a file: the classes with their probabilities in columns, then the path."""
    width = min(max((len(shown(name)) for name in classes), default=0), WIDEST)
    for prediction in predictions:
        cells = [f"{shown(name)[:width]:<{width}} {share:6.1%}" for name, share in prediction.classes]
        said = "  ".join(cells) if prediction.reason is None else f"no prediction: {shown(prediction.reason)}"
        out.write(f"{said}  {shown(prediction.file)}\n")


def write_csv(predictions: Iterable[Prediction], out: TextIO, top: int, classes: Sequence[str]) -> None:
    """Columns file, reason, class_1, probability_1, class_2 ...; reason is mostly empty.

    A text that a spreadsheet would run as a formula stands behind an apostrophe.
    """
    # older Pythons do not quote a carriage return, which readers take for the end of the row
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
    """The text, behind an apostrophe if it begins as formulas do. Source: OWASP, CSV Injection."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def write_json(predictions: Iterable[Prediction], out: TextIO, top: int, classes: Sequence[str]) -> None:
    """A list of {"file", "reason", "classes": [{"class", "probability"}]}; reason is mostly null."""
    out.write("[")
    for number, prediction in enumerate(predictions):
        ranked = [{"class": name, "probability": share} for name, share in prediction.classes]
        row = {"file": prediction.file, "reason": prediction.reason, "classes": ranked}
        out.write(("," if number else "") + "\n" + json.dumps(row))
    out.write("\n]\n")


@contextmanager
def whole_file(path: str | Path) -> Iterator[TextIO]:
    """A file to write text to (UTF-8, undecodable names as their bytes) that is whole or not there."""
    Path(path).parent.stat()  # a folder that somebody mistyped is not made
    with (
        whole(path) as partial,
        partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


def shown(text: str) -> str:
    """The text with what no terminal can show as escapes: line ends, control codes, undecodable bytes."""
    return "".join(letter if letter.isprintable() else escaped(letter) for letter in text)


def escaped(letter: str) -> str:
    """A backslash and a code; a byte of a file name that is no text stands as U+DC80 to U+DCFF."""
    if 0xDC80 <= ord(letter) <= 0xDCFF:
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape", "surrogatepass").decode()
