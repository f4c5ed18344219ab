"""Everything that the golden tests take from gpufeed: a move of its modules changes this file alone."""

from gpufeed.analysis.builds import table as build_table
from gpufeed.analysis.ceilings_rows import groups as ceilings_groups
from gpufeed.analysis.ceilings_rows import limits as ceilings_limits
from gpufeed.analysis.ceilings_rows import parts as ceilings_parts
from gpufeed.analysis.ceilings_rows import table as ceilings_table
from gpufeed.analysis.comparison import compare
from gpufeed.analysis.gates import rows as gate_rows
from gpufeed.analysis.inference_rows import table as inference_table
from gpufeed.analysis.kernel_section import section as kernel_section
from gpufeed.analysis.publish import report, tabulate
from gpufeed.analysis.publish_sweeps import tabulate as tabulate_decoders
from gpufeed.analysis.records import read_records, read_steps
from gpufeed.analysis.side_by_side import TOTALS, means, saved
from gpufeed.ceilings.record import read as read_ceilings
from gpufeed.experiment import Cell, cell_id

__all__ = [
    "TOTALS",
    "Cell",
    "build_table",
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
    "tabulate_decoders",
]
