"""python -m gpufeed.cluster.bundle.code [FILE.tar.gz], in a checkout: the code for a node, with its commit.

Writes gpufeed/_commit.json, by which a copy without .git knows its commit and whether it was changed since.
With a file it packs all that git does not ignore into that, as it is now, and gpufeed/_commit.json with it.
"""

import argparse
import os
import sys
import tarfile
from pathlib import Path

from gpufeed.cluster.bundle.contents import ROOT
from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import whole
from gpufeed.system.commit import FILE, checkout, git, write

TOP = "gpufeed"  # the one folder that an archive unpacks to
SHOWN = 10  # changed files that are named


def pack(root: Path, archive: Path | None = None) -> str:
    """Writes the commit file of the checkout at `root`, and an archive; returns what to print of them.

    Raises GpufeedError where git does not answer.
    """
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    commit, dirty = checkout(root)
    if listed is None or commit is None or dirty is None:
        raise GpufeedError(
            f"no answer from git on {root}",
            "a git checkout of gpufeed, with a commit",
            "run it where the code was cloned, as the user that the clone belongs to",
        )
    changes = (git(root, "status", "--short", "--untracked-files=all") or "").splitlines()
    write(root, commit, dirty)
    said = f"commit {commit}, clean"
    if dirty:
        said = "\n".join(
            [f"commit {commit}, with {len(changes)} changed files, as records will say:", *changes[:SHOWN]]
        )
    if archive is None:
        return f"{FILE}: {said}"
    names = [name for name in listed.split("\0") if name and os.path.lexists(root / name)]
    with whole(archive) as partial, tarfile.open(partial, "w:gz") as packed:
        for name in [*names, FILE.as_posix()]:
            packed.add(root / name, f"{TOP}/{name}", recursive=False)
    return f"{archive}: {len(names) + 1} files in the folder {TOP}, {said}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m gpufeed.cluster.bundle.code", description=__doc__)
    parser.add_argument("archive", type=Path, nargs="?", metavar="FILE.tar.gz", help="is packed too")
    try:
        print(pack(ROOT, parser.parse_args().archive))
    except GpufeedError as error:
        sys.exit(str(error))
    except OSError as error:  # no room, no permission
        sys.exit(str(GpufeedError(str(error), "a place with room, in which you may write", "name another")))
