"""How long a run will take and what it will write, printed before it starts.

A measurement is expected to take as long as it did before, where a document tells, else what its kind takes
on one H200 with 16 cores, and longer with many images to decode. Standard library only: the workflow imports
this while it plans.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.registry import LOADERS
from gpufeed.core.result_kinds import RESULT_KINDS

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "reference"
USUAL = "h200"  # its documents come first, as the seconds of RESULT_KINDS are those of an H200
STARTING_S = 5.5  # before `started_at`: Snakemake's choice of the job, a new Python, the import of torch


KINDS = {kind.folder: kind for kind in RESULT_KINDS.values()}
DATASET_S = 15  # its files, its caches and its strips
USUAL_PIXELS = 10**8  # which all these seconds are of: 25,000 images of 64 x 64
PIXELS_PER_S = 3 * 10**7  # that a core reads, decodes and resizes
CEILING_EPOCHS = 50  # of the cell's loader, in one measurement of ceilings
GATE_EPOCHS = 3  # of training, in one verdict
GIB = 2**30
SHM = "/dev/shm"  # where worker processes put their batches
LARGER_DISK = (
    "name folders on a larger disk (--config data=FOLDER results=FOLDER), free some space there, "
    "or measure fewer datasets and loaders at a time, or smaller images (`resize` of the source)"
)
FEWER_BATCHES = (
    "take fewer `workers`, a smaller `prefetch_factor` or `batch_size`, or loaders without worker processes; "
    "a container has more with `docker run --shm-size=8g`"
)


@dataclass(frozen=True)
class Disk:
    """Folders on one file system. needed: bytes that a run still writes there, at least; free: bytes.

    remedy: what to do if these are fewer.
    """

    folders: list[str]
    needed: int
    free: int
    remedy: str = LARGER_DISK

    def __str__(self) -> str:
        return f"{gib(self.needed)} or more to write in {' and '.join(self.folders)}, {gib(self.free)} free"


def table(
    parts: Mapping[str, Iterable[str]],
    results: str,
    manifests: Mapping[str, float],
    least_s: float = 0.0,
    more: Callable[[str], float] = lambda path: 0.0,
    wanted: Iterable[Disk] = (),
    cells: int = 0,
    most: int = 100,
) -> str:
    """The expected minutes of each part, of all together and of what is left, as lines for a terminal.

    parts: experiment -> paths of its documents below `results`; one that several wait for counts once.
    manifests: of the datasets, with the seconds that each takes to prepare. least_s: as in the config, which
    earlier repeats may have been too short for. more: seconds that a document takes beyond its kind. wanted:
    the disks that are written to. cells: that are measured, if known. most: parts with a row of their own. A
    part with repeats of which no document tells the time says so.
    """
    seen: set[str] = set()
    rows, whole, left, folded = [], 0.0, 0.0, 0.0
    folders = places(results)
    for name, paths in parts.items():
        own = [path for path in dict.fromkeys(paths) if path not in seen]
        seen.update(own)
        parted = {path: Path(path).relative_to(results) for path in own}
        seconds, guessed = {}, 0
        for path, place in parted.items():
            lasts = measured_seconds(place, folders, least_s)
            seconds[path] = usual_seconds(place) + more(path) if lasts is None else lasts
            guessed += lasts is None and place.parts[0] == "records"
        whole += sum(seconds.values())
        left += sum(lasts for path, lasts in seconds.items() if not Path(path).exists())
        repeats = sum(place.parts[0] == "records" for place in parted.values())
        said = counted(own, results) + ", a guess: none was timed" * (0 < repeats == guessed)
        expected = minutes(sum(seconds.values())) if own else "-"
        if len(rows) < most - (len(parts) > most):
            rows.append((name, expected, said or "nothing to measure"))
        else:
            folded += sum(seconds.values())
    if folds := len(parts) - len(rows):
        rows.append((f"{folds} more", minutes(folded), "experiments"))
    preparing = sum(manifests.values())
    whole += preparing
    left += sum(seconds for path, seconds in manifests.items() if not Path(path).exists())
    rows.append(
        (
            "data",
            minutes(preparing),
            f"{len(manifests)} dataset{'s' * (len(manifests) != 1)}, without downloads",
        )
    )
    rows.append(("together", minutes(whole), f"{minutes(left)} of them left"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {name:{widths[0]}}  {time:>{widths[1]}}  {what}" for name, time, what in rows]
    lines += [f"  disk: {disk}" for disk in wanted]
    of = f" of {cells} cell{'s' * (cells != 1)}" if cells else ""
    return "\n".join([f"Expected minutes{of}, one job after another:", *lines])


def places(results: str) -> tuple[Path, ...]:
    """Return the folders whose documents tell how long a job takes: own results first."""
    published = sorted(PUBLISHED.glob("*"), key=lambda folder: (folder.name != USUAL, folder.name))
    return (Path(results), *published)


def skipped(reasons: Mapping[str, int], cells: int) -> str:
    """Return which of so many cells a node without a CUDA GPU skips, before anything is prepared."""
    first = sorted(reasons.items(), key=lambda found: -found[1])
    said = "; ".join(f"{reason} ({count})" for reason, count in first[:2])
    said += f"; {len(first) - 2} more reasons" * (len(first) > 2)
    return f"No NVIDIA GPU on this node: a job here skips {sum(reasons.values())} of {cells} cells: {said}."


def left_out(experiment: str, found: Mapping[str, int]) -> str:
    """Return what an experiment lists and leaves out, once a reason. found: sentence -> combinations."""
    loaders: dict[str, list[str]] = {}
    for sentence in found:
        loader, _, reason = sentence.partition(" ")
        if loader in LOADERS:
            loaders.setdefault(reason, []).append(loader)
        else:
            loaders[sentence] = []
    said = [f"{', '.join(names)} ({reason})" if names else reason for reason, names in loaders.items()]
    count = sum(found.values())
    return f"{experiment} leaves out {count} combination{'s' * (count != 1)}: {'; '.join(said)}."


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def counted(paths: Iterable[str], results: str) -> str:
    """`46 repeats, 1 verdict`."""
    folders = [Path(path).relative_to(results).parts[0] for path in paths]
    found = [(KINDS[folder], folders.count(folder)) for folder in KINDS if folder in folders]
    return ", ".join(f"{n} {kind.words[n != 1]}" for kind, n in found)


def measured_seconds(path: Path, folders: Iterable[Path], least_s: float = 0.0) -> float | None:
    """Return the seconds of one measurement; None where no document tells.

    path: of its document below any of the folders; the first that has it counts. Repeats of one cell take as
    long as each other.
    """
    for folder in folders:
        if path.parts[0] == "records":
            found = _of_cell((folder / path).parent, least_s)
        else:
            found = lasted(folder / path)
        if found is not None:
            return found
    return None


def usual_seconds(path: Path) -> float:
    """Return the seconds that a measurement of the kind of this document takes."""
    return KINDS[path.parts[0]].seconds


def beyond(pixels: float, cores: int) -> float:
    """Seconds that reading so many pixels takes, beyond those of a usual dataset."""
    return max(0.0, pixels - USUAL_PIXELS) / (PIXELS_PER_S * cores)


def written(documents: Iterable[str], results: str) -> dict[str, int]:
    """Document -> bytes of it and of what stands beside it, about."""
    return {path: KINDS[Path(path).relative_to(results).parts[0]].written for path in documents}


def disks(places: Mapping[str, Mapping[str, int]]) -> list[Disk]:
    """Those that a run writes to. places: folder -> paths in it, with the bytes of each.

    What is there is not written again, nor what a download has brought.
    """
    found: dict[int, Disk] = {}
    for folder, paths in places.items():
        there = existing(folder)
        needed = sum(max(0, size - partial(path)) for path, size in paths.items() if not os.path.exists(path))
        device, usage = there.stat().st_dev, shutil.disk_usage(there)
        free = usage.free if usage.total else needed  # some file systems do not tell: then there is room
        before = found.get(device, Disk([], 0, free))
        found[device] = Disk([*before.folders, folder], before.needed + needed, free)
    return list(found.values())


def waiting(batch: int, workers: int, prefetch_factor: int | None) -> int:
    """Return the bytes of the batches that worker processes may have ready, and of two in use.

    batch: bytes of one.
    """
    return batch * (workers * (prefetch_factor or 2) + 2) if workers else 0


def shared_memory(needed: int, free_memory: int) -> list[Disk]:
    """Return the file system in memory on which so many bytes of batches wait; [] where there is none.

    free_memory: bytes that a process may still take, of which its files are a part.
    """
    if not needed or not os.path.exists(SHM):
        return []
    return [Disk([SHM], needed, min(shutil.disk_usage(SHM).free, free_memory), FEWER_BATCHES)]


def too_large(loader: str, dataset: str, size: int, free: int) -> str:
    """Return the sentence for a cache that a loader keeps in the host's memory, which is short of it."""
    return (
        f"Host memory: {loader} keeps {gib(size)} of {dataset}, and {gib(free)} are free: host_cache then "
        "reads its file instead, and resident fails. `limit` of the source makes it smaller; other loaders "
        "keep nothing."
    )


