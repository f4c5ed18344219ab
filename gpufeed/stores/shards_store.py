"""The shard set: a dataset's files in tar files, and an index beside them that is written last.

Each shard is a plain tar file of one split, whose members are named by sample id: `000000012.jpeg`.
`shards.json` says which samples stand in which shard, in their order, and the sha256 of each; a folder
without it counts as unfinished.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpufeed.core.errors import GpufeedError, unknown
from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.cache_format import check_manifest

REMAKE = "move the folder of the shards away and build them again"
PIECE = 2**24  # bytes that are read at a time for a digest


@dataclass(frozen=True)
class Shard:
    """One tar file. name: beside the index; ids: its samples in their order; size: in bytes."""

    name: str
    split: str
    ids: list[int]
    size: int
    sha256: str


@dataclass(frozen=True)
class ShardsInfo:
    """What the index says: what the set was made from and how, and its shards."""

    manifest_sha256: str
    splits: list[str]
    seed: int
    shards_per_split: int
    shards: list[Shard]


@dataclass(frozen=True)
class ShardSet:
    """An opened shard set. Holds no file open, so that worker processes can have it."""

    path: Path
    info: ShardsInfo

    def of_split(self, split: str) -> list[Shard]:
        """The shards of one split; raises GpufeedError for a split that the set was not built for."""
        if split not in self.info.splits:
            raise unknown("split", split, self.info.splits, where=str(self.path))
        return [shard for shard in self.info.shards if shard.split == split]

    def file(self, shard: Shard) -> Path:
        """Where a shard stands."""
        return self.path.with_name(shard.name)


def sample_name(sample_id: int, path: str) -> str:
    """The name in its shard of the sample whose file is `path`. What follows the first dot is its kind."""
    kind = Path(path).suffix.lower().removeprefix(".")
    return f"{sample_id:09d}.{kind or 'bin'}"


def read_info(path: Path) -> ShardsInfo:
    """Reads an index; raises GpufeedError if there is none that is whole."""
    try:
        data = json.loads(path.read_text())
        return ShardsInfo(**{**data, "shards": [Shard(**shard) for shard in data["shards"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise GpufeedError(
            f"no readable {path} ({error})", "shards that were built to their end", REMAKE
        ) from error


def open_shards(path: str | Path, manifest: Manifest, verify: bool = False) -> ShardSet:
    """Opens the shard set whose index is `path`.

    Checks the manifest, the size of each shard, and that every sample of the splits stands in one shard; with
    verify=True also every byte. Raises GpufeedError if something differs.
    """
    path = Path(path)
    opened = ShardSet(path, read_info(path))
    check_manifest(path, opened.info.manifest_sha256, manifest, REMAKE)
    for shard in opened.info.shards:
        check_size(opened.file(shard), shard.size)
    check_ids(opened, manifest)
    if verify:
        verify_bytes(opened)
    return opened


def check_size(file: Path, expected: int) -> None:
    """Raises GpufeedError unless the file is there, of so many bytes."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise GpufeedError(f"no readable {file} ({error.strerror})", "a shard", REMAKE) from error
    if size != expected:
        raise GpufeedError(f"{size} bytes in {file}", str(expected), REMAKE)


def check_ids(shards: ShardSet, manifest: Manifest) -> None:
    """Raises GpufeedError unless each split's shards hold each of its samples once."""
    for split in shards.info.splits:
        expected = manifest.ids(split)
        found = np.sort([i for shard in shards.of_split(split) for i in shard.ids])
        if not np.array_equal(found, expected):
            distinct = len(np.unique(found))
            raise GpufeedError(
                f"{len(found)} sample ids of split {split} in {shards.path}, {distinct} of them distinct",
                f"each of its {len(expected)} samples once",
                REMAKE,
            )


def verify_bytes(shards: ShardSet, alive: Callable[[], None] = lambda: None) -> None:
    """Reads every shard; raises GpufeedError unless it is the one that was built.

    alive: called for each PIECE, for who must hear that this goes on.
    """
    for shard in shards.info.shards:
        file = shards.file(shard)
        if (found := digest(file, alive)) != shard.sha256:
            raise GpufeedError(f"sha256 {found} of {file}", shard.sha256, REMAKE)


def verify(path: str | Path, manifest: Manifest, alive: Callable[[], None] = lambda: None) -> None:
    """As `verify_bytes`, of the shard set that `open_shards` opens."""
    verify_bytes(open_shards(path, manifest), alive)


def files_of_split(path: str | Path, manifest: Manifest, split: str) -> list[Path]:
    """The shards that hold a split."""
    opened = open_shards(path, manifest)
    return [opened.file(shard) for shard in opened.of_split(split)]


def digest(file: Path, alive: Callable[[], None] = lambda: None) -> str:
    """sha256 of a shard; raises GpufeedError if it cannot be read."""
    found = hashlib.sha256()
    try:
        with file.open("rb") as opened:
            while piece := opened.read(PIECE):
                found.update(piece)
                alive()
    except OSError as error:
        raise GpufeedError(f"no readable {file} ({error.strerror})", "a shard", REMAKE) from error
    return found.hexdigest()
