"""The description of a bundle: checksums of its files, and the Python and stack that it is for.

python -m gpufeed.cluster.bundle.contents FOLDER 12|13 checks whether `make setup OFFLINE=FOLDER` can install
from it. It runs in a Python without any packages, so it needs only the standard library.
"""

import json
import sys
import sysconfig
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import sha256_of, write_whole
from gpufeed.core.folders import check_checkout

ROOT = Path(__file__).resolve().parents[3]
SUMS = "SHA256SUMS"  # in the format of sha256sum
ABOUT = "bundle.json"
COPY = "copy the folder again, by rsync -a --checksum"
PARTS = ("archives", "plugins", "wheels")


def constraints(cuda: str) -> Path:
    """Return the constraints file of a stack, `12` or `13`."""
    return ROOT / f"envs/constraints-cuda{cuda}.txt"


def this_node(cuda: str) -> dict[str, str]:
    """Return what wheels must match: the stack, its versions, and Python and platform of this process."""
    return {
        "cuda": cuda,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": sysconfig.get_platform(),
        "constraints": sha256_of(constraints(cuda)),
    }


def seal(folder: Path, about: dict[str, str]) -> None:
    """Write bundle.json, then the checksums of all files, which mark the bundle as complete."""
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    files = [folder / ABOUT, *(path for part in PARTS for path in sorted((folder / part).rglob("*")))]
    lines = [f"{sha256_of(path)}  {path.relative_to(folder)}\n" for path in files if path.is_file()]
    write_whole(folder / SUMS, "".join(lines))


def check(folder: Path, cuda: str) -> int:
    """Return the number of files of a complete bundle for this Python; raise GpufeedError otherwise."""
    pack = f"run make bundle CUDA={cuda} again, where there is a network: it resumes"
    check_checkout(ROOT / "envs")
    if not (folder / SUMS).is_file():
        raise GpufeedError(f"no {SUMS} in {folder}", "a folder that make bundle completed", pack)
    if not constraints(cuda).is_file():
        raise GpufeedError(f"CUDA={cuda}", "12 or 13", "make setup CUDA=12 (or 13) OFFLINE=FOLDER")
    rows = [line.partition("  ") for line in (folder / SUMS).read_text(errors="replace").splitlines()]
    if not any(name == ABOUT for _, _, name in rows):
        raise GpufeedError(f"{folder / SUMS} does not list {ABOUT}", "a complete copy of the file", COPY)
    wrong = [
        name for sum_, _, name in rows if not (folder / name).is_file() or sha256_of(folder / name) != sum_
    ]
    if wrong:
        shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} others" if len(wrong) > 3 else "")
        raise GpufeedError(f"{shown} in {folder}: missing or damaged", f"the files of {folder / SUMS}", COPY)
    about, here = json.loads((folder / ABOUT).read_text()), this_node(cuda)
    for key, value in here.items():
        if about[key] != value:
            raise unfit(key, about[key], value, pack)
    return len(rows)


def unfit(key: str, packed: str, here: str, pack: str) -> GpufeedError:
    """Return the error for a bundle for another stack, Python or platform."""
    if key == "constraints":
        return GpufeedError("a bundle of other versions", "the versions in this checkout's envs", pack)
    remedy = f"make setup CUDA={packed}, or pack another" if key == "cuda" else pack
    if key == "python":
        remedy = f"make setup PYTHON=python{packed}, or pack with make bundle PYTHON=python{here}"
    return GpufeedError(f"a bundle for {key} {packed}", f"one for {key} {here}", remedy)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(f"{sys.argv[1]}: {check(Path(sys.argv[1]), sys.argv[2])} files, all intact")
    except GpufeedError as error:
        sys.exit(str(error))
