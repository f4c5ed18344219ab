"""After a change of the report: tables, figures and pages of the published records, made anew from them.

From the checkout: python results/reference/publish.py
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from gpufeed.core.errors import GpufeedError
from gpufeed.report import publish

REFERENCE = Path("results/reference")
# page -> the config that its command names, its experiments, and the repeats of which all are there
PAGES = {
    "h200/report.html": ("h200", ("gpu_decoding", "tensor_cache", "hybrid_gpu"), 3),
    "h200/report-feed.html": ("h200_more", ("feed",), 1),
    "h200/report-peers.html": ("h200_more", ("peers",), 2),
    "h200/report-accelerated_vit.html": ("h200_more", ("accelerated_vit", "inference"), 2),
    "h200/report-photographs.html": ("h200_more", ("photographs",), 4),
    "h200/report-accuracy.html": ("accuracy", ("accuracy",), 3),
    "h100_cuda12/report-notebook.html": ("notebook", ("notebook",), 6),
    "h100_cuda12/report-hybrid_gpu.html": ("h200", ("hybrid_gpu",), 2),
    "h100/report.html": ("h200", ("gpu_decoding", "tensor_cache"), 2),
    "h100/report-accelerated_vit.html": ("h200_more", ("accelerated_vit",), 2),
    "h100/report-feed.html": ("h200_more", ("feed",), 1),
    "h100/report-peers.html": ("h200_more", ("peers",), 2),
    "h100/report-photographs.html": ("h200_more", ("photographs",), 3),
}


def parts(node: Path) -> None:
    """The tables and figures that are there already, each from its documents."""
    for folder in sorted((node / "tables").iterdir()):
        name, drawn = folder.name, node / "figures" / folder.name
        if (folder / "cells.csv").exists():
            records = sorted((node / "records" / name).glob("*/*.json"))
            publish.tabulate(records, folder / "cells.csv", folder / "batches.csv")
            kinds = ("throughput", "breakdown", "workers", "timeline")
            publish.plot(records, *(drawn / f"{kind}.svg" for kind in kinds))
        if (table := folder / "side_by_side.csv").exists():
            pair = pd.read_csv(table).drop_duplicates("pipeline").set_index("pipeline")["cell_id"].to_dict()
            both = (drawn / f"side_by_side{kind}.svg" for kind in ("", "_totals"))
            publish.plot_side_by_side(sorted((node / "records" / name).glob("*/*.json")), pair, table, *both)
        if (folder / "ceilings.csv").exists():
            found = sorted((node / "ceilings" / name).glob("*.json"))
            publish.plot_ceilings(found, folder / "ceilings.csv", drawn / "ceilings.svg")
        if (folder / "decoders.csv").exists():
            found = sorted((node / "sweeps" / name).glob("*.json"))
            publish.tabulate_sweep(found, folder / "decoders.csv")
            publish.plot_sweep(found, drawn / "crossover.svg", drawn / "decoding.svg")
        if (folder / "inference.csv").exists():
            found = sorted((node / "inference" / name).glob("*.json"))
            publish.plot_inference(found, folder / "inference.csv", drawn / "inference.svg")
    for evaluation in sorted(node.glob("models/*/*/evaluation.json")):
        publish.plot_confusion(evaluation, evaluation.with_name("confusion.svg"))


def figure_of_the_readme(node: Path) -> None:
    """All loaders under one model on one number of cores, as one panel."""
    drawn, chosen = node / "figures/photographs", []
    for path in sorted((node / "records/photographs").glob("*/*.json")):
        cell = json.loads(path.read_text())["cell"]
        if (cell["model"], cell["cores"]) == ("resnet18", 16) and cell["cuda_graphs"]:
            chosen.append(path)
    if not chosen:
        sys.exit(f"found no record for the figure of the README below {node}; expected those of its caption")
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
    """A page with links to those of the same machine, and of the same experiments on other machines."""
    asked = {REFERENCE / name: set(experiments) for name, (_, experiments, _) in PAGES.items()}
    lines = []
    for other, title in titles.items():
        if other == path:
            lines.append(f'<li aria-current="page">{title}</li>')
        elif other.parent == path.parent or asked[other] & asked[path]:
            lines.append(f'<li><a href="{os.path.relpath(other, path.parent)}">{title}</a></li>')
    head = '<nav aria-label="Published pages"><details><summary>Other published pages</summary><ul>'
    nav = [head, *lines, "</ul></details></nav>"]
    return path.with_name(f"{path.name}.new").read_text().replace("<!-- pages -->", "\n".join(nav), 1)


if __name__ == "__main__":
    paths = {REFERENCE / name: asked for name, asked in PAGES.items()}
    nodes = dict.fromkeys(path.parent for path in paths)
    for node in nodes:
        try:
            publish.refuse_changed(node)
        except GpufeedError as error:
            sys.exit(str(error))
    for node in nodes:
        parts(node)
    figure_of_the_readme(REFERENCE / "h100")
    for path, asked in paths.items():
        page(path.parent, path.name, *asked)
    written = {path: path.with_name(f"{path.name}.new") for path in paths}
    titles = {path: re.search("<title>(.*?) · ", new.read_text())[1] for path, new in written.items()}
    for path, new in written.items():
        path.write_text(linked(path, titles))
        new.unlink()
