"""What the page says of cells that ran out of memory and were measured with a smaller batch."""

import pandas as pd

from gpufeed.report.wording import plural


def lines(own_records: pd.DataFrame) -> list[str]:
    """A sentence for each such cell and batch of one experiment, as `records.read_records` makes them."""
    done = own_records[own_records["status"] == "done"]
    smaller = done[done["batch_size"] < done["batch_size_asked"]]
    found = smaller.groupby(["cell_id", "batch_size_asked", "batch_size"], sort=True).size()
    return [
        f"{cell} ran out of memory at {plural(asked, 'image')} a step and was measured with {fitted} "
        f"({plural(count, 'repeat')})"
        for (cell, asked, fitted), count in found.items()
    ]
