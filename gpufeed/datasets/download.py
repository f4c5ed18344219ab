"""Fetch a dataset's files from a folder of archives, a local path or a mirror, and check them.

A download survives broken connections and killed processes. Its bytes go to a `.partial` file as they arrive;
a small JSON file beside it notes their URL and version, so that the next attempt can resume by Range and
If-Range.
"""

import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
import urllib3
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import NO_ROOM, enough_disk, sha256_of
from gpufeed.core.folders import expanded

CONNECT_S, READ_S = 20, 60  # give up waiting for a connection, for the next bytes
WINDOW_S, SLOWEST = 60, 1024  # a server slower than this many bytes/s over the window counts as stalled
LEAST_KB_S = 16  # a server slower than this many kB/s is put off while there are others
ATTEMPTS, BACKOFF_S, LONGEST_WAIT_S = 5, 1.0, 30.0
GOOD_PROGRESS = 1 << 20  # an attempt that fetched 1 MiB does not count as failed
CHUNK = 1 << 18
SILENCE = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)
TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class TransferFailed(Exception):
    """This URL does not give the file; the message says why."""


class TooSlow(TransferFailed):
    """This URL is slower than `least_kb_s`; the bytes received so far are kept."""


class _Interrupted(Exception):
    """Worth another attempt."""


@dataclass(frozen=True)
class Wanted:
    """What to transfer. size: bytes, None if unknown.

    checked: a checksum follows, so a download may resume from another mirror. least_kb_s: a server that
    brings less over WINDOW_S, or nothing for READ_S, is too slow; 0: no server is.
    """

    url: str
    partial: Path
    size: int | None
    checked: bool
    least_kb_s: float = 0