def check_room(wanted: Iterable[Disk]) -> None:
    """Raises GpufeedError for a disk that is shorter than what is to be written to it."""
    for disk in wanted:
        if disk.needed > disk.free:
            raise GpufeedError(str(disk), f"{gib(disk.needed)} free", disk.remedy)


def gib(size: int) -> str:
    """`12.3 GiB`, and in MiB what would be nothing."""
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def existing(folder: str) -> Path:
    """The folder, or its nearest parent that is there."""
    path = Path(folder).expanduser().absolute()
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def partial(path: str) -> int:
    """Bytes of a file that have been downloaded so far."""
    try:
        return os.stat(f"{path}.partial").st_size
    except OSError:
        return 0


@cache
def _of_cell(folder: Path, least_s: float) -> float | None:
    found = (lasted(path, least_s) for path in sorted(folder.glob("*.json")))
    return next((seconds for seconds in found if seconds is not None), None)


def lasted(path: Path, least_s: float = 0.0) -> float | None:
    """What a finished document took, start of its process included; None where it does not tell.

    A repeat that was taken up again tells of its last process alone.

    A repeat with a steady state under least_s would take what is missing longer.
    """
    try:
        told = json.loads(path.read_text())
        if told["status"] not in ("done", "passed") or told.get("resumed"):
            return None
        started, finished = (datetime.fromisoformat(told[key]) for key in ("started_at", "finished_at"))
        short_s = max(0.0, least_s - told["throughput"]["seconds"]) if "throughput" in told else 0.0
        return STARTING_S + (finished - started).total_seconds() + short_s
    except (OSError, ValueError, KeyError, TypeError):
        return None
