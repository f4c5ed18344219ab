"""The published results, made anew from their documents: python results/reference/publish.py

From the checkout: archives, tables, the figures that a page of the docs shows, one report,
headline.json, durations.json, and the numbers in README and docs. After a run: --add h200=FOLDER, with what
measure.py collected; its experiments replace those that are there, or join them if all are of one commit.
build/reference has all of it unpacked afterwards. --pages changes nothing in the tree: it makes all reports
there. --numbers: headline.json and the numbers in pages alone.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import headline
import page_numbers
import pandas as pd
import pyarrow.parquet as pq
from pyarrow import compute

from gpufeed.core.packed_results import ENDING, pack, unpacked
from gpufeed.core.run_time_estimate import KINDS, durations
from gpufeed.report import load_records, publish, style, tables, wording
from gpufeed.report.sections import cores

PUBLISHED = Path("results/reference")
BEGUN = PUBLISHED / "begun"  # blocks of what is not all there yet, as they come from the machines
REFERENCE = Path("build/reference")  # as deep, so that links from one are links from the other
CLOCK_MS = 2.0**-12  # CUDA's events tell 0.5 us apart: what is finer is noise, which no archive makes small
ACCURACIES = "accuracy"  # an experiment whose rates do not count, since other work shared its GPUs
# which the tree has, beside the documents, the tables and the figures that a page of the docs shows
KEPT = ("h200/report-photographs.html",)
# page -> the config that its command names, its experiments, and the most repeats of a cell
PAGES = {
    "h200/report.html": ("reference", ("gpu_decoding", "tensor_cache", "hybrid_gpu"), 3),
    "h200/report-feed.html": ("reference", ("feed",), 1),
    "h200/report-peers.html": ("reference", ("peers",), 6),
    "h200/report-accelerated_vit.html": ("reference", ("accelerated_vit", "inference"), 2),
    "h200/report-photographs.html": ("reference", ("photographs",), 6),
    "h200/report-notebook.html": ("notebook", ("notebook",), 6),
    "h200/report-accuracy.html": ("accuracy", ("accuracy",), 3),
    "h100_cuda12/report-notebook.html": ("notebook", ("notebook",), 6),
    "h100_cuda12/report-hybrid_gpu.html": ("reference", ("hybrid_gpu",), 2),
    "h100/report.html": ("reference", ("gpu_decoding", "tensor_cache"), 2),
    "h100/report-accelerated_vit.html": ("reference", ("accelerated_vit",), 2),
    "h100/report-feed.html": ("reference", ("feed",), 1),
}


def parts(node: Path) -> None:
    """The tables and figures of each experiment, from its documents."""
    for found in sorted(node.glob("records/*")):
        if found.name == ACCURACIES:
            continue
        folder, drawn, records = *places(node, found.name), sorted(found.glob("*/*.json"))
        publish.tabulate(records, folder / "cells.csv", folder / "batches.csv")
        kinds = ("throughput", "breakdown", "workers", "timeline")
        publish.plot(records, *(drawn / f"{kind}.svg" for kind in kinds))
        if (table := folder / "side_by_side.csv").exists():
            pair = pd.read_csv(table).drop_duplicates("pipeline").set_index("pipeline")["cell_id"].to_dict()
            both = (drawn / f"side_by_side{kind}.svg" for kind in ("", "_totals"))
            publish.plot_side_by_side(records, pair, table, *both)
    for found in sorted(node.glob("ceilings/*")):
        folder, drawn = places(node, found.name)
        publish.plot_ceilings(sorted(found.glob("*.json")), folder / "ceilings.csv", drawn / "ceilings.svg")
    for found in sorted(node.glob("sweeps/*")):
        (folder, drawn), sweeps = places(node, found.name), sorted(found.glob("*.json"))
        publish.tabulate_sweep(sweeps, folder / "decoders.csv")
        publish.plot_sweep(sweeps, drawn / "crossover.svg", drawn / "decoding.svg")
    for found in sorted(node.glob("inference/*")):
        folder, drawn = places(node, found.name)
        publish.plot_inference(
            sorted(found.glob("*.json")), folder / "inference.csv", drawn / "inference.svg"
        )
    for evaluation in sorted(node.glob("models/*/*/evaluation.json")):
        publish.plot_confusion(evaluation, evaluation.with_name("confusion.svg"))


def places(node: Path, experiment: str) -> tuple[Path, Path]:
    """The folders of an experiment's tables and figures."""
    found = (node / "tables" / experiment, node / "figures" / experiment)
    for folder in found:
        folder.mkdir(parents=True, exist_ok=True)
    return found


