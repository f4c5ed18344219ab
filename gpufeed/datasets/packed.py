"""A dataset's image files as one archive beside its manifest, for file systems with a quota of files.

`images.tar` holds them uncompressed, in the order of their names, without times and owners: the same bytes on
every machine. A node unpacks it once for all its jobs, and each job checks the files. They lie in
`$GPUFEED_UNPACK`, or else `$TMPDIR`, in the user's own folder, below a name that ends in the archive's
digest. They stay there for the next job on the node, unless Slurm removes the `$TMPDIR` of each job. This
module uses no third-party library and no threads, since the equivalence check calls it before it forks.
"""

import ctypes
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import NO_ROOM, enough_disk, own_partial, whole, write_whole
from gpufeed.datasets.archive import DAMAGE, is_plain_name
from gpufeed.system.build_once import one_builder

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
    """A file that hashes what is read or written; it has the methods that tarfile's streams need."""

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
    """Return whether the files of the dataset in `root` lie in an archive there."""
    return (root / SIDECAR).exists()


def pack(stage: Path, out: Path) -> Packed:
    """Write the archive of `stage/images` and its sidecar into `out`, then, last, stage's manifest.

    Each file is written whole or not at all. Raises GpufeedError for a full disk, for a name that could lead
    out of a folder, and for anything that is neither file nor folder.
    """
    archive, manifest = out / ARCHIVE, (stage / MANIFEST).read_bytes()
    with enough_disk(out):
        with whole(archive, durable=True) as partial, partial.open("wb") as file:
            files, size, through = write_tar(stage, file)
        hashes = (through.sha256.hexdigest(), hashlib.sha256(manifest).hexdigest())
        about = Packed(files, size, through.bytes, *hashes)
        write_whole(out / SIDECAR, json.dumps(asdict(about), indent=1) + "\n")
        with whole(out / MANIFEST) as partial:
            partial.write_bytes(manifest)
    return about


def write_tar(stage: Path, file: IO[bytes]) -> tuple[int, int, Hashed]:
    """Write the archive of `stage/images` to `file`; return the number of files, their bytes, its hash."""
    through, count, size = Hashed(file), 0, 0
    with tarfile.open(fileobj=through, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files_below(stage / IMAGES)):
            info = tarfile.TarInfo(checked(path.relative_to(stage).as_posix(), stage))
            with path.open("rb") as image:
                info.size = os.fstat(image.fileno()).st_size
                tar.addfile(info, image)
            tar.members.clear()  # tarfile would keep about 1 KB a member
            count, size = count + 1, size + info.size
    return count, size, through


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder; raise GpufeedError for links and devices."""
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
    """Return a member's name, if it stays inside a folder; raise GpufeedError otherwise."""
    if not all(is_plain_name(part) for part in name.split("/")):
        raise GpufeedError(
            f"the name {name!r} in {where}, which could lead out of its folder",
            "plain relative names",
            "prepare the dataset again: snakemake --forcerun prepare_dataset",
        )
    return name


def clear(out: Path) -> None:
    """Remove a dataset in either form from `out`, the manifest first: it must not outlive its files."""
    for name in (MANIFEST, SIDECAR, ARCHIVE):
        (out / name).unlink(missing_ok=True)
    if (out / IMAGES).exists():
        shutil.rmtree(out / IMAGES)


def read_sidecar(root: Path) -> Packed:
    """Return the sidecar in `root`; raise GpufeedError if it is damaged or belongs to another manifest."""
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


VARIABLE = "GPUFEED_UNPACK"  # a folder on the node's own disk, in case $TMPDIR is not on one or has no room
ELSEWHERE = (
    f"name a folder on a larger disk of this node in the variable {VARIABLE}, or set data_form: folders"
)
BLOCK = 4096  # bytes of disk that a file takes beyond its size, at most
CHUNK = 2**20  # bytes

log = logging.getLogger("gpufeed")
_looked_over: dict[tuple, Path] = {}  # unpacked folders that this process or its parent has checked


def files_at(root: Path) -> Path:
    """Return the folder to which the manifest's paths are relative: `root`, or where its archive is unpacked.

    Unpacks it if no job on this node has yet. Raises GpufeedError for a damaged archive, one of another
    manifest, and a disk without room; then no file of it is left.
    """
    if not is_packed(root):
        return root
    sidecar, root = (root / SIDECAR).stat(), root.resolve()
    key = (root, sidecar.st_ino, sidecar.st_mtime_ns, os.environ.get(VARIABLE))
    if key in _looked_over:  # mosaics ask for each image
        return _looked_over[key]
    about = read_sidecar(root)
    target = unpack_folder() / f"{root.name}-{about.archive_sha256[:16]}"
    if not is_whole(target, about):
        with one_builder(target):
            if not is_whole(target, about):
                unpack(root, about, target)
    _looked_over[key] = target
    return target


def bring(root: Path) -> float | None:
    """Unpack the files of `root` on this node; return the seconds that took, None if they are not packed."""
    if not is_packed(root):
        return None
    began = time.perf_counter()
    files_at(root)
    return time.perf_counter() - began


