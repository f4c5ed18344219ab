"""The part of the report on models in use: does 8 bit pay, the table and the figure, and what did not run."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from gpufeed.core import record
from gpufeed.core.file_writes import write_whole
from gpufeed.report import style, wording
from gpufeed.report.experiment_documents import documents
from gpufeed.report.sections import inference_figure, inference_verdicts
from gpufeed.report.sections.inference_rows import batches, done, machine, rate, rival, table, title


def section(paths: Iterable[str | Path], experiment: str, planned: Sequence[str]) -> dict | None:
    """What the template shows of an experiment's models in use; None if it neither has nor plans any.

    paths: measurements of all experiments, <experiment>/<cell>.json. planned: ids of the cells whose models
    are to be measured.
    """
    read, troubles = documents(paths, experiment, record.read_inference)
    if not (read or troubles or planned):
        return None
    there = {*read, *(trouble["who"] for trouble in troubles)}
    measurements = list(read.values())
    for found in measurements:
        troubles += troubles_of(found)
    shown = [model(found) for found in measurements if found["status"] == "done"]
    pictures = []
    finished = [found for found in measurements if done(found)]
    for number, found in enumerate(finished):  # a figure each: all in one would not fit a sheet of paper
        svg = style.to_svg(inference_figure.draw([found]))
        caption = f"The same of {title(found)}." if number else inference_figure.CAPTION
        inline = style.inline_svg(svg, f"{experiment}-inference-{number}", caption)
        pictures.append({"svg": Markup(inline), "caption": caption})
    missing = [cell for cell in planned if cell not in there]
    return {"models": shown, "pictures": pictures, "troubles": troubles, "missing": missing}


def troubles_of(found: Mapping) -> list[dict[str, str]]:
    """What stopped a measurement, or its rows; rows with the same sentence together."""
    if found["sentence"]:
        return [{"status": found["status"], "who": title(found), "sentence": found["sentence"]}]
    told: dict[tuple[str, str], list[str]] = {}
    for row in found["rows"]:
        if row["status"] != "done":
            names = told.setdefault((row["status"], row["sentence"]), [])
            names.append(f"{row['backend']} {row['precision']}")
    return [
        {"status": status, "who": f"{title(found)}, {wording.listing(names)}", "sentence": sentence}
        for (status, sentence), names in told.items()
    ]


def model(found: Mapping) -> dict:
    """Sentences and table of one measurement that is done."""
    rows = done(found)
    notes = {row["note"]: None for row in rows.values() if row["note"]}
    settings, images = found["settings"], max((row["images"] for row in rows.values()), default=0)
    return {
        "title": f"{title(found)}; {machine(found)}",
        "headline": inference_verdicts.headline(found),
        "sentences": inference_verdicts.sentences(found),
        "batches": batches(found),
        "how": (
            f"Accuracy: all {images:,} images of split {found['split']}. Latency: single calls, each waited "
            f"for, {settings['calls']} a row at most. Throughput: {settings['rounds']} rounds of about "
            f"{settings['seconds']:g} s, in which the backends take turns; {settings['warmup']} calls before "
            f"each are not counted. Trained in {found['trained']['precision']}."
        ),
        "rows": [line(row, rows, batches(found), list(notes)) for row in rows.values()],
        "notes": list(notes),
    }


def line(row: Mapping, rows: Mapping, sizes: Sequence[int], notes: Sequence[str]) -> dict:
    """One row of the table, in words."""
    eager, times = rival(rows, row["precision"]), row["latency"]["host_ms"]
    device = row["latency"]["device_ms"]
    peaks = [entry["peak_gpu_mib"] for entry in row["setup"] if entry["peak_gpu_mib"] is not None]
    differences = {name: row[f"over_{name}"] for name in ("fp32", "bf16")}
    return {
        "backend": row["backend"],
        "precision": row["precision"],
        "note": notes.index(row["note"]) + 1 if row["note"] else None,
        "layers": f"{row['layers']['layers']} of {row['layers']['of']} layers" if row["layers"] else "",
        "top1": f"{row['top1'] * 100:.2f} %",
        "differences": [
            f"{inference_verdicts.points(value)} to {name}"
            for name, value in differences.items()
            if value is not None
        ],
        "agreement": wording.percent(row["agreement"]),
        "latency": f"{times['median']:.3g}",
        "ends": f"{times['p90']:.3g}, {times['p99']:.3g}",
        "device": f"{device['median']:.3g} on the GPU" if device else "",
        "rates": [cell(row, eager, batch) for batch in sizes],
        "mib": f"{row['bytes'] / 2**20:.1f}",
        "peak": f"{max(peaks):,.0f}" if peaks else "",
    }


def cell(row: Mapping, eager: Mapping | None, batch: int) -> dict[str, str]:
    """Rate, range and factor of a row at one batch."""
    own, other = rate(row, batch), eager and rate(eager, batch)
    return {
        "median": wording.count(own["median"]),
        "range": f"{wording.count(own['min'])} to {wording.count(own['max'])}",
        "factor": wording.ratio(own["median"] / other["median"]) if other else "",
    }


def publish(paths: Iterable[str | Path], out_table: str | Path, out_figure: str | Path) -> None:
    """Writes the table as CSV and the figure as SVG; a figure with nothing to show says so in a sentence."""
    paths = list(paths)
    write_whole(out_table, table(paths).to_csv(index=False, lineterminator="\n"))
    write_whole(
        out_figure, style.to_svg(inference_figure.draw([record.read_inference(path) for path in paths]))
    )
