"""A full disk, told as a sentence wherever data is written."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufeed.errors import GpufeedError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # full disk, quota reached, file size limit


@contextmanager
def enough_disk(folder: Path) -> Iterator[None]:
    """Turns the error of a full disk inside the block into a GpufeedError that names `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise GpufeedError(
            f"no room to write in {folder} ({error.strerror})",
            "a disk (and quota) with room for the whole dataset",
            "free some space or move the folder to a larger disk (TMPDIR names the temporary one), then run "
            "the command again",
        ) from error
