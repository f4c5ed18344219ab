"""The report: one HTML file that opens without a network, the answer first."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from markupsafe import Markup, escape

from gpufeed.advice import paste
from gpufeed.core.config import ROOT
from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.report import (
    claims,
    downloads,
    figures,
    find_results,
    load_records,
    style,
    tables,
    verdicts,
    wording,
)
from gpufeed.report.sections import (
    advice,
    builds,
    ceilings,
    ceilings_verdict,
    confusion,
    cores,
    decoding,
    equivalence,
    impact,
    inference,
    kernels,
    leaderboard,
    learning,
    phases,
    provenance,
    roofline,
    run_lengths,
    scaling,
    side_by_side,
    timeline,
    tunings,
)

SCRIPTS = ("wide.js", "board.js")
SAYING = (wording.count, wording.hundredths, wording.percent, wording.points, wording.ratio)  # filters
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
DOCS = {  # what a page of the checkout links to: page below docs -> what it is called
    "reference/report.md": "How to read this page",
    "reference/ceilings.md": "AU and limits",
    "reference/statistics.md": "When one counts as faster",
    "results.md": "All published results",
}


def page(found: find_results.Found, plan_info: Mapping, folder: str | Path = "") -> str:
    """Return the whole report as HTML.

    folder: where it will lie, for links to the docs. found: the results to show.
    plan_info: {"experiments": {name: {"title", "question", "repeats", "cells"
    and, where there are any, "loaders" (cell -> its loader), "cores" (most that a cell wants), "sweep"
    (decoders), "kernels" ({"lines": [...]}), "models" (cells), "impact",
    "inference" and "ceilings" (cells), "side_by_side" (block -> its cell), "builds"
    (<decoder>-<cores>) and "gates" (<dataset>/<loader>/<settings>)}},
    "left_out": [{"experiment", "sentence", "combinations"}], "command": str (see `command`), and, where there
    are any, "folders" (dataset -> the user's own folder of its images, for the code to paste)}.
    """
    table = load_records.read_records(found.paths)
    steps, damaged_steps = load_records.read_steps(found.steps_paths)
    cells = tables.cells(table, steps)
    names = _shown_experiments(found, plan_info, table)
    limits = ceilings.measured(found.ceilings, names)
    everything = pd.concat([part for part in (table, limits) if len(part)] or [table])
    finished, alone = everything["finished_at"].dropna(), found.ceilings_alone
    folders = _class_folders(plan_info.get("folders", {}), everything["dataset"])
    environment = style.templates()
    environment.filters |= {say.__name__: say for say in (breakable, unbroken, *SAYING)}
    return environment.get_template("report.html.j2").render(
        policy=POLICY,
        css=style.part("report.css"),
        title=title([plan_info["experiments"][name]["title"] for name in names], everything),
        docs=docs(folder),
        scripts=[style.part(name) for name in SCRIPTS],
        reference=found.reference,
        machines=provenance.machine_rows(everything),
        counts=_counts(limits if alone else table) | {"ceilings": int((limits["status"] == "done").sum())},
        alone=alone,
        gates=equivalence.rows(found.gates, everything),
        datasets=provenance.dataset_rows(table),
        sections=[_section(name, plan_info, found, table, cells, steps, folders) for name in names],
        words_of_ceilings=ceilings_verdict.definitions() if found.ceilings else {},
        damaged_steps=damaged_steps,
        stale=[str(path) for path in found.stale],
        newest=wording.minute(finished.max()) if len(finished) else "",
    )


def title(experiments: list[str], table: pd.DataFrame) -> str:
    """Return what the page is about, and the machines that it was measured on."""
    machines = table["hardware"].dropna().unique().tolist()
    on = f" ({wording.listing(machines)})" if machines else ""
    return (wording.listing(experiments) if len(experiments) < 4 else f"{len(experiments)} experiments") + on


def docs(folder: str | Path) -> list[tuple[str, str]]:
    """Return (name, address) of DOCS, seen from a folder of the checkout; nothing from elsewhere."""
    if not (folder and Path(folder).resolve().is_relative_to(ROOT) and (ROOT / "docs").is_dir()):
        return []
    up = Path(os.path.relpath(ROOT / "docs", Path(folder).resolve())).as_posix()
    return [(name, f"{up}/{page}") for page, name in DOCS.items()]


def breakable(text: str) -> Markup:
    """Allow line breaks in settings such as `augment.brightness=0.2`, after the dot and the sign."""
    return Markup(re.sub(r"(?<=[a-z])\.(?=[a-z])|=", r"\g<0><wbr>", str(escape(text))))


def unbroken(text: str) -> str:
    """Keep `94 %` and `n = 3` each on one line."""
    return re.sub(r"(?<=\d) (?=%)|(?<=\bn) (?==)|(?<=\bn =) ", "\u00a0", text)


def _shown_experiments(found: find_results.Found, plan_info: Mapping, table: pd.DataFrame) -> list[str]:
    """Return the experiments with a result or a gap, in the order of the plan."""
    present = {*table["experiment"], *(part.experiment for part in found.missing)}
    for name in RESULT_KINDS.keys() - {"records", "gates"}:
        present |= {RESULT_KINDS[name].names_in(path)[0] for path in getattr(found, name)}
    return [name for name in plan_info["experiments"] if name in present]


def _counts(table: pd.DataFrame) -> dict[str, int]:
    return {name: int((table["status"] == name).sum()) for name in ("done", "skipped", "failed", "unusable")}


def _class_folders(folders: Mapping[str, str], datasets: Iterable[str]) -> dict[str, str]:
    """Return dataset -> its class folders, for the user's own folders that exist here."""
    ours = folders.keys() & {*datasets}
    return {name: way for name in ours if (way := paste.class_folders(folders[name]))}


def _section(name, plan_info, found, table, cells, steps, folders) -> dict:
    """Return all that the page shows of one experiment. folders: from `_class_folders`."""
    plan = plan_info["experiments"][name]
    ours = cells[cells["experiment"] == name]
    own_records = table[table["experiment"] == name]
    ours = advice.joined(ceilings.joined(ours, found.ceilings, name), found.advice, name)
    lengths_ = run_lengths.section(own_records)
    answers = [answer for answer in verdicts.answers(ours) if answer.compares or not lengths_]
    answers = [*cores.answers(ours), *answers]
    impact_ = impact.section(ours, plan.get("impact"), name)
    changes = bool(impact_ and impact_["machines"])  # what they are worth is the answer where nothing else is
    headlines = [answer for answer in answers if answer.headline and (answer.compares or not changes)]
    said = {
        "name": name,
        "title": plan["title"],
        "question": plan["question"],
        "shared": tables.shared_overrides(ours),
        "advice": advice.section(found.advice, name, ours),
        "headlines": headlines,
        "comparisons": [answer for answer in answers if answer not in headlines],
        "resumed": _resumed(own_records),
        "further": sum(answer.compares and not answer.headline for answer in answers),
        "shared_cores": verdicts.shared_cores(ours),
        "claims": claims.of(name, ours),
        "claimant": claims.CLAIMANTS.get(name, ""),
        "introduced": claims.INTRODUCED.get(name, ""),
        "impact": impact_,
        "cores": cores.section(ours, name),
        "scaling": scaling.section(ours),
        "roofline": roofline.section(found.kernels, ours, own_records),
        "ceilings": ceilings.section(found.ceilings, name, plan.get("ceilings", []), folders),
        "tunings": tunings.section(found.tunings, name),
        "lengths": lengths_,
        "board": leaderboard.board(ours, own_records, folders),
        "downloads": downloads.links(name, ceilings.whole(ours)),
        "phases": phases.section(ours, own_records),
        "pictures": _pictures(name, ours, own_records, steps),
        "batches": _batch_tables(own_records, steps),
        "side_by_side": side_by_side.section(own_records, steps, plan.get("side_by_side", {}), name),
        "not_compared": side_by_side.NOTHING if plan.get("side_by_side") else "",
        "builds": builds.section(found.builds, name, plan.get("builds", [])),
        "kernels": kernels.section(found.kernels, name, plan.get("kernels")),
        "models": confusion.section(found.evaluations, name, plan.get("models", [])),
        "inference": inference.section(found.inferences, name, plan.get("inference", [])),
        "sweep": decoding.section(found.sweeps, name, plan.get("sweep", [])),
        "smaller_batches": provenance.smaller_batches(own_records),
        "troubles": _troubles(own_records),
        "left_out": [left for left in plan_info["left_out"] if left["experiment"] == name],
        "missing": _missing(name, found),
        "unmeasured": "" if found.reference else unmeasured(plan.get("loaders", {}), own_records),
        "command": command(plan_info, name),
    }
    return said | {"figure": _first_figure(said)}


def _first_figure(said: dict) -> dict | None:
    """Remove the figure that stands before the leaderboard from its own part, and return it."""
    parts = (said[kind] or {} for kind in ("cores", "ceilings", "impact", "inference"))
    drawn = [said["pictures"], *(part.get("pictures", []) for part in parts)]
    drawn += [machine["pictures"] for machine in (said["sweep"] or {}).get("machines", [])]
    return next((pictures.pop(0) for pictures in drawn if pictures), None)


def command(plan_info: Mapping, name: str) -> str:
    """Return the command that measures an experiment: its name replaces `{target}`, or follows.

    `{cores}` are as many as its cells have worker processes, so that none has fewer than it was planned with.
    """
    text = plan_info["command"].replace("{cores}", str(plan_info["experiments"][name].get("cores", 8)))
    return text.replace("{target}", name) if "{target}" in text else f"{text} {name}"


CAPTIONS = {
    "throughput": "Images per second of each pipeline. The vertical line is the limit: the same training "
    "with one batch that never has to be loaded, its band the range of the repeats. The gap "
    "between bar and line is lost to loading.",
    "breakdown": "Where a step's time goes. Parts that reach beyond the black tick ran at the same time "
    "as others: that is what overlapping is for.",
    "timeline": timeline.CAPTION,
    "workers": "Throughput against worker processes; a right-hand scale compares it with loading in the "
    "main process. Where the first batch of each epoch has much of the wait, a dotted line with hollow "
    "markers gives the rate without these batches.",
    "learning": "Training loss by epoch and after the last one, and loss and accuracy on held-out images "
    "where they were asked for after each epoch: medians over repeats with their range.",
}


def _pictures(name: str, cells: pd.DataFrame, own_records: pd.DataFrame, steps: pd.DataFrame) -> list[dict]:
    """Return the figures that have something to show."""
    epochs = load_records.read_epochs(own_records)
    drawn = {}
    if len(tables.pipelines(tables.measured(cells))):
        sheets = [figures.throughput(rows) for rows in _headline_first(cells)]
        drawn = {"throughput": sheets, "breakdown": [figures.breakdown(cells)]}
    if two := timeline.best_and_worst(cells, own_records, steps):
        drawn["timeline"] = [timeline.draw(two)]
    if figures.has_sweep(cells):
        drawn["workers"] = [figures.workers(cells)]
    learned = {"learning": learning.draw(cells, epochs)}
    # rates of which none compares with another come after what was learned
    compared = any(map(verdicts.compares, tables.tasks(cells)))
    drawn = drawn | learned if compared else learned | drawn
    found = {"throughput": verdicts.disturbance(cells), "breakdown": verdicts.shared_cores(cells)}
    found["throughput"] += f" {verdicts.other_steps_of(cells)}"
    found["learning"] = learning.difference(cells, epochs)
    pictures = []
    for kind, sheets in drawn.items():
        for number, figure in enumerate(sheets):
            caption = f"{CAPTIONS[kind]} {found.get(kind, '')}".rstrip()
            if number:
                caption = f"The same for other tasks ({number + 1} of {len(sheets)})."
            pictures.append(style.picture(figure, f"{name}-{kind}-{number}", caption))
    return pictures


def _headline_first(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the cells of the headlines' tasks, then the others; all at once if none compares."""
    groups = list(tables.tasks(cells))
    if not any(map(verdicts.compares, groups)):
        return [cells]
    chosen = verdicts.headlines(groups)
    parts = (
        [rows for number, rows in enumerate(groups) if (number in chosen) == ahead] for ahead in (True, False)
    )
    sheets = [pd.concat(part) for part in parts if part]
    return [rows for rows in sheets if len(tables.pipelines(rows))]


def _batch_tables(own_records: pd.DataFrame, steps: pd.DataFrame) -> list[dict]:
    """Return a table of batches for each step-synchronised cell and machine, with its medians."""
    columns, found = list(tables.BATCH_COLUMNS.values()), []
    batches = tables.batches(own_records, steps)
    for _, rows in batches.groupby(tables.IDENTITY, sort=False, dropna=False):
        first, times = rows.iloc[0], rows[columns]
        workers = wording.plural(int(first["workers"]), "worker")
        found.append(
            {
                "title": f"{first['loader']}, {workers}, {first['hardware']}",
                "n": int(first["n_repeats"]),
                "columns": columns,
                "rows": list(zip(rows["batch"], times.to_numpy(), strict=True)),
                "median": times.median().tolist(),
            }
        )
    return found


def _resumed(own_records: pd.DataFrame) -> str:
    """Return a sentence on resumed repeats; empty without any."""
    resumed, done = int(own_records["resumed"].count()), int((own_records["status"] == "done").sum())
    if not resumed:
        return ""
    return (
        f"{resumed} of {wording.plural(done, 'finished repeat')} went on from a checkpoint after a stop: "
        "accuracy and losses count, and the times, which are of several processes, do not."
    )


def _troubles(own_records: pd.DataFrame) -> list[dict]:
    """Return skipped, failed and unusable repeats, those with the same sentence together."""
    bad = own_records[own_records["status"] != "done"]
    rows = []
    for (status, sentence), group in bad.groupby(["status", bad["sentence"].fillna("")], sort=True):
        repeats = [f"{cell}/{repeat}" for cell, repeat in zip(group["cell_id"], group["repeat"], strict=True)]
        rows.append({"status": status, "sentence": sentence or "no reason was recorded", "repeats": repeats})
    return rows


def unmeasured(planned: Mapping[str, str], own_records: pd.DataFrame) -> str:
    """Return how many pipelines, and which loaders, have no finished repeat; empty if all have one.

    planned: cell -> its loader. Where nothing at all is measured, the page says that instead.
    """
    loaders = {cell: loader for cell, loader in planned.items() if not tables.is_ceiling(loader)}
    done = loaders.keys() & {*own_records[own_records["status"] == "done"]["cell_id"]}
    gone = loaders.keys() - done
    if not gone or not done:
        return ""
    said = f"Not measured here: {len(gone)} of {len(loaders)} pipelines of this experiment."
    without = sorted({loaders[cell] for cell in gone} - {loaders[cell] for cell in done})
    if not without:
        return said
    named = [*without[:3], *[wording.plural(len(without) - 3, "more loader")] * (len(without) > 3)]
    return f"{said} Not measured at all: {wording.listing(named)}."


def _missing(name: str, found: find_results.Found) -> dict | None:
    """Return what is missing of an experiment, in short and one by one; None if nothing is."""
    ours = [part for part in found.missing if part.experiment == name]
    return {"told": find_results.in_words(ours), "listed": find_results.listed(ours)} if ours else None
