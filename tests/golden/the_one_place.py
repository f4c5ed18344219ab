"""Everything that the golden tests take from gpufeed: a move of its modules changes this file alone."""

from gpufeed.core.cells import Cell, cell_id
from gpufeed.core.record import CEILINGS, INFERENCE
from gpufeed.report.comparison import compare
from gpufeed.report.load_records import read_records, read_steps
from gpufeed.report.publish import report, tabulate, tabulate_sweep
from gpufeed.report.sections.builds import section as build_section
from gpufeed.report.sections.ceilings_rows import groups as ceilings_groups
from gpufeed.report.sections.ceilings_rows import limits as ceilings_limits
from gpufeed.report.sections.ceilings_rows import parts as ceilings_parts
from gpufeed.report.sections.ceilings_rows import table as ceilings_table
from gpufeed.report.sections.equivalence import rows as gate_rows
from gpufeed.report.sections.inference import table as table_of_inference
from gpufeed.report.sections.kernels import section as kernel_section
from gpufeed.report.sections.side_by_side import TOTALS, means, saved

read_ceilings = CEILINGS.read


def inference_table(paths):
    """Return the table of the models in use that these files measured."""
    return table_of_inference(map(INFERENCE.read, paths))


__all__ = [
    "TOTALS",
    "Cell",
    "build_section",
    "ceilings_groups",
    "ceilings_limits",
    "ceilings_parts",
    "ceilings_table",
    "cell_id",
    "compare",
    "gate_rows",
    "inference_table",
    "kernel_section",
    "means",
    "read_ceilings",
    "read_records",
    "read_steps",
    "report",
    "saved",
    "tabulate",
    "tabulate_sweep",
]
