"""The part of the report on decoders alone: sentences, figures and tables of an experiment's sweep."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from gpufeed.report import style, wording
from gpufeed.report.sections import crossover, decoding_figures, decoding_tables
from gpufeed.report.sections.crossover import Rate, Size

CROSSOVER = (
    "Decoders alone: pixels a second from JPEG files in the page cache to tensors on the device, reading "
    "and copying included. Solid lines: decoders on the GPU, with all cores to help. Dashed: the best CPU "
    "decoder on so many cores. Where a solid line passes a dashed one, the GPU begins to pay. Points are "
    "medians over the passes, bars reach from the slowest to the fastest."
)
DECODING = (
    "The same decoders on all cores. Above: what larger calls bring. Below: what is lost when the files come "
    "from the disk; before each cold pass they were evicted from the page cache, and the kernel was asked "
    "whether they had gone. Points are medians over the passes, bars reach from the slowest to the fastest."
)


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """What the template shows of a sweep; None for an experiment that neither has nor plans one.

    paths: sweeps of all experiments, <experiment>/<decoder>.json. planned: decoders of this one's sweep.
    """
    ours = [path for path in map(Path, paths) if path.parent.name == experiment]
    if not ours and not planned:
        return None
    points, troubles = decoding_tables.read_sweeps(ours)
    there = {path.stem for path in ours}
    return {
        "machines": [
            _machine(rows, f"{experiment}-{i}") for i, rows in enumerate(decoding_tables.machines(points))
        ],
        "troubles": _grouped(troubles),
        "missing": [decoder for decoder in planned if decoder not in there],
    }


def _machine(rows: pd.DataFrame, prefix: str) -> dict:
    """Sentences, pictures and tables of one machine's points."""
    found, pictures = crossover.sizes(rows), []
    sentences = crossover.answer(rows)
    if found:
        caption = f"{CROSSOVER} {say_threads(rows)}".rstrip()
        pictures.append(_picture(decoding_figures.draw_crossover(rows), f"{prefix}-crossover", caption))
    if decoding_figures.has_decoding(rows):
        pictures.append(_picture(decoding_figures.draw_decoding(rows), f"{prefix}-decoding", DECODING))
    counts = sorted({cores for size in found for cores in size.cpu})
    without_gpu = max((cores for size in found for cores in size.strips_cpu), default=None)
    return {
        "title": _title(rows),
        "sentences": sentences,
        "headline": " ".join([sentences[0], *(text for text in sentences[1:] if text.startswith("Strips"))]),
        "pictures": pictures,
        "cores": [wording.plural(cores, "core") for cores in counts],
        "strips_cpu": wording.plural(without_gpu, "core") if without_gpu else None,
        "rows": [_row(size, counts, without_gpu, rows) for size in found],
        "buffers": _buffers(rows),
        "versions": sorted(set(rows["version"].dropna())),
    }


def say_threads(rows: pd.DataFrame) -> str:
    """What `cores` counts, where it may be more than the physical ones; empty where it is not."""
    counts = decoding_tables.measured(rows)[["cores", "physical_cores"]].astype("Int64").drop_duplicates()
    known = counts.dropna().sort_values("cores")
    shared = known[known["physical_cores"] < known["cores"]]
    if len(shared):
        said = wording.listing(f"{cores} are on {own}" for cores, own in shared.itertuples(index=False))
        return f"Cores are hardware threads, of which several share a physical core: {said}."
    if len(known) < len(counts):
        return "Cores are hardware threads; whether two of them share a physical core is not known."
    return ""


def _title(rows: pd.DataFrame) -> str:
    """The machine, its versions and its nodes."""
    first, nodes = rows.iloc[0], decoding_tables.nodes(rows)
    named = wording.listing(nodes)
    on = f"on {named}" if len(nodes) == 1 else f"on {len(nodes)} nodes alike ({named})"
    driver = "" if pd.isna(first["driver"]) else f", driver {first['driver']}"
    return f"{decoding_tables.hardware(rows)}{driver}, torch {first['torch']}, {on}"


def _picture(figure, prefix: str, caption: str) -> dict:
    return {"svg": Markup(style.inline_svg(style.to_svg(figure), prefix, caption)), "caption": caption}


def _row(size: Size, counts: list[int], without_gpu: int | None, rows: pd.DataFrame) -> dict:
    of = rows[rows["dataset"] == size.dataset].iloc[0]
    quality = "" if pd.isna(of["quality"]) else f", quality {of['quality']:.0f}"
    return {
        "size": f"{int(of['width'])} x {int(of['height'])}",
        "source": f"{size.dataset}{quality}, {of['bytes_per_pixel']:.2f} bytes a pixel",
        "cpu": [_rate(size.cpu.get(cores)) for cores in counts],
        "gpu": _rate(size.gpu),
        "worth": crossover.say_worth(size.worth),
        "strips": _rate(size.strips),
        "strips_cpu": [_rate(size.strips_cpu.get(without_gpu))] if without_gpu else [],
    }


def _rate(rate: Rate | None) -> dict:
    """The rate, its range and its decoder as shown."""
    if rate is None:
        return {"median": "-", "range": "", "decoder": ""}
    words = f"{wording.count(rate.low)} to {wording.count(rate.high)}"
    return {"median": wording.count(rate.median), "range": words, "decoder": rate.decoder}


def _buffers(rows: pd.DataFrame) -> list[str]:
    """`dali_gpu 350 MiB`, the most that each decoder's library held beside torch's own memory."""
    most = rows[rows["kind"] != "cpu"].groupby("decoder")["buffers_mib"].max().dropna()
    return [f"{decoder} {mib:,.0f} MiB" for decoder, mib in most.items()]


def _grouped(troubles: pd.DataFrame) -> list[dict]:
    """Troubles with the same sentence together."""
    found = []
    for (status, sentence), same in troubles.groupby(["status", "sentence"], sort=True):
        decoders = wording.listing(dict.fromkeys(same["decoder"]))
        found.append({"status": status, "sentence": sentence, "decoders": decoders})
    return found
