"""Published results: a folder of results whose documents lie in archives, one an experiment.

NAME.tar.xz holds files below the folder that it lies in, at the paths that a run wrote. Standard library
only: used while planning.
"""

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from shutil import copytree, ignore_patterns

from gpufeed.core.errors import GpufeedError

ENDING = ".tar.xz"


def pack(folder: Path, paths: Iterable[Path], archive: Path) -> None:
    """Write files below a folder to an archive: the same bytes whenever, wherever and by whomever."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for path in sorted(paths, key=lambda path: (path.suffix, path)):  # what is alike side by side
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size, info.mode = path.stat().st_size, 0o644  # and neither time nor owner
            with path.open("rb") as file:
                tar.addfile(info, file)
    archive.write_bytes(body.getvalue())


def unpacked(folder: str | Path) -> Path:
    """Return the folder itself, or with archives below it a copy that has their files in their places.

    The copy lies in the system's temporary folder, named by a digest of the folder's files, and is made once.
    Raises GpufeedError if somebody else owns its place.
    """
    folder = Path(folder)
    archives = sorted(folder.rglob(f"*{ENDING}"))
    if not archives:
        return folder
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html"):
        digest.update(f"{path.relative_to(folder)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    own = Path(tempfile.gettempdir()) / f"gpufeed-published-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    if own.stat().st_uid != os.getuid():
        raise GpufeedError(f"{own} of another user", "a folder of yours, or none", "set TMPDIR to another")
    place = own / digest.hexdigest()[:16] / folder.resolve().name
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=own) as scratch:
            made = Path(scratch) / "made"
            copytree(folder, made / place.name, ignore=ignore_patterns(f"*{ENDING}", "*.html", "*.py"))
            for archive in archives:
                with tarfile.open(archive) as tar:
                    tar.extractall(made / place.name / archive.parent.relative_to(folder), filter="data")
            try:
                made.rename(place.parent)
            except OSError:  # another process was faster
                if not place.is_dir():
                    raise
    return place
