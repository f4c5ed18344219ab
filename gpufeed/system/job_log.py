"""One log file for each job; our own errors appear there as sentences."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import refusal


class LogFile(logging.FileHandler):
    """A log file that ignores a full disk, which the job's output reports anyway."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Log to `path` inside the block; exit with status 1 if the block raises.

    A GpufeedError is printed to stderr and logged, without a traceback. So is a disk that is full or not
    writable. Other errors keep their traceback.
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
