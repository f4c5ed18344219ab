"""Whether the files that a training reads lay in the page cache when it began."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from gpufeed.loaders.base import LoadRequest
from gpufeed.stores.shards_store import open_shards
from gpufeed.system.page_cache import evicted_share

SAMPLED = 64  # files, evenly spaced: mapping one takes about 30 us, and a dataset may have millions
LARGEST = 2**34  # bytes of a file that is looked at: 16 GiB are four million pages, about 0.2 s


def files_of(request: LoadRequest) -> list[Path]:
    """What its loader reads: the cache, strips.bin, .beton file or shards, without one the split's files."""
    store = request.cache or request.strips or request.beton
    if store is not None:
        return [Path(store)]
    if request.shards is not None:
        opened = open_shards(request.shards, request.manifest)
        return [opened.file(shard) for shard in opened.of_split(request.split)]
    if request.manifest.made:
        return []
    root, names = request.manifest.files_root(), request.manifest.table["path"]
    return [root / name for name in names.iloc[request.manifest.ids(request.split)]]


def cached_share(files: Sequence[Path]) -> float | None:
    """Share of the files' pages that are in memory, 0..1, from SAMPLED of them; None where nobody tells.

    Linux only. Files above LARGEST are left out.
    """
    places = torch.linspace(0, len(files) - 1, min(SAMPLED, len(files))).round().long().unique().tolist()
    with suppress(OSError, ValueError):
        chosen = [str(files[place]) for place in places if files[place].stat().st_size <= LARGEST]
        absent = evicted_share(chosen) if chosen else None
        return None if absent is None else 1 - absent
    return None
