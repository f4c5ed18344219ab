"""What all stores share: each is built once under a lock, described by a sidecar, and checked when opened.

The sidecar, a JSON file beside the store, is written last: a store without it is unfinished.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from gpufeed.core.errors import GpufeedError, unknown
from gpufeed.core.file_writes import enough_disk, sha256_of, write_whole
from gpufeed.datasets.manifest import COLUMNS, Manifest
from gpufeed.system.build_once import one_builder


def info_path(path: Path) -> Path:
    """Return the sidecar of the store at `path`."""
    return path.with_suffix(".json")


def manifest_digest(manifest: Manifest) -> str:
    """Return the sha256 of a manifest's contents, the same on every machine and library version."""
    digest = hashlib.sha256(json.dumps(asdict(manifest.info), sort_keys=True).encode())
    for column in COLUMNS:
        digest.update("\n".join(map(str, manifest.table[column].tolist())).encode() + b"\0")
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class StoreInfo:
    """What a sidecar says; each kind of store adds its fields.

    word: what errors call such a store. manifest_sha256: of the manifest that it was built from.
    """

    word: ClassVar[str]
    manifest_sha256: str

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the fields of a parsed sidecar."""
        return cls(**data)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the sidecar of the store at `path`; raise GpufeedError if it is missing or damaged."""
        try:
            return cls.from_json(json.loads(info_path(path).read_text()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise cls.wrong(
                f"no readable {info_path(path)} ({error})", f"{cls.word}, built completely"
            ) from error

    @classmethod
    def read_for(cls, path: Path, manifest: Manifest) -> Self:
        """Read the sidecar; raise GpufeedError also if the store was built from another manifest."""
        info, found = cls.read(path), manifest_digest(manifest)
        if info.manifest_sha256 != found:
            raise cls.wrong(
                f"{path} was built from another manifest ({info.manifest_sha256[:12]})",
                f"one built from the present manifest ({found[:12]})",
            )
        return info

    @classmethod
    def wrong(cls, found: str, expected: object) -> GpufeedError:
        """Return the error for a store that does not match its sidecar."""
        remedy = f"move the folder of {cls.word} away and run the command again, which builds it again"
        return GpufeedError(found, str(expected), remedy)

    @classmethod
    def check_size(cls, file: Path, expected: int) -> None:
        """Raise GpufeedError unless the file exists and has the expected size."""
        try:
            size = file.stat().st_size
        except OSError as error:
            raise cls.wrong(f"no readable {file} ({error.strerror})", f"{expected} bytes") from error
        if size != expected:
            raise cls.wrong(f"{size} bytes in {file}", expected)

    @classmethod
    def check_bytes(cls, file: Path, expected: str, alive: Callable[[], None] = lambda: None) -> None:
        """Raise GpufeedError unless the file has this sha256. alive: as in `sha256_of`."""
        try:
            found = sha256_of(file, alive)
        except OSError as error:
            raise cls.wrong(f"no readable {file} ({error.strerror})", f"sha256 {expected}") from error
        if found != expected:
            raise cls.wrong(f"sha256 {found} of {file}", expected)

    @classmethod
    def check_ids(cls, path: Path, manifest: Manifest, splits: Sequence[str], ids: Sequence) -> None:
        """Raise GpufeedError unless `ids`, arrays or lists, hold each sample of the splits once."""
        expected = np.sort(np.concatenate([manifest.ids(split) for split in splits]))
        found = np.sort(np.concatenate([np.empty(0, np.int64), *ids]))
        if not np.array_equal(found, expected):
            raise cls.wrong(
                f"{len(found)} sample ids in {path}, {len(np.unique(found))} of them distinct",
                f"each of the {len(expected)} samples of {', '.join(splits)} once",
            )


@dataclass(frozen=True, kw_only=True)
class PartsInfo(StoreInfo):
    """A store of parts that each hold samples of one split, dealt at random by a seed."""

    splits: list[str]
    seed: int

    def of_split(self, parts: Sequence, split: str, path: Path) -> list:
        """Return the parts of one split; raise GpufeedError for a split that the store was not built for."""
        if split not in self.splits:
            raise unknown("split", split, self.splits, where=str(path))
        return [part for part in parts if part.split == split]


Info = TypeVar("Info", bound=StoreInfo)


def build_once(
    path: Path,
    make: Callable[[], Info],
    finished: Callable[[], Info],
    asked: Mapping[str, Any] | None = None,
) -> Info:
    """Build the store at `path` by `make`, and write what that returns into the sidecar.

    Of several processes that want the store at once, one builds it. The others use it if `finished`, which
    opens it, returns the fields in `asked`. Raises GpufeedError for a full disk.
    """
    with enough_disk(path.parent), one_builder(path) as waited:
        with suppress(GpufeedError):
            if waited and (asked or {}).items() <= vars(info := finished()).items():
                return info
        info_path(path).unlink(missing_ok=True)
        info = make()
        write_whole(info_path(path), json.dumps(asdict(info), indent=1) + "\n", shared=True)
    return info
