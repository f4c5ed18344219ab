"""One job, one log file: everything that a job says, and errors as sentences where they are ours."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import refusal


class LogFile(logging.FileHandler):
    """A log that lacks lines where its disk is full: what the job makes goes there too, and says so."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Logs to `path` while the block runs, and ends the job with status 1 if the block raises.

    A GpufeedError is its three lines, on stderr and in the log, which Snakemake shows too, and so is a disk
    that is full or may not be written to; anything else keeps its traceback in both places.
    """
    path, logger = Path(path), logging.getLogger("gpufeed")
    handler: logging.Handler = logging.NullHandler()
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = LogFile(path, mode="w")
        finally:
            logger.addHandler(handler)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.setLevel(logging.INFO)
        yield logger
    except Exception as error:
        known = refusal(error, error.filename or path.parent) if isinstance(error, OSError) else error
        if not isinstance(known, GpufeedError):
            logger.exception("stopped by an unexpected error")
            raise
        logger.error("stopped: %s", known)
        print(known, file=sys.stderr)
        sys.exit(1)
    finally:
        logger.removeHandler(handler)
        handler.close()
