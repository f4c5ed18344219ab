"""Builds the shard set of a dataset: its files as they are, dealt at random to tar files.

The same manifest and seed give the same bytes on every machine. A build that was stopped goes on: shards that
are finished are listed in a journal, and kept if they still have their sha256.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of, whole
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.encoded_file import read_file
from gpufeed.stores.base import build_once, manifest_digest
from gpufeed.stores.shards_store import Shard, ShardsInfo, open_shards, sample_name
from gpufeed.system.processes import run

# Whole shards are shared among worker processes: 64 are as many for each of 1, 2, 4, 8, 16, 32 or 64 of them.
SHARDS_PER_SPLIT = 64
MOST_BYTES = 2**28  # of the files in one shard: more are dealt to more shards


@dataclass(frozen=True)
class Planned:
    """A shard that is to be: its samples in their order."""

    name: str
    split: str
    ids: list[int]


def build(
    manifest: Manifest,
    path: str | Path,
    shards_per_split: int = SHARDS_PER_SPLIT,
    splits: Sequence[str] | None = None,
    workers: int = 1,
    seed: int = 0,
) -> ShardsInfo:
    """Writes the shards of `splits` (None: all) beside `path` and, last, their index at `path`.

    shards_per_split: at least so many of each, if it has as many samples. workers: processes that write.
    Where another process builds the same set at this moment, that one is taken. Raises GpufeedError for
    numbers below one, a file that cannot be read, a full disk and a dead worker.
    """
    if shards_per_split < 1:
        raise GpufeedError(f"{shards_per_split} shards a split", "at least one", "ask for one or more")
    path = Path(path)
    splits = list(dict.fromkeys(manifest.table["split"] if splits is None else splits))
    asked = {"splits": splits, "seed": seed, "shards_per_split": shards_per_split}

    def make() -> ShardsInfo:
        plan = list(planned(manifest, splits, shards_per_split, seed))
        made_of = {**asked, "manifest_sha256": manifest_digest(manifest)}
        shards = write_shards(manifest, plan, path, made_of, workers)
        own = {path.with_name(shard.name) for shard in shards}
        for other in {*path.parent.glob("*.tar"), *path.parent.glob("*.tar.*.partial")} - own:
            other.unlink(missing_ok=True)  # of an earlier set, or of a build that was killed
        return ShardsInfo(**made_of, shards=shards)

    info = build_once(path, make, lambda: open_shards(path, manifest).info, asked)
    journal_path(path).unlink(missing_ok=True)  # last: a build without an index starts from its shards
    return info


def planned(manifest: Manifest, splits: Sequence[str], least: int, seed: int) -> Iterator[Planned]:
    """The shards of each split, as long as each other: a random deal, so that none is of one class."""
    paths = manifest.paths()
    for number, split in enumerate(splits):
        ids = np.random.default_rng([seed, number]).permutation(manifest.ids(split))
        size = sum(file_size(paths[i]) for i in ids.tolist())
        count = min(len(ids), max(least, -(-size // MOST_BYTES)))
        for place, part in enumerate(np.array_split(ids, count)):
            yield Planned(f"{split}-{place:06d}.tar", split, part.tolist())


def file_size(path: Path) -> int:
    """Bytes of a file; 0 of one that is not there, which is told when it is read."""
    with suppress(OSError):
        return path.stat().st_size
    return 0


def write_shards(
    manifest: Manifest, plan: list[Planned], path: Path, made_of: dict, workers: int
) -> list[Shard]:
    """Writes what is missing of the plan and returns all of it, in its order."""
    done = journal(path, made_of)
    for shard in plan:
        if (found := done.get(shard.name)) and not still_there(found, shard, path):
            del done[shard.name]
    left = [shard for shard in plan if shard.name not in done]
    paths, names = [os.fspath(file) for file in manifest.paths()], manifest.table["path"].tolist()
    tasks = (
        [path.with_name(shard.name) for shard in left],
        [[paths[i] for i in shard.ids] for shard in left],
        [[sample_name(i, names[i]) for i in shard.ids] for shard in left],
    )
    total = sum(len(shard.ids) for shard in left)
    with journal_path(path).open("w") as notes, tqdm(total=total, unit="image", desc="sharding") as progress:
        for line in (made_of, *map(asdict, done.values())):
            note(notes, line)
        for shard, (size, sha256) in zip(left, run(write_shard, tasks, workers), strict=True):
            done[shard.name] = Shard(shard.name, shard.split, shard.ids, size, sha256)
            note(notes, asdict(done[shard.name]))
            progress.update(len(shard.ids))
    return [done[shard.name] for shard in plan]


def still_there(found: Shard, shard: Planned, path: Path) -> bool:
    """Whether a shard of the journal is the planned one, whole."""
    with suppress(OSError):
        return found.ids == shard.ids and sha256_of(path.with_name(found.name)) == found.sha256
    return False


def journal_path(path: Path) -> Path:
    """Where the finished shards of a build that goes on are listed."""
    return path.with_suffix(".journal")


def journal(path: Path, made_of: dict) -> dict[str, Shard]:
    """The shards that an earlier build of the same set finished, by name, up to a line that was cut off."""
    found = {}
    with suppress(OSError, ValueError, TypeError):
        head, *lines = journal_path(path).read_text().splitlines()
        if json.loads(head) != made_of:
            return {}
        for line in lines:
            shard = Shard(**json.loads(line))
            found[shard.name] = shard
    return found


def note(notes, line: dict) -> None:
    notes.write(json.dumps(line) + "\n")
    notes.flush()


def write_shard(target: Path, files: list[str], names: list[str]) -> tuple[int, str]:
    """Writes files under the given names into a tar file, whole or not at all; returns its bytes and sha256.

    Times, owners and modes are the same for all. Raises GpufeedError for a file that cannot be read.
    """
    with whole(target, shared=True) as partial:
        with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
            for file, name in zip(files, names, strict=True):
                add(tar, name, read_file(file))
        return partial.stat().st_size, sha256_of(partial)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """One member with fixed attributes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))
