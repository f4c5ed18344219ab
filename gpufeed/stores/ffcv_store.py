"""A dataset's .beton file and the sidecar beside it, which is written last and says what it was made from."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import Tolerance
from gpufeed.stores.cache_format import check_manifest, info_path

REMAKE = "move the folder of the .beton file away and build it again"
PIECE = 2**24  # bytes that are read at a time for a digest
# FFCV asks libjpeg-turbo for its fast transform: at most 6 off, and 1.9 in the mean over an image (0.95 over
# all), in 22,000 images of Tiny ImageNet; up to 13 in synthetic ones of quality 95, 90 in noise of 100.
TOLERANCE = Tolerance(16, 3.0)


@dataclass(frozen=True)
class BetonInfo:
    """What the sidecar says. jpegs: samples that stand as the files they were, the others are pixels.

    size: of the .beton file, in bytes.
    """

    manifest_sha256: str
    count: int
    jpegs: int
    size: int
    sha256: str


def read_info(path: Path) -> BetonInfo:
    """Reads the sidecar of the file `path`; raises GpufeedError if there is none that is whole."""
    try:
        return BetonInfo(**json.loads(info_path(path).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise GpufeedError(
            f"no readable {info_path(path)} ({error})", "a .beton file that was built to its end", REMAKE
        ) from error


def open_beton(path: str | Path, manifest: Manifest) -> BetonInfo:
    """What the file `path` holds; raises GpufeedError unless it is there, whole in size, of this manifest."""
    path = Path(path)
    info = read_info(path)
    check_manifest(path, info.manifest_sha256, manifest, REMAKE)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise GpufeedError(f"no readable {path} ({error.strerror})", "a .beton file", REMAKE) from error
    if size != info.size:
        raise GpufeedError(f"{size} bytes in {path}", str(info.size), REMAKE)
    return info


def verify_bytes(path: str | Path, manifest: Manifest, alive: Callable[[], None] = lambda: None) -> None:
    """Reads the whole file; raises GpufeedError unless it is the one that was built.

    alive: called for each PIECE, for who must hear that this goes on.
    """
    path = Path(path)
    info, found = open_beton(path, manifest), hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
            alive()
    if found.hexdigest() != info.sha256:
        raise GpufeedError(f"sha256 {found.hexdigest()} of {path}", info.sha256, REMAKE)
