"""The commit of this code, and whether it has changes: from git, or from a file that travels with the code.

The file also has a digest of the code, so that a copy edited later counts as changed. `python -m
gpufeed.cluster.bundle.code` writes it. Standard library only: setup.py needs it too.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from gpufeed.core.file_writes import write_whole

FILE = Path("gpufeed/_commit.json")  # never committed: git ignores it
PARTS = ("gpufeed", "rules", "workflow", "config", "tests", "Snakefile")
CODE = {".py", ".smk", ".yaml", ".cpp", ".cu", ".cuh", ".h", ".j2", ".css", ".js"}


def checkout(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the code at `root`, and whether it has changes; None for what is unknown.

    Git answers if there is a repository and git, else FILE does. FILE says "no changes" only while the code
    has its digests.
    """
    if (root / ".git").exists() and (commit := git(root, "rev-parse", "HEAD")):
        status = git(root, "status", "--porcelain")
        return commit, None if status is None else bool(status)
    try:
        about = json.loads((root / FILE).read_text())
        commit, dirty, parts = about["commit"], about["dirty"], dict(about["parts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
    there = {part: digest(root / part) for part in parts if (root / part).exists()}
    return commit, True if any(parts[part] != found for part, found in there.items()) else dirty


def write(root: Path, commit: str, dirty: bool | None, parts: tuple[str, ...] = PARTS) -> None:
    """Write FILE for the present code at `root`, whole or not at all; missing parts are left out."""
    digests = {part: digest(root / part) for part in parts if (root / part).exists()}
    about = {"commit": commit, "dirty": dirty, "parts": digests}
    write_whole(root / FILE, json.dumps(about, indent=1) + "\n")


def digest(part: Path) -> str:
    """Return 16 hex digits over a file, or over names and bytes of all code files (CODE) below a folder."""
    whole = hashlib.sha256()
    for file in [part] if part.is_file() else sorted(files_of_code(part)):
        name, data = file.relative_to(part).as_posix(), file.read_bytes()
        whole.update(f"{name}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()[:16]


def files_of_code(folder: Path) -> list[Path]:
    """Return the code files below a folder without hidden ones, which editors and Snakemake leave."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if Path(name).suffix in CODE and name[0] != "."]
    return found


def git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if git is missing, fails or takes longer than 20 s."""
    # without optional locks, several jobs may run git at once
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    text = {"text": True, "errors": "surrogateescape"}  # names need not be UTF-8
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=True, **text)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip("\n")
