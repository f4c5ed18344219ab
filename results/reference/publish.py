"""After a change of the report: tables, figures and pages of the published records, made anew from them.

From the checkout: python results/reference/publish.py
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpufeed.analysis import ceilings_section, inference_section, publish, publish_sweeps

H200 = Path("results/reference/h200")
# page -> the config that its command names, its experiments, and the repeats of which all are there
PAGES = {
    "report.html": ("h200", ("gpu_decoding", "tensor_cache", "hybrid_gpu"), 3),
    "report-feed.html": ("h200_more", ("feed",), 1),
    "report-peers.html": ("h200_more", ("peers",), 2),
    "report-accelerated_vit.html": ("h200_more", ("accelerated_vit", "inference"), 2),
    "report-accuracy.html": ("accuracy", ("accuracy",), 3),
}


def parts(tables: Path, figures: Path) -> None:
    """The tables and figures that are there already, each from its documents."""
    for folder in sorted(tables.iterdir()):
        name, drawn = folder.name, figures / folder.name
        if (folder / "cells.csv").exists():
            records = sorted((H200 / "records" / name).glob("*/*.json"))
            publish.tabulate(records, folder / "cells.csv", folder / "batches.csv")
            kinds = ("throughput", "breakdown", "workers", "timeline")
            publish.plot(records, *(drawn / f"{kind}.svg" for kind in kinds))
        if (folder / "ceilings.csv").exists():
            found = sorted((H200 / "ceilings" / name).glob("*.json"))
            ceilings_section.publish(found, folder / "ceilings.csv", drawn / "ceilings.svg")
        if (folder / "decoders.csv").exists():
            found = sorted((H200 / "sweeps" / name).glob("*.json"))
            publish_sweeps.tabulate(found, folder / "decoders.csv")
            publish_sweeps.plot(found, drawn / "crossover.svg", drawn / "decoding.svg")
        if (folder / "inference.csv").exists():
            found = sorted((H200 / "inference" / name).glob("*.json"))
            inference_section.publish(found, folder / "inference.csv", drawn / "inference.svg")


def page(name: str, config: str, experiments: tuple[str, ...], repeats: int) -> None:
    """One page, by the rule that makes it of what is there."""
    run = ",".join(f'"{experiment}"' for experiment in experiments)
    values = [f"run=[{run}]", f"repeats={repeats}", f"results={H200}"]
    words = ["report", "--cores", "1", "--quiet", "all", "--configfile", f"config/{config}.yaml"]
    subprocess.run([sys.executable, "-m", "snakemake", *words, "--config", *values], check=True)
    os.replace(H200 / "report.html", H200 / f"{name}.new")
    shutil.rmtree(H200 / "logs")


if __name__ == "__main__":
    parts(H200 / "tables", H200 / "figures")
    for name, asked in PAGES.items():
        page(name, *asked)
    for name in PAGES:
        os.replace(H200 / f"{name}.new", H200 / name)
