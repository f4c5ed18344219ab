"""One job, one log file: everything that a job says, and errors as sentences where they are ours."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufeed.errors import GpufeedError


@contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Logs to `path` while the block runs, and ends the job with status 1 if the block raises.

    A GpufeedError is its three lines, on stderr and in the log, which Snakemake shows too; anything
    else keeps its traceback in both places.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("gpufeed")
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    except GpufeedError as error:
        logger.error("stopped: %s", error)
        print(error, file=sys.stderr)
        sys.exit(1)
    except Exception:
        logger.exception("stopped by an unexpected error")
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()