def figures_of_photographs(node: Path) -> None:
    """The loaders under one model: on one number of cores, and over the cores."""
    drawn, of_model, chosen = node / "figures/photographs", [], []
    for path in sorted((node / "records/photographs").glob("*/*.json")):
        cell = json.loads(path.read_text())["cell"]
        if cell["model"] == "resnet18" and cell["cuda_graphs"]:
            of_model.append(path)
            chosen += [path] * (cell["cores"] == 16)
    if not chosen:
        sys.exit(f"found no record for the figure of the README below {node}; expected those of its caption")
    cells = tables.cells(load_records.read_records(of_model))
    (drawn / "cores.svg").write_text(style.to_svg(cores.draw(cells)))
    kinds = ("resnet18", "breakdown", "workers", "timeline")
    with tempfile.TemporaryDirectory() as folder:
        publish.plot(chosen, *(Path(folder, f"{kind}.svg") for kind in kinds))
        shutil.copyfile(Path(folder, "resnet18.svg"), drawn / "resnet18.svg")


def page(node: Path, name: str, config: str, experiments: tuple[str, ...], repeats: int) -> None:
    """One page, by the rule that makes it of what is there."""
    own = {experiment: {"repeats": repeats} for experiment in experiments}
    words = ["report", "--cores", "1", "--quiet", "all", "--configfile", f"config/{config}.yaml"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as more:
        json.dump({"run": list(experiments), "results": os.fspath(node), "experiments": own}, more)
        more.flush()
        subprocess.run([sys.executable, "-m", "snakemake", *words, more.name], check=True)
    shown = (node / "report.html").read_text().replace(f" {more.name}", "")  # in the command to measure more
    (node / f"{name}.new").write_text(shown)
    (node / "report.html").unlink()
    shutil.rmtree(node / "logs")


def linked(path: Path, titles: dict[Path, str]) -> str:
    """A page with links to those of the same machine, and of the same experiments on others, if any."""
    asked = {REFERENCE / name: set(experiments) for name, (_, experiments, _) in PAGES.items()}
    lines = []
    for other, title in titles.items():
        if other == path:
            lines.append(f'<li aria-current="page">{title}</li>')
        elif other.parent == path.parent or asked[other] & asked[path]:
            lines.append(f'<li><a href="{os.path.relpath(other, path.parent)}">{title}</a></li>')
    head = '<nav aria-label="Published pages"><details><summary>Other published pages</summary><ul>'
    nav = [head, *lines, "</ul></details></nav>"] if len(lines) > 1 else []
    return path.with_name(f"{path.name}.new").read_text().replace("<!-- pages -->", "\n".join(nav), 1)


def add(node: Path, results: Path) -> None:
    """Results of a run in the place of what is there of their experiments; verdicts beside the others.

    At one and the same commit both are kept, and of a document that both have the new one.
    """
    for kind in sorted(path for path in results.iterdir() if path.name in KINDS):
        for found in sorted(kind.iterdir()):
            there = node / kind.name / found.name
            old, new = commits(there), commits(found)
            together = kind.name == "gate" or set(old.values()) == set(new.values())
            if kind.name != "gate" and old:
                gone = len(old.keys() & new.keys()) if together else len(old)
                print(
                    f"{node.name}: {kind.name}/{found.name}: {gone} documents go, {len(new)} come", flush=True
                )
            if there.is_dir() and not together:
                shutil.rmtree(there)
            if found.is_dir():
                shutil.copytree(found, there, dirs_exist_ok=True)
            else:
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, there)


def commits(found: Path) -> dict[Path, str | None]:
    """The commit of each document of a folder, by its place in it; of a file by itself."""
    paths = sorted(found.rglob("*.json")) if found.is_dir() else [found] * found.is_file()
    told = {path.relative_to(found): json.loads(path.read_text()) for path in paths}
    return {
        place: document.get("environment", {}).get("commit")
        for place, document in told.items()
        if isinstance(document, dict)
    }


def refuse_changed(node: Path) -> None:
    """Exit where a document is not of a commit without changes; older ones, without machine, may not know."""
    wrong = []
    for path in sorted(node.rglob("*.json")):
        found = json.loads(path.read_text())
        made_by = found.get("environment", {}) if isinstance(found, dict) else {}
        if "machine" in made_by and not (made_by["commit"] and made_by["dirty"] is False):
            wrong.append(f"{path} ({wording.commit(made_by['commit'], made_by['dirty'])})")
    if wrong:
        sys.exit(
            f"found {len(wrong)} documents of code that is no commit, the first {wrong[0]}; expected those "
            "of a clean clone: measure them again, and until then keep them out"
        )


