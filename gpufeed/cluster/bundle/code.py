"""python -m gpufeed.cluster.bundle.code [FILE.tar.gz], in a checkout: the code for a node, with its commit.

Writes gpufeed/_commit.json, by which a copy without .git knows its commit and whether it has changed. With a
file, it also packs all that git does not ignore, and gpufeed/_commit.json, into an archive.
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

TOP = "gpufeed"  # the only top-level folder of an archive
SHOWN = 10  # changed files that are named


def pack(root: Path, archive: Path | None = None) -> str:
    """Write the commit file of the checkout at `root`, and an archive; return a summary to print.

    Raises GpufeedError if git does not answer.
    """
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    commit, dirty = checkout(root)
    if listed is None or commit is None or dirty is None:
        raise GpufeedError(
            f"no answer from git on {root}",
            "a git checkout of gpufeed, with a commit",
            "run it in the clone, as the user who owns it",
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
    parser.add_argument("archive", type=Path, nargs="?", metavar="FILE.tar.gz", help="archive to write, too")
    try:
        print(pack(ROOT, parser.parse_args().archive))
    except GpufeedError as error:
        sys.exit(str(error))
    except OSError as error:  # a full disk, or no permission
        sys.exit(str(GpufeedError(str(error), "a place with room, in which you may write", "name another")))
