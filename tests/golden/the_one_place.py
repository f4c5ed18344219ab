"""Everything that the golden tests take from gpufeed: a move of its modules changes this file alone."""

from gpufeed.analysis.publish import report, tabulate
from gpufeed.analysis.publish_sweeps import tabulate as tabulate_decoders
from gpufeed.experiment import Cell, cell_id

__all__ = ["Cell", "cell_id", "report", "tabulate", "tabulate_decoders"]
