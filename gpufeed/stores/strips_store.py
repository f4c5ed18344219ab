"""The strip set: a dataset's strips in one file, an index of them, and a sidecar that is written last.

`strips.bin` holds the strips one behind the other, each a whole JPEG. `strips.parquet` says where each
stands and which samples it holds. `strips.json` says what both were made from, and names every sample
that stands in no strip, with the reason; files without it count as unfinished.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpufeed.core.errors import GpufeedError, unknown
from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.cache_format import check_manifest, file_digest, info_path

COLUMNS = {
    "offset": pa.int64(),  # bytes from the start of the file of strips
    "length": pa.int64(),  # bytes
    "split": pa.string(),
    "height": pa.int32(),  # of one image, pixels
    "width": pa.int32(),
    "components": pa.int8(),  # as coded: 1 is grayscale, which decoding expands to RGB
    "sampling": pa.string(),  # "4:2:0" and the like, or "grayscale"
    "ids": pa.list_(pa.int64()),  # sample ids, top to bottom
}
REMAKE = "move the folder of the strips away and build them again"
PIECE = 2**24  # bytes that are read at a time for a digest


@dataclass(frozen=True)
class Strip:
    """One tall JPEG: where it stands and what it holds. Fields as in COLUMNS; ids: int64 (N,)."""

    offset: int
    length: int
    split: str
    height: int
    width: int
    components: int
    sampling: str
    ids: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the decoded strip: (N, H, W, 3)."""
        return len(self.ids), self.height, self.width, 3


@dataclass(frozen=True)
class StripsInfo:
    """What the sidecar says. count = joined + all of left_over; sizes in bytes.

    file_bytes, entropy_bytes: of the joined files, whole and without headers; strip_bytes: of the strips.
    left_over: reason -> sample ids that go the ordinary way.
    """

    manifest_sha256: str
    splits: list[str]
    seed: int
    images_per_strip: int
    count: int
    joined: int
    strips: int
    file_bytes: int
    entropy_bytes: int
    strip_bytes: int
    sha256: str
    index_sha256: str
    left_over: dict[str, list[int]]


@dataclass(frozen=True)
class StripSet:
    """An opened strip set. Holds no file open, so that worker processes can have it."""

    path: Path
    info: StripsInfo
    strips: list[Strip]

    def of_split(self, split: str) -> list[Strip]:
        """The strips of one split; raises GpufeedError for a split that the set was not built for."""
        if split not in self.info.splits:
            raise unknown("split", split, self.info.splits, where=str(self.path))
        return [strip for strip in self.strips if strip.split == split]

    def left_over(self) -> np.ndarray:
        """Ids of the samples that stand in no strip, ascending, int64 (n,)."""
        ids = [id for group in self.info.left_over.values() for id in group]
        return np.array(sorted(ids), dtype=np.int64)

    def read(self, strip: Strip, out: np.ndarray | None = None) -> np.ndarray:
        """The bytes of a strip, uint8 (length,), read into `out` if given (pinned memory, say)."""
        data = np.empty(strip.length, np.uint8) if out is None else out[: strip.length]
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(strip.offset)
                found = read_all(file, memoryview(data))
        except OSError as error:
            raise GpufeedError(
                f"no readable {self.path} ({error.strerror})", "a file of strips", REMAKE
            ) from error
        if found != strip.length:
            raise GpufeedError(
                f"{found} bytes at {strip.offset} of {self.path}", f"a strip of {strip.length} bytes", REMAKE
            )
        return data


def read_all(file: io.RawIOBase, target: memoryview) -> int:
    """Fills `target` from an unbuffered file, which may give less than asked; returns the bytes read."""
    done = 0
    while done < len(target) and (count := file.readinto(target[done:])):
        done += count
    return done


def index_path(path: Path) -> Path:
    """The index of a file of strips."""
    return path.with_suffix(".parquet")


def write_index(strips: Sequence[Strip], path: Path) -> None:
    """Writes the index to `path`."""
    columns = {name: [getattr(strip, name) for strip in strips] for name in COLUMNS}
    pq.write_table(pa.table(columns, schema=pa.schema(COLUMNS.items())), path)


