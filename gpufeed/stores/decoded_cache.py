"""The cache: a dataset decoded once to one array. `build` makes one, `open_cache` reads it."""

from gpufeed.stores.cache_build import build, build_from_rows, build_or_fall_back
from gpufeed.stores.cache_fill import CHUNK
from gpufeed.stores.cache_format import (
    CacheInfo,
    check_manifest,
    file_digest,
    info_path,
    manifest_digest,
    open_cache,
    read_info,
    write_info,
)
from gpufeed.system.processes import run

__all__ = [
    "CHUNK",
    "CacheInfo",
    "build",
    "build_from_rows",
    "build_or_fall_back",
    "check_manifest",
    "file_digest",
    "info_path",
    "manifest_digest",
    "open_cache",
    "read_info",
    "run",
    "write_info",
]
