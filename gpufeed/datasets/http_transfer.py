"""One HTTP download that survives broken connections and killed processes.

The bytes go to a `.partial` file as they come; a small JSON file beside it says which version of
which URL they belong to, so that the next attempt can ask for the rest by Range and If-Range.
"""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3
from tqdm import tqdm

CONNECT_S, READ_S = 20, 60  # give up waiting for a connection, for the next bytes
WINDOW_S, SLOWEST = 60, 1024  # a server slower than this many bytes/s over the window counts as stalled
LEAST_KB_S = 16  # one slower than this many kB/s is left while there are others
ATTEMPTS, BACKOFF_S, LONGEST_WAIT_S = 5, 1.0, 30.0
GOOD_PROGRESS = 1 << 20  # an attempt that brought 1 MiB does not count as a failed one
CHUNK = 1 << 18
SILENCE = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)
TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}


class TransferFailed(Exception):
    """This URL does not give the file; the message says why."""


class TooSlow(TransferFailed):
    """This URL brings less than was asked for; what has arrived stays."""


class _Interrupted(Exception):
    """Worth another attempt."""


@dataclass(frozen=True)
class Wanted:
    """What the transfer should end with. size: bytes, None if unknown.

    checked: a checksum follows, so bytes from another mirror may be continued. least_kb_s: less than that
    over WINDOW_S, or nothing for READ_S, is too slow; 0: nothing is.
    """

    url: str
    partial: Path
    size: int | None
    checked: bool
    progress: bool
    least_kb_s: float = 0


def transfer(want: Wanted) -> None:
    """Brings `want.partial` to its full length, going on where it stands.

    Raises TransferFailed when the server refuses or five attempts in a row brought less than 1 MiB, TooSlow
    when it is slower than asked for.
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
    """Bytes that have arrived so far."""
    return partial.stat().st_size if partial.exists() else 0


def discard(partial: Path) -> None:
    """Forgets what has arrived."""
    partial.unlink(missing_ok=True)
    _notes_path(partial).unlink(missing_ok=True)


def _notes_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _notes(partial: Path) -> dict:
    """What the last response said of the partial file: url, validator (ETag or date), total bytes."""
    try:
        notes = json.loads(_notes_path(partial).read_text())
    except (OSError, ValueError):  # none yet, or cut off by a kill: the same as none
        return {}
    return notes if isinstance(notes, dict) else {}


def _complete(want: Wanted) -> bool:
    """Whether a killed run left the whole file behind."""
    notes, have = _notes(want.partial), held(want.partial)
    total = want.size if want.size is not None else notes.get("total")
    return have > 0 and have == total and (want.checked or notes.get("url") == want.url)


def _range_request(want: Wanted) -> tuple[int, dict[str, str]]:
    """The byte to go on from and the headers that ask for it."""
    have, notes = held(want.partial), _notes(want.partial)
    # a compressed transfer would count other bytes than the file has
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
    """One request; raises _Interrupted when another one may help."""
    start, headers = _range_request(want)
    with requests.get(want.url, headers=headers, stream=True, timeout=(CONNECT_S, READ_S)) as response:
        status = response.status_code
        if status == 206:
            total = _continued(response, start, want)
        elif status == 200:
            start, total = 0, _begun(response, want)
        elif status == 416 and start:
            discard(want.partial)
            raise _Interrupted("the file on the server is shorter than what had arrived")
        elif status in TRY_AGAIN:
            raise _Interrupted(f"HTTP {status} {response.reason}")
        else:
            raise TransferFailed(f"HTTP {status} {response.reason}")
        _receive(response, want, start, total)


def _begun(response: requests.Response, want: Wanted) -> int | None:
    """Total bytes of a response that starts at the beginning; notes its version for a later Range."""
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
    """Total bytes of a partial response; raises _Interrupted if it is not the part asked for."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", ""))
    total = int(found[3]) if found and found[3] != "*" else None
    known = want.size if want.size is not None else _notes(want.partial).get("total")
    if not found or int(found[1]) != start or (None not in (total, known) and total != known):
        discard(want.partial)
        raise _Interrupted("the file on the server has changed since the part that had arrived")
    return known if total is None else total


def _receive(response: requests.Response, want: Wanted, start: int, total: int | None) -> None:
    """Writes the body behind the first `start` bytes; every chunk reaches the file at once."""
    have, window_start, window_have = start, time.monotonic(), start
    bar = tqdm(
        total=total,
        initial=start,
        unit="B",
        unit_scale=True,
        desc=want.partial.stem,
        disable=None if want.progress else True,
    )
    # unbuffered, so that what has arrived outlives SIGKILL
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
