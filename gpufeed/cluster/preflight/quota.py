"""A user's quota on Lustre, as `lfs quota` prints it: a row, broken after a long name, of

    FILESYSTEM kbytes quota limit grace files quota limit grace

with * behind what is too much, [] around what not all servers have told, and 0 where there is no limit.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpufeed.cluster.preflight.login_node import said_by

NUMBER = r"\s+\[?([0-9]{1,20})\]?\*?"
ROW = re.compile(rf"{NUMBER * 3}\s+\S+{NUMBER * 3}\s+\S+")


@dataclass(frozen=True)
class Quota:
    """What a user has on a file system, and may have at most; None: no limit.

    kib, most_kib: of the files together. files, most_files: their number, folders included. Limits are the
    soft ones where there are any, since Lustre writes beyond them for a grace period alone.
    """

    kib: int
    most_kib: int | None
    files: int
    most_files: int | None


def quota_of(folder: Path) -> Quota | None:
    """This user's where a folder lies; None without Lustre and its command, or an answer within 20 s."""
    return read_quota(said_by("lfs", "quota", "-u", str(os.getuid()), str(folder)) or "")


def read_quota(said: str) -> Quota | None:
    """The first row of what `lfs quota` prints; None where there is none."""
    row = ROW.search(said)
    if not row:
        return None
    kib, soft_kib, hard_kib, files, soft_files, hard_files = map(int, row.groups())
    return Quota(kib, soft_kib or hard_kib or None, files, soft_files or hard_files or None)
