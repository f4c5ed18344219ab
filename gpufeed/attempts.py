"""Which records are final. Standard library only: the workflow asks while it plans.

A finished repeat stays. A failed one is tried again by the next run. A skipped one is final only on
the node that planned it, since another node may have the GPU or the package that it lacked.
"""

import json
from pathlib import Path


def attempt(record: str | Path, node: str) -> int:
    """Number of the attempt that the record on disk should come from, from 1 on.

    It equals the attempt in the record while that is final, and is one more where it is not; the
    workflow passes it to the job as a parameter, so that a change runs the job again.
    """
    try:
        data = json.loads(Path(record).read_text())
        final = data["status"] == "done" or (data["status"] == "skipped" and data["planned_on"] == node)
        return data["attempt"] if final else data["attempt"] + 1
    except FileNotFoundError:
        return 1
    except (OSError, ValueError, KeyError, TypeError):
        return 2  # a damaged record: whatever wrote it, run the job again
