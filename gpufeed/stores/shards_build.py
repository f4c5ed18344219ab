"""Build the shard set of a dataset: its unchanged files, dealt at random to tar files.

The same manifest and seed give the same bytes on every machine. A build that was stopped is resumed: a
journal lists the finished shards, which are kept if they still have their sha256.
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

# Worker processes share whole shards: 64 divide evenly among 1, 2, 4, 8, 16, 32 or 64 of them.
SHARDS_PER_SPLIT = 64
MOST_BYTES = 2**28  # of the files in one shard; a larger split has more shards


@dataclass(frozen=True)
class Planned:
    """A shard to write: its samples in their order."""

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
    """Write the shards of `splits` (None: all) beside `path` and, last, their index at `path`.

    shards_per_split: at least so many for each split, if it has as many samples. workers: processes that
    write. If another process is building the same set, that one is used. Raises GpufeedError for numbers
    below one, a file that cannot be read, a full disk and a dead worker.
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
            other.unlink(missing_ok=True)  # of an earlier set or a killed build
        return ShardsInfo(**made_of, shards=shards)

    info = build_once(path, make, lambda: open_shards(path, manifest).info, asked)
    journal_path(path).unlink(missing_ok=True)  # last: a build without an index starts from its shards
    return info


def planned(manifest: Manifest, splits: Sequence[str], least: int, seed: int) -> Iterator[Planned]:
    """Yield the shards of each split, of equal length; samples are dealt at random, to mix the classes."""
    paths = manifest.paths()
    for number, split in enumerate(splits):
        ids = np.random.default_rng([seed, number]).permutation(manifest.ids(split))
        size = sum(file_size(paths[i]) for i in ids.tolist())
        count = min(len(ids), max(least, -(-size // MOST_BYTES)))
        for place, part in enumerate(np.array_split(ids, count)):
            yield Planned(f"{split}-{place:06d}.tar", split, part.tolist())


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is missing, which is an error only when it is read."""
    with suppress(OSError):
        return path.stat().st_size
    return 0


def write_shards(
    manifest: Manifest, plan: list[Planned], path: Path, made_of: dict, workers: int
) -> list[Shard]:
    """Write what is missing of the plan and return all of it, in its order."""
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
    """Return whether a shard of the journal is the planned one, and its file is undamaged."""
    with suppress(OSError):
        return found.ids == shard.ids and sha256_of(path.with_name(found.name)) == found.sha256
    return False


def journal_path(path: Path) -> Path:
    """Return the path of the list of finished shards, by which a stopped build is resumed."""
    return path.with_suffix(".journal")


def journal(path: Path, made_of: dict) -> dict[str, Shard]:
    """Return the shards that an earlier build of the same set finished, by name, up to a damaged line."""
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
    """Write files under the given names into a tar file, whole or not at all; return its size and sha256.

    Times, owners and modes are the same for all. Raises GpufeedError for a file that cannot be read.
    """
    with whole(target, shared=True) as partial:
        with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
            for file, name in zip(files, names, strict=True):
                add(tar, name, read_file(file))
        return partial.stat().st_size, sha256_of(partial)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member with fixed attributes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))
