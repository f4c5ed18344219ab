"""The cache's format: a dataset decoded once to one uint8 array, (N, H, W, 3) in sample id order.

`<decoder>.npy` is a plain NumPy file of all splits. `<decoder>.json` beside it is written last and says
what the array was made from, so that an array without it counts as unfinished.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.base import Tolerance
from gpufeed.stores.base import StoreInfo


@dataclass(frozen=True, kw_only=True)
class CacheInfo(StoreInfo):
    """What the sidecar says. sha256: of the whole .npy file; shape: (N, H, W, 3), uint8, or the
    bytes of all images where these differ in size (scaled_cache.py).

    tolerance: of the decoder of the pixels, which for strips is one of several libraries; None in older
    sidecars.

    asked_for, because: the decoder that was requested and why it could not run; None if it built the cache.

    quarantined: [{"path", "reason"}] of the files that cannot be decoded; their rows are black. Empty for a
    prepared dataset, whose manifest has no such files.
    """

    word: ClassVar[str] = "the cache"

    decoder: str
    decoder_version: str
    count: int
    shape: tuple[int, ...]
    sha256: str
    asked_for: str | None = None
    because: str | None = None
    tolerance: Tolerance | None = None
    quarantined: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        tolerance = Tolerance(**data["tolerance"]) if data.get("tolerance") else None
        return cls(**{**data, "shape": tuple(data["shape"]), "tolerance": tolerance})


def open_cache(path: str | Path, manifest: Manifest, verify: bool = False) -> np.memmap:
    """Return the cached pixels, read-only uint8 (N, H, W, 3), row i = sample id i.

    Checks shape and manifest; with verify=True also every byte. Raises GpufeedError if one differs.
    """
    path = Path(path)
    info = CacheInfo.read_for(path, manifest)
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise info.wrong(f"no readable array at {path} ({error})", f"uint8 {info.shape}") from error
    if array.shape != info.shape or array.dtype != np.uint8:
        raise info.wrong(f"{array.dtype} {array.shape} in {path}", f"uint8 {info.shape}")
    if verify:
        info.check_bytes(path, info.sha256)
    return array
