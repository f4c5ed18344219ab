"""python -m gpufeed.predict MODEL FILE...: classify image files by a kept model."""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

from gpufeed.benchmarks.saved_models.predictions_output import FORMATS, whole_file, write_predictions
from gpufeed.core.cells import DEVICES
from gpufeed.core.errors import GpufeedError, Skip, first_line
from gpufeed.core.quantities import integer, plural

ALL, SOME, NONE = 0, 1, 2  # exit codes: every file has a prediction, some have none, nothing was tried


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="gpufeed predict",
        description="The most probable classes of image files, by a model that rule train_model or "
        "gpufeed train has kept. Images are decoded by Pillow and stretched to the size that "
        "the model was trained on.",
        epilog="Exit code: 0 if every file has a prediction, 1 if some have none (each has a row with the "
        "reason), 2 if the command or the model cannot be used.",
    )
    found.add_argument("model", metavar="MODEL", help="model.pt of a trained cell")
    found.add_argument(
        "files", metavar="FILE", nargs="+", help="an image, or a folder: all images below it, by name"
    )
    found.add_argument(
        "--top", type=partial(integer, least=1), default=5, metavar="N", help="classes a file (default: 5)"
    )
    found.add_argument(
        "--device", choices=DEVICES, default="auto", help="default: auto, a GPU if there is one"
    )
    found.add_argument(
        "--format",
        choices=FORMATS,
        default="table",
        help="default: table; csv puts an apostrophe before a text that a spreadsheet would run as a formula",
    )
    found.add_argument("--output", type=Path, metavar="FILE", help="file to write; default: standard output")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    asked = parser().parse_args(arguments)
    warnings.simplefilter("ignore")  # Pillow's, on files that it reads all the same
    try:
        read = {os.path.realpath(name) for name in (asked.model, *asked.files)}
        if asked.output and os.path.realpath(asked.output) in read:
            raise GpufeedError(
                f"{asked.output} both to read and to write",
                "an output of its own",
                "name another with --output",
            )
        from gpufeed.benchmarks.saved_models.prediction import (
            open_predictor,  # imports torch, which --help does not need
        )

        predictor = open_predictor(asked.model, asked.device)
        classes = predictor.saved.classes
        top = min(asked.top, len(classes))
        with whole_file(asked.output) if asked.output else standard_output() as out:
            rows = predictor.predict(asked.files, top)
            without = write_predictions(rows, out, asked.format, top, classes)
    except (GpufeedError, Skip) as error:
        print(error, file=sys.stderr)
        return NONE
    except BrokenPipeError:  # the reader has closed the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SOME
    except (OSError, RuntimeError, MemoryError) as error:  # a full disk, a device or a node out of memory
        print(f"stopped: {type(error).__name__}: {first_line(error)}", file=sys.stderr)
        return NONE
    except KeyboardInterrupt:
        return 130  # an interrupt's exit code in shells
    if without:
        files = plural(without, "file has", "files have")
        print(f"{files} no prediction; the output says why.", file=sys.stderr)
    return SOME if without else ALL


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yield standard output, which writes undecodable file names as their bytes."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    yield sys.stdout
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
