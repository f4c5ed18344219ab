"""A dataset's files: from a folder of archived ones, a local path or a mirror, checked before use."""

import hashlib
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import NO_ROOM, enough_disk
from gpufeed.datasets.http_transfer import (
    LEAST_KB_S,
    TooSlow,
    TransferFailed,
    Wanted,
    discard,
    held,
    transfer,
)

STAND_INS = ("cifar10-jpeg.npz", "tiny-imagenet-40.zip")  # no download exists

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class SourceFile:
    """One file of a dataset. size: bytes; urls: http(s)://, file:// or a local path, tried in order."""

    name: str
    urls: tuple[str, ...] = ()
    sha256: str | None = None
    size: int | None = None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    file: SourceFile,
    target: Path,
    archives: list[Path],
    progress: bool = True,
    least_kb_s: float = LEAST_KB_S,
) -> Path:
    """Brings `file` to `target` and returns it; `target` appears only whole and checked.

    Looks into the folders `archives` for `file.name` first, then tries each URL. One that brings less than
    least_kb_s in a minute is left for the next place, and goes on, however slowly, once no other gives the
    file, the fastest first; 0: none is left. What has arrived stays in `<target>.partial`, also after
    SIGKILL, and the next place or call goes on from there. Raises GpufeedError, with the reason for every
    place tried, if none gives the file, and when the disk is full.
    """
    target, archives = Path(target), [Path(folder) for folder in archives]
    partial = target.with_name(target.name + ".partial")
    reasons, slow = [], []
    with enough_disk(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        places = _places(file, archives)
        turns = [(place, least_kb_s if len(places) > 1 else 0) for place in places]
        while turns:
            place, least = turns.pop(0)
            began, had = time.monotonic(), held(partial)
            try:
                reason = _try_place(place, file, partial, progress, least)
            except TooSlow as error:
                reason = str(error)
                slow.append(((held(partial) - had) / (time.monotonic() - began), place))
                log.warning("%s is left for now: %s", place, reason)
            if reason is None:
                os.replace(partial, target)
                discard(partial)
                return target
            reasons.append(f"{place}: {reason}")
            if not turns:
                turns, slow = [(place, 0) for _, place in sorted(slow, reverse=True)], []
    raise _unavailable(file, archives, reasons)


def _places(file: SourceFile, archives: list[Path]) -> list[str]:
    """Archived copies that exist, then the URLs."""
    copies = [folder / file.name for folder in archives]
    return [str(copy) for copy in copies if copy.is_file()] + list(file.urls)


def _try_place(place: str, file: SourceFile, partial: Path, progress: bool, least_kb_s: float) -> str | None:
    """Fills `partial` from one place and checks it; the reason why that failed, or None.

    Raises TooSlow for a URL that is slower than least_kb_s.
    """
    resumed = False
    try:
        local = _local_path(place)
        if local is not None:
            discard(partial)
            shutil.copyfile(local, partial)
        else:
            resumed = held(partial) > 0
            transfer(Wanted(place, partial, file.size, file.sha256 is not None, progress, least_kb_s))
    except TooSlow:
        raise
    except TransferFailed as error:
        return str(error)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return f"{error.strerror} ({error.filename})"
    reason = _mismatch(file, partial)
    if reason is None:
        return None
    discard(partial)
    # bytes left by an earlier run may belong to another version: once more from the first byte
    return _try_place(place, file, partial, progress, least_kb_s) if resumed else reason


def _local_path(place: str) -> Path | None:
    """The path behind a plain path or a file:// URL; None for http(s). Raises TransferFailed otherwise."""
    url = urlsplit(place)
    if url.scheme in ("http", "https"):
        return None
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return Path(url2pathname(url.path))
    if "://" in place:
        raise TransferFailed("not an address that can be fetched: use http(s)://, file:/// or a local path")
    return Path(place).expanduser()


def _mismatch(file: SourceFile, path: Path) -> str | None:
    """How the bytes differ from what was promised; None if they do not."""
    size = held(path)
    if file.size is not None and size != file.size:
        return f"{size} bytes instead of {file.size}"
    if file.sha256 is not None and (found := sha256_of(path)) != file.sha256.lower():
        return f"sha256 {found}"
    return None


def _unavailable(file: SourceFile, archives: list[Path], reasons: list[str]) -> GpufeedError:
    """The error for a file that no place gave."""
    folders = ", ".join(str(folder) for folder in archives)
    promised = [f"sha256 {file.sha256}"] * (file.sha256 is not None)
    promised += [f"{file.size} bytes"] * (file.size is not None)
    expected = f"{file.name} with {', '.join(promised)}" if promised else file.name
    put = (
        f"put {file.name} into {folders}"
        if folders
        else f"name a folder that holds {file.name} in `archives`"
    )
    if file.name in STAND_INS:
        put += ", or make it: python -m gpufeed.datasets.stand_ins"
    if not reasons:
        where = f"no {file.name} in {folders}" if folders else f"no folder of archives for {file.name}"
        return GpufeedError(f"{where}, and its source has no URL", expected, put)
    remedy = f"check the network and the source's row in the config, or {put}; then run the command again"
    return GpufeedError("; ".join(reasons), expected, remedy)


def for_job(job: Any) -> None:
    """Do the work of rule download, a gpufeed.job.Job."""
    # places come from the config and not from params: a new mirror is no reason to fetch again
    rows = job.config["sources"][job.wildcards.dataset]["files"]
    urls = next(row.get("urls") for row in rows if row["name"] == job.params.file["name"]) or ()
    file = SourceFile(urls=tuple(urls), **job.params.file)
    archives, least = [Path(folder) for folder in job.config["archives"]], job.config["least_download_kb_s"]
    target = fetch(file, Path(job.output[0]), archives, least_kb_s=least)
    log.info("%s: %d bytes", target, target.stat().st_size)
