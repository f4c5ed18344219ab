"""The part of the report on the augments' kernels: sentences, and a table of every batch and image size."""

from collections.abc import Iterable
from pathlib import Path

from gpufeed.analysis import kernel_claims
from gpufeed.errors import GpufeedError
from gpufeed.kernels import record
from gpufeed.kernels.plan import IMPLEMENTATIONS, WORKS

TITLES = {
    "normalise": "normalise",
    "brightness": "brightness",
    "contrast": "contrast",
    "salt_pepper": "salt and pepper",
    "rotation": "rotation",
    "crop_flip": "crop, flip, normalise",
    "one_pass": "crop, flip, brightness, contrast, salt and pepper, normalise",
}
LIBRARIES = ("torchvision", "kornia")


def section(paths: Iterable[str | Path], experiment: str, planned: bool) -> dict | None:
    """What the template shows of an experiment's kernels; None if it neither has nor plans any.

    paths: benchmarks of all experiments, <experiment>.json.
    """
    ours = [path for path in map(Path, paths) if path.stem == experiment]
    if not ours and not planned:
        return None
    machines, troubles = [], []
    for path in ours:
        try:
            found = record.read(path)
        except GpufeedError as error:
            troubles.append(("damaged", error.found.splitlines()[0]))
            continue
        if found["sentence"]:
            troubles.append((found["status"], found["sentence"]))
        troubles += sorted({(row["status"], told(row)) for row in found["rows"] if row["sentence"]})
        if any(row["status"] == "done" for row in found["rows"]):
            machines.append(machine(found))
    return {"machines": machines, "troubles": troubles, "missing": planned and not ours}


def told(row: dict) -> str:
    """The sentence of a row that has no time, with its name."""
    at = "" if row["status"] == "skipped" else f" at batch {row['batch_size']} of {row['size']} px"
    work = "" if row["status"] == "skipped" else f", {TITLES[row['work']]}{at}"
    return f"{row['implementation']}{work}: {row['sentence']}"


def machine(found: dict) -> dict:
    """Title, sentences and tables of one benchmark."""
    done = {
        (row["work"], row["implementation"], row["batch_size"], row["size"]): row
        for row in found["rows"]
        if row["status"] == "done"
    }
    settings, environment = found["settings"], found["environment"]
    gpu = environment["gpu"]
    return {
        "title": f"{gpu['name'] if gpu else environment['cpu']}, torch {environment['versions']['torch']}",
        "launches": settings["launches"],
        "flush_mib": settings["flush_mib"],
        "dtype": settings["dtype"],
        "sentences": sentences(done, settings),
        "claims": kernel_claims.claims(done, TITLES),
        "sizes": settings["size"],
        "tables": [
            {"batch_size": n, "rows": table_rows(done, n, settings["size"])} for n in settings["batch_size"]
        ],
    }


def sentences(done: dict, settings: dict) -> list[str]:
    """What the fused kernel is worth, at the largest batch of each size and at the smallest one."""
    said = []
    smallest, largest = min(settings["batch_size"]), max(settings["batch_size"])
    for size in settings["size"]:
        rows = {name: done.get(("one_pass", name, largest, size)) for name in IMPLEMENTATIONS}
        fused, chain = rows["fused"], rows["chain"]
        if not fused:
            continue
        text = (
            f"{size} px, batch {largest}: all in one pass takes {fused['ms_median']:.3g} ms, "
            f"{fused['share_of_copy']:.0%} of the speed of a copy of as many bytes"
        )
        if chain:
            text += (
                f"; the chain of kernels moves {chain['bytes'] / fused['bytes']:.1f} times the bytes and "
                f"takes {chain['ms_median'] / fused['ms_median']:.1f} times as long"
            )
        for name in LIBRARIES:
            if rows[name]:
                text += f"; {name} {rows[name]['ms_median'] / fused['ms_median']:.1f} times"
        few = [done.get(("one_pass", name, smallest, size)) for name in ("chain", "fused")]
        if chain and all(few):
            text += (
                f". At batch {smallest}, where launching decides, a call of the chain takes "
                f"{few[0]['call_ms'] / few[1]['call_ms']:.1f} times as long as a call of the one kernel"
            )
        said.append(text + ".")
    return said


def table_rows(done: dict, n: int, sizes: list[int]) -> list[dict]:
    """A row a work and implementation, at one batch size; a cell an image size."""
    rows = []
    for work in WORKS:
        for name in IMPLEMENTATIONS:
            found = [done.get((work, name, n, size)) for size in sizes]
            if any(found):
                rows.append(
                    {
                        "work": TITLES[work],
                        "implementation": name,
                        "least": any(row["bytes_are"] == "at least" for row in found if row),
                        "cells": [cell(row) if row else None for row in found],
                    }
                )
    return rows


def cell(row: dict) -> dict[str, str]:
    """One measurement in words."""
    return {
        "rate": f"{row['images_per_s']:,.0f}",
        "ms": f"{row['ms_median']:.3g} ms ({row['ms_q1']:.3g} to {row['ms_q3']:.3g})",
        "share": f"{row['share_of_copy']:.0%} of copy, {row['gb_per_s']:,.0f} GB/s",
        "call": f"{row['call_ms']:.3g} ms a call",
    }
