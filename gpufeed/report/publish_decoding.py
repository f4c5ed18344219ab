"""What the scripts of the sweep call: sweeps in, finished table and figures out."""

import logging
from collections.abc import Iterable
from pathlib import Path

from gpufeed.core.file_writes import write_whole
from gpufeed.report import style
from gpufeed.report.sections import decoding_figures, decoding_tables

logger = logging.getLogger("gpufeed")


def tabulate(paths: Iterable[str | Path], out: str | Path) -> None:
    """Writes the table of decoders as CSV (columns: sweeps.COLUMNS)."""
    points, troubles = decoding_tables.read_sweeps(paths)
    for trouble in troubles.itertuples():
        logger.warning("%s %s: %s", trouble.decoder, trouble.status, trouble.sentence)
    write_whole(out, points.to_csv(index=False, lineterminator="\n"))


def plot(paths: Iterable[str | Path], out_crossover: str | Path, out_decoding: str | Path) -> None:
    """Writes the two figures as SVG; one with nothing to show says so in a sentence."""
    points, _ = decoding_tables.read_sweeps(paths)
    write_whole(out_crossover, style.to_svg(decoding_figures.draw_crossover(points)))
    write_whole(out_decoding, style.to_svg(decoding_figures.draw_decoding(points)))
