"""How long a run will take and what it will write, printed before it starts.

A measurement takes as long as in its last document, if there is one. Otherwise its kind has a time on an H200
with 16 cores, and longer with many images to decode. Standard library only: used while planning.
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
from gpufeed.core.folders import existing
from gpufeed.core.quantities import gib, plural
from gpufeed.core.registry import LOADERS
from gpufeed.core.result_kinds import RESULT_KINDS

# seconds of the published documents, which results/reference/publish.py writes
PUBLISHED = Path(__file__).resolve().parents[2] / "results/reference/durations.json"
STARTING_S = 5.5  # before `started_at`: scheduling, starting Python, importing torch
KINDS = {kind.folder: kind for kind in RESULT_KINDS.values()}
DATASET_S = 15  # to prepare a usual dataset with its stores
USUAL_PIXELS = 10**8  # of a usual dataset: 25,000 images of 64 x 64
PIXELS_PER_S = 3 * 10**7  # read, decoded and resized by one core
CEILING_EPOCHS = 50  # in one measurement of ceilings
GATE_EPOCHS = 3  # of the training split, in one verdict
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
    """Folders on one file system. needed: bytes that a run still writes, at least. free: free bytes.

    remedy: what to do if these are not enough.
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
    seconds_of: Callable[[str], tuple[float, bool]],
    wanted: Iterable[Disk] = (),
    cells: int = 0,
    most: int = 100,
) -> str:
    """Return the expected minutes of each part, of all together and of what is left, as lines of text.

    parts: experiment -> paths of its documents below `results`; one that several share counts once.
    manifests: manifest -> seconds to prepare its dataset. seconds_of: document -> seconds of its job, and
    whether they are a guess. wanted: disks that are written to. cells: that are measured, if known. most:
    parts with a row of their own. A part all of whose repeats are guesses says so.
    """
    seen: set[str] = set()
    rows, whole, left, folded = [], 0.0, 0.0, 0.0
    for name, paths in parts.items():
        own = [path for path in dict.fromkeys(paths) if path not in seen]
        seen.update(own)
        found = {path: seconds_of(path) for path in own}
        seconds = sum(lasts for lasts, _ in found.values())
        whole += seconds
        left += sum(lasts for path, (lasts, _) in found.items() if not Path(path).exists())
        guesses = [found[path][1] for path in own if Path(path).relative_to(results).parts[0] == "records"]
        said = counted(own, results) + ", a guess: no such run was timed" * (any(guesses) and all(guesses))
        expected = minutes(seconds) if own else "-"
        if len(rows) < most - (len(parts) > most):
            rows.append((name, expected, said or "nothing to measure"))
        else:
            folded += seconds
    if folds := len(parts) - len(rows):
        rows.append((f"{folds} more", minutes(folded), "experiments"))
    preparing = sum(manifests.values())
    whole += preparing
    left += sum(seconds for path, seconds in manifests.items() if not Path(path).exists())
    rows.append(("data", minutes(preparing), f"{plural(len(manifests), 'dataset')}, without downloads"))
    rows.append(
        ("together", minutes(whole), f"{minutes(left)} of them left" if left else "all measured before")
    )
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {name:{widths[0]}}  {time:>{widths[1]}}  {what}" for name, time, what in rows]
    lines += [f"  disk: {disk}" for disk in wanted]
    of = f" of {plural(cells, 'cell')}" if cells else ""
    return "\n".join([f"Expected minutes{of}, one job after another:", *lines])


def skipped(reasons: Mapping[str, int], cells: int) -> str:
    """Return which of so many cells a node without a CUDA GPU skips."""
    first = sorted(reasons.items(), key=lambda found: -found[1])
    said = "; ".join(f"{reason} ({count})" for reason, count in first[:2])
    said += f"; {len(first) - 2} more reasons" * (len(first) > 2)
    return f"No NVIDIA GPU on this node: a job here skips {sum(reasons.values())} of {cells} cells: {said}."


def left_out(experiment: str, found: Mapping[str, int]) -> str:
    """Return the sentence on what an experiment leaves out. found: sentence -> combinations."""
    loaders: dict[str, list[str]] = {}
    for sentence in found:
        loader, _, reason = sentence.partition(" ")
        if loader in LOADERS:
            loaders.setdefault(reason, []).append(loader)
        else:
            loaders[sentence] = []
    said = [f"{', '.join(names)} ({reason})" if names else reason for reason, names in loaders.items()]
    return f"{experiment} leaves out {plural(sum(found.values()), 'combination')}: {'; '.join(said)}."


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def counted(paths: Iterable[str], results: str) -> str:
    """Return the number of documents by kind, such as `46 repeats, 1 equivalence check`."""
    folders = [Path(path).relative_to(results).parts[0] for path in paths]
    found = [(KINDS[folder], folders.count(folder)) for folder in KINDS if folder in folders]
    return ", ".join(plural(n, *kind.words) for kind, n in found)


def measured_seconds(path: Path, results: str | Path, least_s: float = 0.0) -> float | None:
    """Return the seconds of a measurement from its document, else from a published one; None without one.

    path: of its document below the folder `results`. All repeats of a cell have one time.
    """
    if path.parts[0] == "records":
        own = _of_cell((results / path).parent, least_s)
    else:
        own = lasted(results / path, least_s)
    if own is None and (found := published(PUBLISHED).get(key(path))):
        return _extended(*found, least_s)
    return own


