"""Build times of caches as rows of a table, and what they say of the decoders' memory."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from gpufeed.benchmarks.store_builds import DOCUMENT
from gpufeed.report.load_records import read_documents
from gpufeed.report.wording import plural

GUIDE_GB = (2, 4)  # of device memory for a decoder's buffers, as the guide that started this project says


def section(paths: Iterable[Path], experiment: str, planned: Sequence[str] = ()) -> dict | None:
    """Return what the template shows of builds, smallest sets and fastest decoders first; None without any.

    planned: <decoder>-<cores> of the builds that it plans.
    """
    documents = read_documents("builds", paths, experiment, DOCUMENT.read, planned)
    if not documents:
        return None
    for _, times in documents.found:
        if times["sentence"]:
            documents.add_trouble(times["status"], times["decoder"], times["sentence"])
    rows = [row(times, one) for _, times in documents.found for one in times["builds"]]
    rows.sort(key=lambda row: (row["count"], -row["images_per_s"]))
    return {"rows": rows, "memory": memory(rows), **documents.lacking}


def row(times: Mapping, one: Mapping) -> dict:
    """Return one entry of `builds`, as words and numbers.

    strips: seconds of making the strips before, where it builds from strips.
    """
    count, files, rounds = one["count"], one["files"], one["rounds_s"]
    gpu, mib = times["environment"]["gpu"], one["gpu_buffers_mib"]
    cpu = times["environment"]["cpu"]
    return {
        "count": count,
        "images": f"{count:,}" if files == count else f"{count:,} (repeats of {files:,} real files)",
        "decoder": times["decoder_version"],
        "cores": plural(times["cores"], "core"),
        "seconds": f"{median(rounds):.2f} ({min(rounds):.2f} to {max(rounds):.2f})",
        "strips": "" if one["strips_s"] is None else f"{one['strips_s']:.2f}",
        "n": len(rounds),
        "images_per_s": one["images_per_s"],
        "mib": mib or 0.0,
        "buffers": "-" if mib is None else f"{mib:,.0f} MiB",
        "machine": f"{gpu['name']}, {cpu}" if gpu else cpu,
    }


def memory(rows: list[dict]) -> str:
    """Return a sentence on the GPU decoders' memory, beside what the guide expects; empty without any."""
    measured = [row for row in rows if row["buffers"] != "-"]
    if not measured:
        return ""
    most = max(measured, key=lambda row: row["mib"])
    (least, largest), gb = GUIDE_GB, most["mib"] * 2**20 / 1e9
    word = "less than" if gb < least else "within" if gb <= largest else "more than"
    return (
        f"The most device memory that any of them took was {most['buffers']} (by {most['decoder']}, "
        f"of a set of {most['images']}): {word} the {least} to {largest} GB that a guide to GPU decoding "
        "reckons with."
    )