def read_index(path: Path) -> list[Strip]:
    """Reads an index; raises what pyarrow raises for a file that is none."""
    table = pq.read_table(path).cast(pa.schema(COLUMNS.items()))
    ids = [np.array(row, dtype=np.int64) for row in table["ids"].to_pylist()]
    rows = table.drop_columns("ids").to_pylist()
    return [Strip(**row, ids=row_ids) for row, row_ids in zip(rows, ids, strict=True)]


def read_info(path: Path) -> StripsInfo:
    """Reads the sidecar of the file of strips `path`; raises GpufeedError if there is none that is whole."""
    try:
        return StripsInfo(**json.loads(info_path(path).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise GpufeedError(
            f"no readable {info_path(path)} ({error})", "strips that were built to their end", REMAKE
        ) from error


def open_strips(path: str | Path, manifest: Manifest, verify: bool = False) -> StripSet:
    """Opens the strip set whose strips stand in `path`.

    Checks manifest, index, size, and that strips and left-over samples are together every sample of
    the splits once; with verify=True also every byte. Raises GpufeedError if something differs.
    """
    path = Path(path)
    info = read_info(path)
    check_manifest(path, info.manifest_sha256, manifest, REMAKE)
    try:
        check_digest(index_path(path), info.index_sha256)
        strips, size = read_index(index_path(path)), path.stat().st_size
    except (OSError, pa.ArrowException) as error:
        raise GpufeedError(f"no readable strips at {path} ({error})", "a strip set", REMAKE) from error
    if size != info.strip_bytes:
        raise GpufeedError(f"{size} bytes in {path}", str(info.strip_bytes), REMAKE)
    opened = StripSet(path, info, strips)
    if verify:
        verify_bytes(opened)
    check_ids(opened, manifest)
    return opened


def verify_bytes(strips: StripSet, alive: Callable[[], None] = lambda: None) -> None:
    """Reads the whole file of strips; raises GpufeedError unless it is the one that was built.

    alive: called for each PIECE, for who must hear that this goes on (150 GB take minutes).
    """
    found, piece = hashlib.sha256(), memoryview(bytearray(PIECE))
    try:
        with strips.path.open("rb", buffering=0) as file:
            while count := read_all(file, piece):
                found.update(piece[:count])
                alive()
    except OSError as error:
        raise GpufeedError(
            f"no readable {strips.path} ({error.strerror})", "a file of strips", REMAKE
        ) from error
    check_sum(strips.path, found.hexdigest(), strips.info.sha256)


def verify(path: str | Path, manifest: Manifest, alive: Callable[[], None] = lambda: None) -> None:
    """As `verify_bytes`, of the strip set that `open_strips` opens."""
    verify_bytes(open_strips(path, manifest), alive)


def leaves_files(path: str | Path, manifest: Manifest) -> bool:
    """Whether there are samples in no strip."""
    return open_strips(path, manifest).left_over().size > 0


def check_digest(path: Path, expected: str) -> None:
    """Raises GpufeedError if the file is not the one that the sidecar speaks of."""
    check_sum(path, file_digest(path), expected)


def check_sum(path: Path, digest: str, expected: str) -> None:
    """Raises GpufeedError if a file's digest is not that of its sidecar."""
    if digest != expected:
        raise GpufeedError(f"sha256 {digest} of {path}", expected, REMAKE)


def check_ids(strips: StripSet, manifest: Manifest) -> None:
    """Raises GpufeedError unless every sample of the splits stands in a strip or is left over, once."""
    expected = np.sort(np.concatenate([manifest.ids(split) for split in strips.info.splits]))
    found = np.sort(np.concatenate([strips.left_over(), *(strip.ids for strip in strips.strips)]))
    if not np.array_equal(found, expected):
        raise GpufeedError(
            f"{len(found)} sample ids in {strips.path}, {len(np.unique(found))} of them distinct",
            f"each of the {len(expected)} samples of {', '.join(strips.info.splits)} once",
            REMAKE,
        )
