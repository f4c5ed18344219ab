"""Which records, and which verdicts of the gate, are final. Standard library only: used while planning.

A finished repeat stays, and so does a loader that passed the gate. A failed one is tried again by the
next run. A skipped one is final only on the node that planned it, since another node may have the GPU or
the package that it lacked.
"""

import json
from pathlib import Path

FINAL = ("done", "passed")


def counter(record: str | Path) -> Path:
    """Where the number of attempts at a record is kept: no output of a rule, so that it outlives them all."""
    return Path(record).with_suffix(".attempt")


def attempt(record: str | Path, node: str) -> int:
    """Number of the attempt that the record should come from, from 1 on.

    It equals the attempt in the record while that is final, and is one more where it is not. The
    workflow passes it to the job as a parameter, so that a change runs the job again; Snakemake has
    deleted the record by then, and the counter still gives the same number.
    """
    try:
        data = json.loads(Path(record).read_text())
        final = data["status"] in FINAL or (data["status"] == "skipped" and data["planned_on"] == node)
        return data["attempt"] if final else data["attempt"] + 1
    except FileNotFoundError:
        return _begun(record) + 1
    except (OSError, ValueError, KeyError, TypeError):
        return _begun(record) + 2  # damaged: whatever wrote it, run the job again


def ended(record: str | Path, number: int) -> None:
    """Writes down that attempt `number` has left its record."""
    counter(record).parent.mkdir(parents=True, exist_ok=True)
    counter(record).write_text(f"{number}\n")


def _begun(record: str | Path) -> int:
    try:
        return int(counter(record).read_text())
    except (OSError, ValueError):
        return 0
