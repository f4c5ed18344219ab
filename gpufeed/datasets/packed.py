"""A dataset's image files as one archive beside its manifest, for file systems on which files are counted.

`images.tar` holds them uncompressed, in the order of their names, without times and owners: the same bytes
wherever it is made. `images.json` says how many files and bytes are in it, and what it and the manifest hash
to. gpufeed.datasets.unpacked brings the files back on the node of a job. Standard library only.
"""

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import enough_disk, whole
from gpufeed.datasets.archive import is_plain_name

FORMS = ("folders", "packed")  # what `data_form` of the config may be
IMAGES, MANIFEST = "images", "manifest.parquet"
ARCHIVE, SIDECAR = "images.tar", "images.json"


@dataclass(frozen=True)
class Packed:
    """What images.json says. files, bytes: of the images themselves."""

    files: int
    bytes: int
    archive_bytes: int
    archive_sha256: str
    manifest_sha256: str


class Hashed:
    """A file whose bytes go into a sha256 as they pass; enough of a file for tarfile's streams."""

    def __init__(self, file: IO[bytes]):
        self.file, self.sha256, self.bytes = file, hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        return self._seen(self.file.read(size))

    def write(self, data: bytes) -> int:
        self._seen(data)
        return self.file.write(data)

    def _seen(self, data: bytes) -> bytes:
        self.sha256.update(data)
        self.bytes += len(data)
        return data


def is_packed(root: Path) -> bool:
    """Whether the files of the dataset in `root` lie in an archive there."""
    return (root / SIDECAR).exists()


def pack(stage: Path, out: Path) -> Packed:
    """Writes the archive of `stage/images` and its sidecar into `out`, then, last, stage's manifest.

    Each file is there whole or not at all. Raises GpufeedError for a full disk, for a name that could lead
    out of a folder, and for what is neither file nor folder.
    """
    archive, manifest = out / ARCHIVE, (stage / MANIFEST).read_bytes()
    with enough_disk(out):
        out.mkdir(parents=True, exist_ok=True)
        partial = out / f"{ARCHIVE}.partial"
        try:
            with partial.open("wb") as file:
                files, size, through = write_tar(stage, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, archive)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        hashes = (through.sha256.hexdigest(), hashlib.sha256(manifest).hexdigest())
        about = Packed(files, size, through.bytes, *hashes)
        write_whole(out / SIDECAR, (json.dumps(asdict(about), indent=1) + "\n").encode())
        write_whole(out / MANIFEST, manifest)
    return about


def write_tar(stage: Path, file: IO[bytes]) -> tuple[int, int, Hashed]:
    """(files, their bytes, what went through) of the archive of `stage/images`, written to `file`."""
    through, count, size = Hashed(file), 0, 0
    with tarfile.open(fileobj=through, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files_below(stage / IMAGES)):
            info = tarfile.TarInfo(checked(path.relative_to(stage).as_posix(), stage))
            with path.open("rb") as image:
                info.size = os.fstat(image.fileno()).st_size
                tar.addfile(info, image)
            tar.members.clear()  # it would keep a kilobyte for each
            count, size = count + 1, size + info.size
    return count, size, through


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below a folder; raises GpufeedError for links and the like."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            else:
                raise GpufeedError(
                    f"{entry.path}, a link or a device",
                    "plain files and folders",
                    "take data_form: folders for this dataset",
                )


def checked(name: str, where: Path) -> str:
    """A member's name, if it stays inside a folder; raises GpufeedError otherwise."""
    if not all(is_plain_name(part) for part in name.split("/")):
        raise GpufeedError(
            f"the name {name!r} in {where}, which could lead out of its folder",
            "plain relative names",
            "prepare the dataset again: snakemake --forcerun prepare_dataset",
        )
    return name


def write_whole(path: Path, data: bytes) -> None:
    """Writes a small file, whole or not at all."""
    with whole(path) as partial:
        partial.write_bytes(data)


def clear(out: Path) -> None:
    """Removes a dataset in either form from `out`, the manifest first: it must not outlive its files."""
    for name in (MANIFEST, SIDECAR, ARCHIVE):
        (out / name).unlink(missing_ok=True)
    if (out / IMAGES).exists():
        shutil.rmtree(out / IMAGES)


def read_sidecar(root: Path) -> Packed:
    """What is packed in `root`; raises GpufeedError if that is damaged or belongs to another manifest."""
    path = root / SIDECAR
    remedy = f"move {path} and {MANIFEST} away and run the command again, which prepares the dataset again"
    try:
        about = Packed(**json.loads(path.read_bytes()))
        found = hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()
    except (OSError, ValueError, TypeError) as error:
        raise GpufeedError(
            f"no readable {path} and {MANIFEST} ({error})",
            "both, as gpufeed writes them",
            remedy,
        ) from error
    if found != about.manifest_sha256:
        raise GpufeedError(
            f"{root / MANIFEST} with sha256 {found[:12]}",
            f"the manifest of {root / ARCHIVE}, {about.manifest_sha256[:12]}",
            remedy,
        )
    return about
