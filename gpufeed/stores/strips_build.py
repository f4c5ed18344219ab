"""Build the strip set of a dataset: group its files by kind, join them, and verify every strip.

Files are read twice, once to learn their kinds and once to join them, so that memory is bounded by a
few strips whatever the number of files and kinds. A strip is kept only if it decodes to exactly the pixels
of its files; a file that fails this is left over, with the reason.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of, whole
from gpufeed.datasets.manifest import Manifest
from gpufeed.decoders.jpeg_parser import Jpeg, Kind, Refused, parse
from gpufeed.decoders.simplejpeg import decode_jpeg
from gpufeed.decoders.strip_joiner import join, kind_digest
from gpufeed.stores.base import build_once, manifest_digest
from gpufeed.stores.cache_fill import CHUNK
from gpufeed.stores.strips_store import Strip, StripsInfo, index_path, open_strips, write_index
from gpufeed.system.processes import run

IMAGES_PER_STRIP = 256
# an H200's JPEG engines take 256 images of 64 rows and refuse 1000
MAX_ROWS = 16_384
MAX_PIXELS = 1 << 24  # 50 MB decoded: sixteen images of 1024 x 1024
TOO_LARGE = "larger than a whole strip may be"
ALONE = "no other file has its size, sampling and tables"
CHANGED = "the file changed while strips were built"

log = logging.getLogger("gpufeed")
UNEQUAL = "it decodes to other pixels in a strip than alone"


@dataclass(frozen=True)
class Group:
    """Files that can share a strip: the digest of their kind, and how many of them a strip may hold."""

    kind: bytes
    capacity: int


@dataclass(frozen=True)
class Joined:
    """The result of joining files to one strip; places are indices into the list of files.

    data: the strip, empty if it holds no file; kept: places of its images; failures: (place, reason).
    """

    data: bytes
    kept: list[int]
    failures: list[tuple[int, str]]
    kind: Kind | None
    file_bytes: int
    entropy_bytes: int


@dataclass
class Totals:
    """Totals of the set while its strips are written. left_over: reason -> ids."""

    left_over: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    strips: list[Strip] = field(default_factory=list)
    joined: int = 0
    file_bytes: int = 0
    entropy_bytes: int = 0
    strip_bytes: int = 0


def build(
    manifest: Manifest,
    path: str | Path,
    images_per_strip: int = IMAGES_PER_STRIP,
    splits: Sequence[str] | None = None,
    workers: int = 1,
    seed: int = 0,
) -> StripsInfo:
    """Write the strips of `splits` (None: all) into `path`, their index and, last, their sidecar.

    Samples are dealt to strips at random, by `seed`, within split and kind, since manifest order would fill a
    strip with one class. workers: processes that join. If another process is building the same set, that one
    is used. Raises GpufeedError for numbers below one, an unknown split, a full disk and a dead worker.
    """
    if images_per_strip < 1:
        raise GpufeedError(f"{images_per_strip} images a strip", "at least one", "ask for one or more")
    path = Path(path)
    splits = list(dict.fromkeys(manifest.table["split"] if splits is None else splits))
    if not splits:
        raise GpufeedError("no split", "at least one", "name a split, or leave `splits` out for all of them")
    ids = {split: manifest.ids(split) for split in splits}
    asked = {"splits": splits, "seed": seed, "images_per_strip": images_per_strip}

    def make() -> StripsInfo:
        totals = Totals()
        with whole(path, shared=True) as partial, whole(index_path(path), shared=True) as index:
            plan = list(group(manifest, ids, images_per_strip, workers, seed, totals))
            digest = write_strips(manifest, plan, partial, workers, totals)
            write_index(totals.strips, index)
            return StripsInfo(
                **asked,
                manifest_sha256=manifest_digest(manifest),
                count=sum(map(len, ids.values())),
                joined=totals.joined,
                strips=len(totals.strips),
                file_bytes=totals.file_bytes,
                entropy_bytes=totals.entropy_bytes,
                strip_bytes=totals.strip_bytes,
                sha256=digest,
                index_sha256=sha256_of(index),
                left_over={reason: sorted(group) for reason, group in sorted(totals.left_over.items())},
            )

    return build_once(path, make, lambda: open_strips(path, manifest).info, asked)


@dataclass(frozen=True)
class Planned:
    """The samples of one strip to be written."""

    split: str
    kind: bytes
    ids: list[int]


def group(
    manifest: Manifest,
    ids: dict[str, np.ndarray],
    images_per_strip: int,
    workers: int,
    seed: int,
    totals: Totals,
) -> Iterator[Planned]:
    """Yield the samples of each strip; note those of no strip in totals.left_over."""
    for number, (split, split_ids) in enumerate(ids.items()):
        order = np.random.default_rng([seed, number]).permutation(split_ids).tolist()
        groups: dict[Group, list[int]] = defaultdict(list)
        for id, found in zip(order, survey(manifest, order, split, workers), strict=True):
            (groups[found] if isinstance(found, Group) else totals.left_over[found]).append(id)
        for found, members in groups.items():
            if len(members) == 1:
                totals.left_over[ALONE] += members
                continue
            size = min(images_per_strip, found.capacity)
            for start in range(0, len(members), size):
                yield Planned(split, found.kind, members[start : start + size])


def survey(manifest: Manifest, ids: list[int], split: str, workers: int) -> Iterator[Group | str]:
    """Yield the group of each sample, or the reason why it has none, in the order of `ids`."""
    files = manifest.paths()
    sizes = list(zip(manifest.table["height"].tolist(), manifest.table["width"].tolist(), strict=True))
    chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
    tasks = (
        [[files[id] for id in chunk] for chunk in chunks],
        [[sizes[id] for id in chunk] for chunk in chunks],
    )
    with tqdm(total=len(ids), unit="image", desc=f"reading headers of {split}") as progress:
        for found in run(survey_files, tasks, workers):
            progress.update(len(found))
            yield from found


def survey_files(files: list[Path], sizes: list[tuple[int, int]]) -> list[Group | str]:
    """Return the group of each file, or why it has none. sizes: (height, width) by the manifest."""
    return [survey_file(file, size) for file, size in zip(files, sizes, strict=True)]


def survey_file(file: Path, size: tuple[int, int]) -> Group | str:
    try:
        kind = parse(file.read_bytes()).kind
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except Refused as reason:
        return str(reason)
    if (kind.height, kind.width) != size:
        return "its size is not the manifest's"
    capacity = min(MAX_ROWS // kind.height, MAX_PIXELS // (kind.height * kind.width))
    return Group(kind_digest(kind), capacity) if capacity else TOO_LARGE


def write_strips(manifest: Manifest, plan: list[Planned], target: Path, workers: int, totals: Totals) -> str:
    """Write the planned strips one after the other and note them in `totals`; return their sha256."""
    files = manifest.paths()
    tasks = ([[files[id] for id in planned.ids] for planned in plan], [planned.kind for planned in plan])
    digest = hashlib.sha256()
    total = sum(len(planned.ids) for planned in plan)
    with target.open("wb") as file, tqdm(total=total, unit="image", desc="joining") as progress:
        for planned, joined in zip(plan, run(join_files, tasks, workers), strict=True):
            file.write(joined.data)
            digest.update(joined.data)
            note(planned, joined, totals)
            progress.update(len(planned.ids))
    return digest.hexdigest()


def note(planned: Planned, joined: Joined, totals: Totals) -> None:
    """Add one strip, and the samples left out of it, to `totals`."""
    for place, reason in joined.failures:
        totals.left_over[reason].append(planned.ids[place])
    if joined.kind is None:
        return
    totals.strips.append(
        Strip(
            offset=totals.strip_bytes,
            length=len(joined.data),
            split=planned.split,
            height=joined.kind.height,
            width=joined.kind.width,
            components=len(joined.kind.components),
            sampling=joined.kind.sampling,
            ids=np.array([planned.ids[place] for place in joined.kept], dtype=np.int64),
        )
    )
    totals.joined += len(joined.kept)
    totals.file_bytes += joined.file_bytes
    totals.entropy_bytes += joined.entropy_bytes
    totals.strip_bytes += len(joined.data)


@dataclass(frozen=True)
class Member:
    """A file to be joined. pixels: of the file alone, decoded with plain upsampling, uint8 (H, W, 3)."""

    place: int
    size: int  # bytes of the file
    jpeg: Jpeg
    pixels: np.ndarray


def join_files(files: list[Path], kind: bytes) -> Joined:
    """Join those of `files` that decode without a warning to the same pixels alone and in the strip."""
    members, failures = [], []
    for place, file in enumerate(files):
        found = read_member(place, file, kind)
        if isinstance(found, Member):
            members.append(found)
        else:
            failures.append((place, found))
    kept = members if proven(members) else [member for member in members if proven([member, member])]
    if not proven(kept):
        kept = []
    lost = {member.place for member in members} - {member.place for member in kept}
    failures += [(place, UNEQUAL) for place in sorted(lost)]
    return Joined(
        data=join([member.jpeg for member in kept]) if kept else b"",
        kept=[member.place for member in kept],
        failures=failures,
        kind=kept[0].jpeg.kind if kept else None,
        file_bytes=sum(member.size for member in kept),
        entropy_bytes=sum(len(member.jpeg.entropy) for member in kept),
    )


def read_member(place: int, file: Path, kind: bytes) -> Member | str:
    """Read, parse and decode a file; return the reason if it cannot be joined."""
    try:
        data = file.read_bytes()
        jpeg = parse(data)
        if kind_digest(jpeg.kind) != kind:
            return CHANGED
        return Member(place, len(data), jpeg, decode_jpeg(data, fancy=False))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except Refused as reason:
        return str(reason)
    except ValueError as error:
        return f"damaged: {error}"


def proven(members: list[Member]) -> bool:
    """Return whether the strip of these files decodes without a warning to exactly their pixels.

    Plain upsampling mixes no rows, so a difference means that a file was damaged or joined wrongly.
    """
    if not members:
        return True
    try:
        rows = decode_jpeg(join([member.jpeg for member in members]), fancy=False)  # (N * H, W, 3)
    except ValueError:
        return False
    return np.array_equal(rows, np.concatenate([member.pixels for member in members]))


def for_job(job: Any) -> None:
    """Do the work of rule build_strips, a gpufeed.job.Job."""
    info = build(job.manifest, job.output.strips, workers=job.threads)
    log.info("%d of %d files in %d strips, sha256 %s", info.joined, info.count, info.strips, info.sha256)
    for reason, ids in info.left_over.items():
        log.warning("left over: %d, %s", len(ids), reason)