def archives(root: Path) -> dict[str, list[Path]]:
    """The documents below a folder of results, by the experiment in whose archive they are."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for kind in KINDS for path in (root / kind).rglob("*") if path.is_file()):
        place = path.relative_to(root)
        name = "gate" if place.parts[0] == "gate" else Path(place.parts[1]).stem
        if path.suffix != ".attempt":
            found.setdefault(name, []).append(path)
    return found


def compact(path: Path) -> None:
    """Write a table of steps so that an archive makes it small: times are whole multiples of CLOCK_MS."""
    file = pq.ParquetFile(path)
    table = rounded = file.read()
    for index, column in enumerate(table.schema):
        if column.name.endswith("_ms"):
            times = compute.multiply(compute.round(compute.divide(table[index], CLOCK_MS)), CLOCK_MS)
            rounded = rounded.set_column(index, column, times)
    groups = file.metadata
    if not groups.num_row_groups:
        return
    if groups.row_group(0).column(0).compression == "UNCOMPRESSED" and rounded.equals(table):
        return
    floats = [column.name for column in table.schema if str(column.type) == "double"]
    others = [name for name in table.column_names if name not in floats]
    options = {"compression": "none", "write_statistics": False}
    pq.write_table(rounded, path, use_dictionary=others, use_byte_stream_split=floats, **options)


def shown(pages: list[str]) -> set[str]:
    """The figures that a page of the docs shows, below the folder of what is published."""
    text = "".join(Path(page).read_text() for page in pages)
    return set(re.findall(rf"{PUBLISHED}/([\w./-]+\.svg)", text))


def in_the_tree(pages: list[str]) -> dict[Path, bytes]:
    """Place in PUBLISHED -> content: archives, tables, pages that are kept, and figures that are shown."""
    found = {}
    for records in sorted(REFERENCE.rglob("records")):
        for name, paths in archives(records.parent).items():
            archive = records.with_name(f"{name}{ENDING}")
            pack(records.parent, paths, archive)
            found[archive] = archive.read_bytes()
            archive.unlink()
    wanted = [REFERENCE / name for name in (*KEPT, *sorted(shown(pages)))]
    for path in [*wanted, *sorted(REFERENCE.glob("*/tables/*/*.csv"))]:
        found[path] = path.read_bytes()
    return {PUBLISHED / path.relative_to(REFERENCE): content for path, content in found.items()}


def make_pages(names: list[str]) -> None:
    for name in names:
        page((REFERENCE / name).parent, Path(name).name, *PAGES[name])
    written = {path: path.with_name(f"{path.name}.new") for path in map(REFERENCE.joinpath, names)}
    titles = {path: re.search("<title>(.*?) · ", new.read_text())[1] for path, new in written.items()}
    for path, new in written.items():
        path.write_text(linked(path, titles))
        new.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--add", action="append", default=[], metavar="NODE=FOLDER")
    parser.add_argument(
        "--pages", action="store_true", help="make all, in build/reference, and change nothing else"
    )
    parser.add_argument("--numbers", action="store_true", help="headline.json and the numbers in pages alone")
    given = parser.parse_args()
    names = [text.partition("=")[0] for text in given.add]
    if len(set(names)) < len(names):
        parser.error(
            f"found {' and '.join(names)}; expected each node once: copy its results into one folder"
        )
    shutil.rmtree(REFERENCE, ignore_errors=True)
    shutil.copytree(unpacked(PUBLISHED), REFERENCE)
    nodes = sorted(path.parent for path in REFERENCE.glob("*/records"))
    for text in given.add:
        name, _, folder = text.partition("=")
        add(REFERENCE / name, Path(folder))
        nodes = sorted({*nodes, REFERENCE / name})
    tracked = subprocess.run(
        ["git", "ls-files", "*.md"], check=True, capture_output=True, text=True
    ).stdout.split()
    if not given.numbers:
        for node in nodes:
            refuse_changed(node)
            for steps in node.glob("records/**/*.parquet"):
                compact(steps)
            parts(node)
        figures_of_photographs(REFERENCE / "h200")
        make_pages(list(PAGES if given.pages else KEPT))
        if given.pages:
            return 0
        made = in_the_tree(tracked)
    claims = headline.claimed(REFERENCE)
    pages = {name: Path(name).read_text() for name in dict.fromkeys(claim.page for claim in claims)}
    written = {name: page_numbers.rendered(name, text, claims) for name, text in pages.items()}
    if not given.numbers:  # nothing in the tree changes before all that may raise
        old = [*PUBLISHED.rglob(f"*{ENDING}"), *PUBLISHED.glob("*/tables/*/*.csv"), *PUBLISHED.rglob("*.svg")]
        for path in {*old, *PUBLISHED.glob("*/*.html")} - made.keys():
            if path.parent != BEGUN:
                path.unlink()
        for path, content in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        first = sorted(
            nodes, key=lambda node: (node.name != "h200", node.name)
        )  # whose seconds are the usual ones
        rows = [f"{json.dumps(key)}: {json.dumps(found)}" for key, found in sorted(durations(first).items())]
        (PUBLISHED / "durations.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    (PUBLISHED / "headline.json").write_text(page_numbers.document(claims))
    for name, text in written.items():
        if text != pages[name]:
            Path(name).write_text(text)
            print(f"{name}: numbers written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
