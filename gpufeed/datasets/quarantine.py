"""Images that nobody can decode are found once, when a dataset is prepared, and left out of its manifest.

So every loader, cache and comparison sees the same samples, and none of them meets a broken one.
"""

import logging
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.encoded_file import MOST_BYTES
from gpufeed.decoders.pillow import PillowDecoder
from gpufeed.system.processes import run

CHUNK = 64  # files a task, decoded one after the other: a process holds one image at a time
SHOWN = 20  # files in the error message; the log has them all

log = logging.getLogger("gpufeed")


def quarantine(manifest: Manifest, max_share: float, workers: int = 1) -> Manifest:
    """Return the dataset without the samples that Pillow cannot decode to the manifest's size.

    They are listed in `info.quarantined` and, by the names of the user's files, in the log. Files stay where
    they are; links to unreadable ones go. workers: processes that decode. Raises GpufeedError if they are
    more than max_share of all.
    """
    reasons = dict(failures(manifest, workers))
    if not reasons:
        return manifest
    paths = manifest.table["path"].tolist()
    found = [{"path": paths[row], "reason": reason} for row, reason in sorted(reasons.items())]
    files = [{**image, "path": manifest.origins.get(image["path"], image["path"])} for image in found]
    for image in files:
        log.warning("quarantined %s: %s", image["path"], image["reason"])
    if len(found) > max_share * len(manifest):
        first = "repair these files or move them away" if manifest.origins else "download the dataset again"
        remedy = f"{first}, or raise max_quarantined_share in the config to continue without these files"
        raise too_many(files, len(manifest), max_share, remedy)
    for path in (manifest.root / image["path"] for image in found):
        if path.is_symlink():  # of gpufeed.datasets.staging
            path.unlink()
    table = manifest.table[[row not in reasons for row in range(len(paths))]].reset_index(drop=True)
    return Manifest(manifest.root, replace(manifest.info, quarantined=found), table)


def failures(manifest: Manifest, workers: int) -> Iterator[tuple[int, str]]:
    """Yield (row, reason) of every sample that cannot be decoded."""
    files = manifest.paths()
    sizes = list(zip(manifest.table["height"].tolist(), manifest.table["width"].tolist(), strict=True))
    starts = range(0, len(files), CHUNK)
    tasks = ([files[start : start + CHUNK] for start in starts], [sizes[s : s + CHUNK] for s in starts])
    with tqdm(total=len(files), unit=" images", desc=f"{manifest.info.dataset}: decoding") as progress:
        for start, reasons in zip(starts, run(check_files, tasks, workers), strict=True):
            progress.update(len(reasons))
            yield from ((row, reason) for row, reason in enumerate(reasons, start) if reason)


def check_files(files: list[Path], sizes: list[tuple[int, int]]) -> list[str | None]:
    """Return why each file is no image of its (height, width); None if it is one."""
    decoder = PillowDecoder()
    return [check_file(decoder, file, size) for file, size in zip(files, sizes, strict=True)]


def check_file(decoder: PillowDecoder, file: Path, size: tuple[int, int]) -> str | None:
    """Return what `check_files` returns for one file."""
    if isinstance(data := read_or_reason(file), str):
        return data
    decoded = decoder.decode([data])
    image = decoded.images[0]
    if image is None:
        return decoded.outcomes[0].reason or "no reason given"
    if image.shape[:2] != size:
        return f"decoded to {image.shape[0]} x {image.shape[1]}, but its header says {size[0]} x {size[1]}"
    return None


def read_or_reason(file: Path) -> bytes | str:
    """Return the content of a file, or the reason why it cannot be read."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe could block forever
            return "not a regular file"
        if found.st_size > MOST_BYTES:
            return f"{found.st_size} bytes, at most {MOST_BYTES} are read"
        return file.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def too_many(found: list[dict[str, str]], count: int, max_share: float, remedy: str) -> GpufeedError:
    """Return the error for a dataset with too many broken images."""
    expected = f"at most {max_share:.3%} of them (max_quarantined_share)"
    return GpufeedError(undecodable(found, count), expected, remedy)


def undecodable(found: list[dict[str, str]], count: int) -> str:
    """Return a text with the first of these broken images, a line each. count: all images."""
    lines = [f"{image['path']}: {image['reason']}" for image in found]
    more = [f"and {len(lines) - SHOWN} more, all in the log"] if len(lines) > SHOWN else []
    return f"{len(lines)} of {count} images cannot be decoded\n  " + "\n  ".join(lines[:SHOWN] + more)
