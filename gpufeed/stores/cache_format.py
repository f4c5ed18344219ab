"""The cache's format: a dataset decoded once to one uint8 array, (N, H, W, 3) in sample id order.

`<decoder>.npy` is a plain NumPy file of all splits. `<decoder>.json` beside it is written last and says
what the array was made from, so that an array without it counts as unfinished.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from gpufeed.core.errors import GpufeedError
from gpufeed.datasets.manifest import COLUMNS, Manifest
from gpufeed.decoders.base import Tolerance
from gpufeed.system.build_once import own_partial

REMAKE = "move the cache's folder away and run the command again, which builds it"


@dataclass(frozen=True)
class CacheInfo:
    """What the sidecar says. sha256: of the whole .npy file; shape: (N, H, W, 3), uint8, or the
    bytes of all images where these differ in size (scaled_cache.py).

    tolerance: of whatever decoded the pixels, which for strips is one of several libraries; None in sidecars
    that were written before it stood here.

    asked_for, because: the decoder that should have built it and the sentence that says why it could
    not, None where the one that was asked for did.

    quarantined: [{"path", "reason"}] of the files that cannot be decoded; their rows are black. Empty for a
    prepared dataset, whose manifest has no such files.
    """

    decoder: str
    decoder_version: str
    manifest_sha256: str
    count: int
    shape: tuple[int, ...]
    sha256: str
    asked_for: str | None = None
    because: str | None = None
    tolerance: Tolerance | None = None
    quarantined: list[dict[str, str]] = field(default_factory=list)


def info_path(path: Path) -> Path:
    """The sidecar of a cache file."""
    return path.with_suffix(".json")


def manifest_digest(manifest: Manifest) -> str:
    """sha256 over all that a manifest says, the same on every machine and library version."""
    digest = hashlib.sha256(json.dumps(asdict(manifest.info), sort_keys=True).encode())
    for column in COLUMNS:
        digest.update("\n".join(map(str, manifest.table[column].tolist())).encode() + b"\0")
    return digest.hexdigest()


def check_manifest(path: Path, built_from: str, manifest: Manifest, remedy: str) -> None:
    """Raises GpufeedError if the file at `path` was built from a manifest of another digest."""
    found = manifest_digest(manifest)
    if built_from != found:
        raise GpufeedError(
            f"{path} was built from another manifest ({built_from[:12]})",
            f"one built from the present manifest ({found[:12]})",
            remedy,
        )


def file_digest(path: Path) -> str:
    """sha256 of a file, as sha256sum gives it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_info(info, path: Path) -> None:
    """Writes a sidecar, a dataclass as JSON, whole or not at all."""
    partial = own_partial(path)
    partial.write_text(json.dumps(asdict(info), indent=1) + "\n")
    os.replace(partial, path)


def read_info(path: Path) -> CacheInfo:
    """Reads the sidecar of the cache file `path`; raises GpufeedError if there is none that is whole."""
    try:
        data = json.loads(info_path(path).read_text())
        tolerance = Tolerance(**data["tolerance"]) if data.get("tolerance") else None
        return CacheInfo(**{**data, "shape": tuple(data["shape"]), "tolerance": tolerance})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise GpufeedError(
            f"no readable {info_path(path)} ({error})", "a cache that was built to its end", REMAKE
        ) from error


def open_cache(path: str | Path, manifest: Manifest, verify: bool = False) -> np.memmap:
    """The cached pixels, read-only uint8 (N, H, W, 3), row i = sample id i.

    Checks shape and manifest; with verify=True also every byte. Raises GpufeedError if one differs.
    """
    path = Path(path)
    info = read_info(path)
    check_manifest(path, info.manifest_sha256, manifest, REMAKE)
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise GpufeedError(f"no readable array at {path} ({error})", f"uint8 {info.shape}", REMAKE) from error
    if array.shape != info.shape or array.dtype != np.uint8:
        raise GpufeedError(f"{array.dtype} {array.shape} in {path}", f"uint8 {info.shape}", REMAKE)
    if verify and (digest := file_digest(path)) != info.sha256:
        raise GpufeedError(f"sha256 {digest} of {path}", info.sha256, REMAKE)
    return array