def unpack_folder() -> Path:
    """Return this user's folder for unpacked files, made if missing; raise GpufeedError if it is unusable."""
    folder = Path(os.environ.get(VARIABLE) or tempfile.gettempdir()).absolute() / f"gpufeed-{os.getuid()}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it is a link, or another user's")
    except OSError as error:
        raise GpufeedError(
            f"{folder}, where datasets are unpacked: {error.strerror}",
            "a folder of your own on this node's disk",
            f"name another folder in the variable {VARIABLE}",
        ) from error
    return folder


def is_whole(folder: Path, about: Packed) -> bool:
    """Return whether a folder holds as many files and bytes as were packed."""
    count, size, rest = 0, 0, [folder]
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(Path(entry.path))
                    else:
                        count, size = count + 1, size + entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return False
    return (count, size) == (about.files, about.bytes)


def unpack(root: Path, about: Packed, target: Path) -> None:
    """Unpack into `target`, which appears whole or not at all; one that has lost files is removed first."""
    archive, partial, began = root / ARCHIVE, own_partial(target), time.perf_counter()
    try:
        if target.exists():
            log.warning("%s has lost files, perhaps to a clean-up of old files; unpacking it again", target)
            shutil.rmtree(target)
        check_size(archive, about)
        check_room(archive, about, target.parent)
        partial.mkdir()
        extract(archive, about, partial)
        settle(partial)
        put(partial, target, about)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise no_room(archive, about, target.parent, error.strerror) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    seconds = time.perf_counter() - began
    log.info(
        "unpacked %d files, %.1f MiB, to %s in %.1f s", about.files, about.bytes / 2**20, target, seconds
    )


def extract(archive: Path, about: Packed, folder: Path) -> None:
    """Write the files below `folder`; raise GpufeedError unless they match the sidecar."""
    folders: set[Path] = set()
    try:
        with archive.open("rb") as file:
            through = Hashed(file)
            with tarfile.open(fileobj=through, mode="r|") as tar:
                while (member := tar.next()) is not None:
                    if not member.isfile():
                        raise damaged(archive, f"{member.name!r}, a link, a folder or a device")
                    path = folder / checked(member.name, archive)
                    if path.parent not in folders:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        folders.add(path.parent)
                    with path.open("xb") as image:
                        shutil.copyfileobj(tar.extractfile(member), image)
                    tar.members.clear()  # tarfile would keep about 1 KB a member
            while through.read(CHUNK):  # the rest, for the hash
                pass
    except (*DAMAGE, FileExistsError) as error:
        raise damaged(archive, f"{type(error).__name__}: {error}") from error
    except OSError as error:
        if error.errno is not None:  # the disk's error, not the archive's
            raise
        raise damaged(archive, str(error)) from error
    if through.sha256.hexdigest() != about.archive_sha256:
        raise damaged(archive, f"{through.bytes} bytes with sha256 {through.sha256.hexdigest()[:12]}")
    if not is_whole(folder, about):
        raise damaged(archive, "its files are not those that were packed")


def damaged(archive: Path, found: str) -> GpufeedError:
    """Return the error for an archive that differs from what was packed."""
    return GpufeedError(
        f"{archive} is damaged, cut off or missing ({found})",
        f"the archive that {archive.with_suffix('.json').name} beside it describes",
        f"move {archive} away and run the command again, which packs it again",
    )


def put(partial: Path, target: Path, about: Packed) -> None:
    """Rename the folder to `target`; on a file system without locks another process may have been faster."""
    try:
        os.rename(partial, target)
    except OSError:
        if not is_whole(target, about):
            raise


def settle(folder: Path) -> None:
    """Wait until the disk has all writes, which would otherwise run during the measurement that follows."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # Linux alone has it
        os.sync()
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        if libc.syncfs(number):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(number)


def check_size(archive: Path, about: Packed) -> None:
    """Raise GpufeedError for an archive that is missing or cut off, before minutes go into unpacking it."""
    found = archive.stat().st_size if archive.exists() else None
    if found != about.archive_bytes:
        raise damaged(archive, "no such file" if found is None else f"{found:,} bytes")


def check_room(archive: Path, about: Packed, folder: Path) -> None:
    """Raise GpufeedError, before anything is written, if the files do not fit."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < needed(about):
        raise no_room(archive, about, folder, f"{free / 2**30:.2f} GiB free")
    if disk.f_files and disk.f_favail < about.files:  # some file systems report no inodes
        raise no_room(archive, about, folder, f"{disk.f_favail:,} files free")


def needed(about: Packed) -> int:
    """Return about how many bytes of disk the files take at most."""
    return about.bytes + BLOCK * about.files


def no_room(archive: Path, about: Packed, folder: Path, found: str) -> GpufeedError:
    """Return the error for a disk on which the files do not fit."""
    return GpufeedError(
        f"no room to unpack {archive} in {folder} ({found})",
        f"{needed(about) / 2**30:.2f} GiB for {about.files:,} files",
        ELSEWHERE,
    )
