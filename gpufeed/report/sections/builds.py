"""Build times of caches as rows of a table, and what they say of the decoders' memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpufeed.benchmarks.store_builds import BuildTimes
from gpufeed.core.errors import GpufeedError
from gpufeed.report.wording import plural

GUIDE_GB = (2, 4)  # of device memory for a decoder's buffers, as the guide that started this project says


@dataclass(frozen=True)
class BuildRow:
    """One decoder and one size of the set, as words and figures."""

    count: int
    images: str  # "50,000 (repeats of 20,000 real files)"
    decoder: str
    cores: str
    seconds: str  # median, and the range
    strips: str  # seconds of making the strips before, where it builds from strips
    n: int
    images_per_s: float
    mib: float
    buffers: str
    machine: str


@dataclass(frozen=True)
class BuildTable:
    """The builds of one experiment. troubles: (decoder, status, sentence) of what could not be built.

    missing: <decoder>-<cores> of what is planned and was not measured.
    """

    rows: list[BuildRow]
    troubles: list[tuple[str, str, str]]
    memory: str
    missing: list[str]


def table(paths: Iterable[Path], experiment: str, planned: Sequence[str] = ()) -> BuildTable | None:
    """The table of an experiment, smallest sets first, the fastest decoder first; None if it has none.

    planned: <decoder>-<cores> of the builds that it plans.
    """
    ours = [path for path in paths if path.parent.name == experiment]
    rows, troubles = [], []
    for path in ours:
        try:
            times = BuildTimes.read(path)
        except GpufeedError as error:
            troubles.append((path.stem, "damaged", error.found.splitlines()[0]))
            continue
        if times.sentence:
            troubles.append((times.decoder, times.status, times.sentence))
        rows += [row(times, one) for one in times.builds]
    rows.sort(key=lambda row: (row.count, -row.images_per_s))
    missing = [name for name in planned if name not in {path.stem for path in ours}]
    return BuildTable(rows, troubles, memory(rows), missing) if ours or missing else None


def row(times: BuildTimes, one: dict) -> BuildRow:
    """One entry of `builds`."""
    count, files, rounds = one["count"], one["files"], one["rounds_s"]
    gpu, mib = times.environment["gpu"], one["gpu_buffers_mib"]
    cpu = times.environment["cpu"]
    return BuildRow(
        count=count,
        images=f"{count:,}" if files == count else f"{count:,} (repeats of {files:,} real files)",
        decoder=times.decoder_version,
        cores=plural(times.cores, "core"),
        seconds=f"{median(rounds):.2f} ({min(rounds):.2f} to {max(rounds):.2f})",
        strips="" if one["strips_s"] is None else f"{one['strips_s']:.2f}",
        n=len(rounds),
        images_per_s=one["images_per_s"],
        mib=mib or 0.0,
        buffers="-" if mib is None else f"{mib:,.0f} MiB",
        machine=f"{gpu['name']}, {cpu}" if gpu else cpu,
    )


def memory(rows: list[BuildRow]) -> str:
    """What the GPU decoders' memory comes to, against what the guide reckoned with; empty without any."""
    measured = [row for row in rows if row.buffers != "-"]
    if not measured:
        return ""
    most = max(measured, key=lambda row: row.mib)
    (least, largest), gb = GUIDE_GB, most.mib * 2**20 / 1e9
    word = "less than" if gb < least else "within" if gb <= largest else "more than"
    return (
        f"The most device memory that any of them took was {most.buffers} (by {most.decoder}, of a set of "
        f"{most.images}): {word} the {least} to {largest} GB that a guide to GPU decoding reckons with."
    )
