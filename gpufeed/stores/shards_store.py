"""The shard set: a dataset's files in tar files, and an index beside them that is written last.

Each shard is a plain tar file of one split, whose members are named by sample id: `000000012.jpeg`.
`shards.json` says which samples stand in which shard, in their order, and the sha256 of each; a folder
without it counts as unfinished.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.base import PartsInfo


@dataclass(frozen=True)
class Shard:
    """One tar file. name: of the file, beside the index; ids: its samples in order; size: in bytes."""

    name: str
    split: str
    ids: list[int]
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardsInfo(PartsInfo):
    """What the index says: what the set was made from and how, and its shards."""

    word: ClassVar[str] = "the shards"

    shards_per_split: int
    shards: list[Shard]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "shards": [Shard(**shard) for shard in data["shards"]]})


@dataclass(frozen=True)
class ShardSet:
    """An opened shard set. It holds no open file, so that it can be sent to worker processes."""

    path: Path
    info: ShardsInfo

    def of_split(self, split: str) -> list[Shard]:
        """Return the shards of one split; raise GpufeedError for a split that the set was not built for."""
        return self.info.of_split(self.info.shards, split, self.path)

    def file(self, shard: Shard) -> Path:
        """Return the path of a shard."""
        return self.path.with_name(shard.name)


def sample_name(sample_id: int, path: str) -> str:
    """Return a sample's name in its shard, with the suffix of its file `path`."""
    kind = Path(path).suffix.lower().removeprefix(".")
    return f"{sample_id:09d}.{kind or 'bin'}"


def open_shards(path: str | Path, manifest: Manifest) -> ShardSet:
    """Open the shard set whose index is `path`.

    Raises GpufeedError unless the manifest and the size of each shard fit, and every sample of the splits is
    in one shard.
    """
    path = Path(path)
    info = ShardsInfo.read_for(path, manifest)
    opened = ShardSet(path, info)
    for shard in info.shards:
        info.check_size(opened.file(shard), shard.size)
    for split in info.splits:
        info.check_ids(path, manifest, [split], [shard.ids for shard in opened.of_split(split)])
    return opened


def verify(path: str | Path, manifest: Manifest, alive: Callable[[], None] = lambda: None) -> None:
    """Open the shard set at `path` and read every shard; raise GpufeedError unless its sha256 is right.

    alive: as in `sha256_of`.
    """
    shards = open_shards(path, manifest)
    for shard in shards.info.shards:
        shards.info.check_bytes(shards.file(shard), shard.sha256, alive)


def files_of_split(path: str | Path, manifest: Manifest, split: str) -> list[Path]:
    """Return the shards that hold a split."""
    opened = open_shards(path, manifest)
    return [opened.file(shard) for shard in opened.of_split(split)]
