"""What the workflow's script on comparisons calls."""

import logging
from collections.abc import Iterable
from pathlib import Path

from gpufeed.core.file_writes import write_whole
from gpufeed.report.comparison import compare
from gpufeed.report.comparison_text import conclusion, markdown
from gpufeed.report.load_records import read_records

logger = logging.getLogger("gpufeed")
Paths = Iterable[str | Path]


def write_comparison(
    records: Paths, baseline: Paths, names: tuple[str, str], out_csv: str | Path, out_markdown: str | Path
) -> None:
    """Writes the comparison of two sets of records: its rows (`comparison.COLUMNS`), and all it says.

    A regression or a refused cell fails nothing: whoever wants an exit code runs `python -m gpufeed.compare`.
    """
    found = compare(read_records(records), read_records(baseline), names)
    logger.info(conclusion(found))
    write_whole(out_csv, found.rows.to_csv(index=False, lineterminator="\n"))
    write_whole(out_markdown, markdown(found))
