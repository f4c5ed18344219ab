"""The strip set: a dataset's strips in one file, an index of them, and a sidecar that is written last.

`strips.bin` holds the strips one after the other, each a complete JPEG. `strips.parquet` says where each
begins and which samples it holds. `strips.json` says what both were made from, and lists every sample that is
in no strip, with the reason; files without it count as unfinished.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpufeed.datasets.manifest import Manifest
from gpufeed.stores.base import PartsInfo

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


@dataclass(frozen=True)
class Strip:
    """One tall JPEG: its place in the file and what it holds. Fields as in COLUMNS; ids: int64 (N,)."""

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
        """The shape of the decoded strip, (N, H, W, 3)."""
        return len(self.ids), self.height, self.width, 3


@dataclass(frozen=True, kw_only=True)
class StripsInfo(PartsInfo):
    """What the sidecar says. count = joined + all of left_over; sizes in bytes.

    file_bytes, entropy_bytes: of the joined files, with and without headers; strip_bytes: of the strips.
    left_over: reason -> ids of the samples that are decoded file by file.
    """

    word: ClassVar[str] = "the strips"

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
    """An opened strip set. It holds no open file, so that it can be sent to worker processes."""

    path: Path
    info: StripsInfo
    strips: list[Strip]

    def of_split(self, split: str) -> list[Strip]:
        """Return the strips of one split; raise GpufeedError for a split that the set was not built for."""
        return self.info.of_split(self.strips, split, self.path)

    def left_over(self) -> np.ndarray:
        """Return the ids of the samples that are in no strip, ascending, int64 (n,)."""
        ids = [id for group in self.info.left_over.values() for id in group]
        return np.array(sorted(ids), dtype=np.int64)


def index_path(path: Path) -> Path:
    """Return the path of the index of a file of strips."""
    return path.with_suffix(".parquet")


def write_index(strips: Sequence[Strip], path: Path) -> None:
    """Write the index to `path`."""
    columns = {name: [getattr(strip, name) for strip in strips] for name in COLUMNS}
    pq.write_table(pa.table(columns, schema=pa.schema(COLUMNS.items())), path)


def read_index(path: Path) -> list[Strip]:
    """Read an index; raise pyarrow's error for a file that is not one."""
    table = pq.read_table(path).cast(pa.schema(COLUMNS.items()))
    ids = [np.array(row, dtype=np.int64) for row in table["ids"].to_pylist()]
    rows = table.drop_columns("ids").to_pylist()
    return [Strip(**row, ids=row_ids) for row, row_ids in zip(rows, ids, strict=True)]


def open_strips(path: str | Path, manifest: Manifest, verify: bool = False) -> StripSet:
    """Open the strip set whose strips are in `path`.

    Checks manifest, index, size, and that strips and left-over samples together hold every sample of the
    splits once; with verify=True also every byte. Raises GpufeedError if something differs.
    """
    path = Path(path)
    info = StripsInfo.read_for(path, manifest)
    info.check_bytes(index_path(path), info.index_sha256)
    try:
        opened = StripSet(path, info, read_index(index_path(path)))
    except (OSError, pa.ArrowException) as error:
        raise info.wrong(f"no readable {index_path(path)} ({error})", "an index of strips") from error
    info.check_size(path, info.strip_bytes)
    if verify:
        verify_bytes(opened)
    info.check_ids(path, manifest, info.splits, [opened.left_over(), *(strip.ids for strip in opened.strips)])
    return opened


def verify_bytes(strips: StripSet, alive: Callable[[], None] = lambda: None) -> None:
    """Read the whole file of strips; raise GpufeedError unless its sha256 is that in the sidecar.

    alive: as in `sha256_of`; it is called now and then, since 150 GB take minutes.
    """
    strips.info.check_bytes(strips.path, strips.info.sha256, alive)


def verify(path: str | Path, manifest: Manifest, alive: Callable[[], None] = lambda: None) -> None:
    """Open the strip set at `path` and check every byte, as `verify_bytes` does."""
    verify_bytes(open_strips(path, manifest), alive)


def leaves_files(path: str | Path, manifest: Manifest) -> bool:
    """Return whether some samples are in no strip."""
    return open_strips(path, manifest).left_over().size > 0