def key(path: Path) -> str:
    """Return what the repeats of a cell have in common: their folder; of other documents the path."""
    return str(path.parent if path.parts[0] == "records" else path)


@cache
def published(path: Path) -> dict[str, tuple[float, float | None]]:
    """Return key -> seconds of the document, and of its steady state if it has one; {} without the file."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def durations(folders: Iterable[Path]) -> dict[str, tuple[float, float | None]]:
    """Return what `published` reads, from folders of results; of two that have a key the first counts."""
    found: dict[str, tuple[float, float | None]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            place = path.relative_to(folder)
            if place.parts[0] in KINDS and (seconds := _seconds(path)):
                found.setdefault(key(place), seconds)
    return found


def usual_seconds(path: Path) -> float:
    """Return the seconds of the document's kind."""
    return KINDS[path.parts[0]].seconds


def beyond(pixels: float, cores: int) -> float:
    """Return the seconds that reading these pixels takes beyond a usual dataset."""
    return max(0.0, pixels - USUAL_PIXELS) / (PIXELS_PER_S * cores)


def written(documents: Iterable[str], results: str) -> dict[str, int]:
    """Return document -> approximate bytes of it and of the other output of its job."""
    return {path: KINDS[Path(path).relative_to(results).parts[0]].written for path in documents}


def disks(places: Mapping[str, Mapping[str, int]]) -> list[Disk]:
    """Return the disks that a run writes to. places: folder -> paths in it, with the bytes of each.

    Existing files and the part of a download that is there need no room.
    """
    found: dict[int, Disk] = {}
    for folder, paths in places.items():
        there = existing(folder)
        needed = sum(max(0, size - partial(path)) for path, size in paths.items() if not os.path.exists(path))
        device, usage = there.stat().st_dev, shutil.disk_usage(there)
        free = usage.free if usage.total else needed  # some file systems report 0: assume enough room
        before = found.get(device, Disk([], 0, free))
        found[device] = Disk([*before.folders, folder], before.needed + needed, free)
    return list(found.values())


def waiting(batch: int, workers: int, prefetch_factor: int | None) -> int:
    """Return the bytes of the batches that worker processes may hold ready, and of two in use.

    batch: bytes of one.
    """
    return batch * (workers * (prefetch_factor or 2) + 2) if workers else 0


def shared_memory(needed: int, free_memory: int) -> list[Disk]:
    """Return the file system in memory that holds these bytes of batches; [] if there is none.

    free_memory: bytes that a process may still take, which includes its files there.
    """
    if not needed or not os.path.exists(SHM):
        return []
    return [Disk([SHM], needed, min(shutil.disk_usage(SHM).free, free_memory), FEWER_BATCHES)]


def too_large(loader: str, dataset: str, size: int, free: int) -> str:
    """Return the sentence for a cache that a loader keeps in host memory, and that does not fit."""
    return (
        f"Host memory: {loader} keeps {gib(size)} of {dataset}, and {gib(free)} are free: host_cache then "
        "reads its file instead, and resident fails. `limit` of the source makes it smaller; other loaders "
        "keep nothing."
    )


def check_room(wanted: Iterable[Disk]) -> None:
    """Raise GpufeedError for a disk without room for what is to be written to it."""
    for disk in wanted:
        if disk.needed > disk.free:
            raise GpufeedError(str(disk), f"{gib(disk.needed)} free", disk.remedy)


def partial(path: str) -> int:
    """Return the bytes of a file that have been downloaded so far."""
    try:
        return os.stat(f"{path}.partial").st_size
    except OSError:
        return 0


def _of_cell(folder: Path, least_s: float) -> float | None:
    found = (lasted(path, least_s) for path in sorted(folder.glob("*.json")))
    return next(filter(None, found), None)


def probed_seconds(probe: Path, images: int, ceiling: bool, least_s: float = 0.0) -> float | None:
    """Return the seconds of a repeat by the pace of a probe; None without one that is done.

    images: of its steps on one device, as in a probe. ceiling: whether it trains without loading.
    """
    try:
        rounds = json.loads(probe.read_text())["compute" if ceiling else "together"]["rounds"]
        image_s = sum(one["seconds"] for one in rounds) / sum(one["images"] for one in rounds)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
    return 2 * STARTING_S + max(images * image_s, least_s)  # the second for the loader and its workers


def lasted(path: Path, least_s: float = 0.0) -> float | None:
    """Return the time of a finished document, with the start of its process; None if it has none.

    A repeat that was resumed has only the time of its last process, and does not count. If a repeat's steady
    state was shorter than least_s, the difference is added.
    """
    found = _seconds(path)
    return found and _extended(*found, least_s)


def _extended(seconds: float, steady_s: float | None, least_s: float) -> float:
    return seconds if steady_s is None else seconds + max(0.0, least_s - steady_s)


def _seconds(path: Path) -> tuple[float, float | None] | None:
    try:
        told = json.loads(path.read_text())
        if told["status"] not in ("done", "passed") or told.get("resumed"):
            return None
        started, finished = (datetime.fromisoformat(told[key]) for key in ("started_at", "finished_at"))
        steady_s = float(told["throughput"]["seconds"]) if "throughput" in told else None
        return round(STARTING_S + (finished - started).total_seconds(), 1), steady_s and round(steady_s, 2)
    except (OSError, ValueError, KeyError, TypeError):
        return None