def transfer(want: Wanted) -> None:
    """Download the rest of `want.partial`, resuming where it ends.

    Raises TransferFailed if the server refuses or five attempts in a row fetched less than 1 MiB each, and
    TooSlow if it is slower than `want.least_kb_s`.
    """
    failures = 0
    while not _complete(want):
        before = held(want.partial)
        try:
            return _attempt(want)
        except (requests.exceptions.InvalidURL, requests.TooManyRedirects) as error:
            raise TransferFailed(str(error)) from error
        except (_Interrupted, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if want.least_kb_s and isinstance(error, SILENCE):
                raise TooSlow(f"nothing for {READ_S} s") from error
            failures = 0 if held(want.partial) - before >= GOOD_PROGRESS else failures + 1
            if failures == ATTEMPTS:
                raise TransferFailed(f"{ATTEMPTS} attempts failed, the last with: {error}") from error
            time.sleep(min(BACKOFF_S * 2 ** max(failures - 1, 0), LONGEST_WAIT_S))


def held(partial: Path) -> int:
    """Return how many bytes have arrived so far."""
    return partial.stat().st_size if partial.exists() else 0


def discard(partial: Path) -> None:
    """Remove the partial file and its notes."""
    partial.unlink(missing_ok=True)
    _notes_path(partial).unlink(missing_ok=True)


def _notes_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _notes(partial: Path) -> dict:
    """Return what the last response said of the partial file: url, validator (ETag or date), total bytes."""
    try:
        notes = json.loads(_notes_path(partial).read_text())
    except (OSError, ValueError):  # none yet, or cut off by a kill
        return {}
    return notes if isinstance(notes, dict) else {}


def _complete(want: Wanted) -> bool:
    """Return whether a killed run left the whole file behind."""
    notes, have = _notes(want.partial), held(want.partial)
    total = want.size if want.size is not None else notes.get("total")
    return have > 0 and have == total and (want.checked or notes.get("url") == want.url)


def _range_request(want: Wanted) -> tuple[int, dict[str, str]]:
    """Return the byte to resume from and the headers that ask for it."""
    have, notes = held(want.partial), _notes(want.partial)
    # offsets in a compressed response would not be offsets in the file
    headers = {"Accept-Encoding": "identity"}
    validator = notes.get("validator") if notes.get("url") == want.url else None
    too_long = want.size is not None and have > want.size
    if not have or too_long or not (validator or want.checked):
        return 0, headers
    headers["Range"] = f"bytes={have}-"
    if validator:
        headers["If-Range"] = validator
    return have, headers


def _attempt(want: Wanted) -> None:
    """Make one request; raise _Interrupted if another one may help."""
    start, headers = _range_request(want)
    with requests.get(want.url, headers=headers, stream=True, timeout=(CONNECT_S, READ_S)) as response:
        status = response.status_code
        if status == 206:
            total = _continued(response, start, want)
        elif status == 200:
            start, total = 0, _begun(response, want)
        elif status == 416 and start:
            discard(want.partial)
            raise _Interrupted("the file on the server is shorter than the part received so far")
        elif status in TRY_AGAIN:
            raise _Interrupted(f"HTTP {status} {response.reason}")
        else:
            raise TransferFailed(f"HTTP {status} {response.reason}")
        _receive(response, want, start, total)


def _begun(response: requests.Response, want: Wanted) -> int | None:
    """Return the total bytes of a response that starts at byte 0; note its version for a later Range."""
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdigit() else None
    if want.size is not None and total not in (None, want.size):
        raise TransferFailed(f"the server offers {total} bytes instead of {want.size}")
    etag = response.headers.get("ETag", "")
    # RFC 9110, 13.1.5: If-Range takes no weak ETag
    validator = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")
    discard(want.partial)
    notes = {"url": want.url, "validator": validator, "total": total}
    _notes_path(want.partial).write_text(json.dumps(notes))
    return want.size if total is None else total


def _continued(response: requests.Response, start: int, want: Wanted) -> int | None:
    """Return the total bytes of a partial response; raise _Interrupted if it is not the part asked for."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", ""))
    total = int(found[3]) if found and found[3] != "*" else None
    known = want.size if want.size is not None else _notes(want.partial).get("total")
    if not found or int(found[1]) != start or (None not in (total, known) and total != known):
        discard(want.partial)
        raise _Interrupted("the file on the server has changed since the earlier part was received")
    return known if total is None else total


def _receive(response: requests.Response, want: Wanted, start: int, total: int | None) -> None:
    """Write the body after the first `start` bytes; each chunk reaches the file at once."""
    have, window_start, window_have = start, time.monotonic(), start
    bar = tqdm(
        total=total,
        initial=start,
        unit="B",
        unit_scale=True,
        desc=want.partial.stem,
        disable=None,  # without a terminal
    )
    # unbuffered, so that what has arrived survives SIGKILL
    with bar, want.partial.open("ab" if start else "wb", buffering=0) as file:
        # read1 returns what is there instead of waiting for a full chunk; raw: bytes as sent
        while chunk := response.raw.read1(CHUNK, decode_content=False):
            file.write(chunk)
            have += len(chunk)
            bar.update(len(chunk))
            if total is not None and have > total:
                discard(want.partial)
                raise TransferFailed(f"more than the announced {total} bytes")
            if (elapsed := time.monotonic() - window_start) > WINDOW_S:
                if have - window_have < want.least_kb_s * 1000 * elapsed:
                    raise TooSlow(f"fewer than {want.least_kb_s:g} kB/s for {WINDOW_S} s")
                if have - window_have < SLOWEST * WINDOW_S:
                    raise _Interrupted(f"fewer than {SLOWEST} bytes/s for {WINDOW_S} s")
                window_start, window_have = time.monotonic(), have
    if total is not None and have < total:
        raise _Interrupted(f"the connection ended after {have} of {total} bytes")


STAND_INS = ("cifar10-jpeg.npz", "tiny-imagenet-40.zip")  # nobody offers them for download

log = logging.getLogger("gpufeed")


@dataclass(frozen=True)
class SourceFile:
    """One file of a dataset. size: bytes; urls: http(s)://, file:// or a local path, tried in order."""

    name: str
    urls: tuple[str, ...] = ()
    sha256: str | None = None
    size: int | None = None


def fetch(
    file: SourceFile,
    target: Path,
    archives: list[Path],
    least_kb_s: float = LEAST_KB_S,
) -> Path:
    """Fetch `file` to `target` and return it; `target` appears only complete and checked.

    Looks for `file.name` in the folders `archives` first, then tries each URL. A URL that brings less than
    least_kb_s over a minute is put off. If all others fail, those put off are tried again at any speed, the
    fastest first; 0: no URL is put off. Received bytes stay in `<target>.partial`, also after SIGKILL; the
    next place or call resumes from there. Raises GpufeedError if no place has the file, with the reason for
    each, and if the disk is full.
    """
    target, archives = Path(target), [expanded(folder) for folder in archives]
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
                reason = _try_place(place, file, partial, least)
            except TooSlow as error:
                reason = str(error)
                slow.append(((held(partial) - had) / (time.monotonic() - began), place))
                log.warning("%s is put off: %s", place, reason)
            if reason is None:
                os.replace(partial, target)
                discard(partial)
                return target
            reasons.append(f"{place}: {reason}")
            if not turns:
                turns, slow = [(place, 0) for _, place in sorted(slow, reverse=True)], []
    raise _unavailable(file, archives, reasons)


def _places(file: SourceFile, archives: list[Path]) -> list[str]:
    """Return the archived copies that exist, then the URLs."""
    copies = [folder / file.name for folder in archives]
    return [str(copy) for copy in copies if copy.is_file()] + list(file.urls)


def _try_place(place: str, file: SourceFile, partial: Path, least_kb_s: float) -> str | None:
    """Fill `partial` from one place and check it; return why that failed, or None.

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
            transfer(Wanted(place, partial, file.size, file.sha256 is not None, least_kb_s))
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
    # bytes left by an earlier run may belong to another version: try once more from the first byte
    return _try_place(place, file, partial, least_kb_s) if resumed else reason


def _local_path(place: str) -> Path | None:
    """Return the path of a plain path or a file:// URL, None for http(s); else raise TransferFailed."""
    url = urlsplit(place)
    if url.scheme in ("http", "https"):
        return None
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return Path(url2pathname(url.path))
    if "://" in place:
        raise TransferFailed("unknown kind of URL: use http(s)://, file:/// or a local path")
    return Path(place).expanduser()


def _mismatch(file: SourceFile, path: Path) -> str | None:
    """Return how the bytes differ from what `file` says; None if they do not."""
    size = held(path)
    if file.size is not None and size != file.size:
        return f"{size} bytes instead of {file.size}"
    if file.sha256 is not None and (found := sha256_of(path)) != file.sha256.lower():
        return f"sha256 {found}"
    return None


def _unavailable(file: SourceFile, archives: list[Path], reasons: list[str]) -> GpufeedError:
    """Return the error for a file that no place has."""
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
    # URLs come from the config and not from params: a new mirror is no reason to download again
    rows = job.config["sources"][job.wildcards.dataset]["files"]
    urls = next(row.get("urls") for row in rows if row["name"] == job.params.file["name"]) or ()
    file = SourceFile(urls=tuple(urls), **job.params.file)
    archives, least = [Path(folder) for folder in job.config["archives"]], job.config["least_download_kb_s"]
    target = fetch(file, Path(job.output[0]), archives, least_kb_s=least)
    log.info("%s: %d bytes", target, target.stat().st_size)
