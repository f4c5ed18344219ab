"""What follows from the documents and the configs, as text: file name -> what the golden file holds."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from tests.golden.the_one_place import report, tabulate, tabulate_decoders

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DOCUMENTS, GOLDEN = HERE / "documents", HERE / "held"
PUBLISHED = ROOT / "results/reference"
CONFIGS = ("config", "demo", "own", "h200")
PARTS = ("Snakefile", "rules", "workflow", "gpufeed", "config", "profiles", "slurm", "envs", "containers")
SUBMITTED = ("build_cache", "build_strips", "gate", "measure_cell", "measure_decoder", "tabulate")
ON_THE_PAGE = ("tensor_cache", "inference", "feed", "pipelining")  # drawing more takes too long
SKELETON = {"section", "article", "h1", "h2", "h3", "h4", "table", "figure", "details"}


def with_a_cell(folder: Path) -> dict[str, dict]:
    """Return the documents below a folder that say of which cell they are, by path."""
    found = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in folder.rglob("*.json")}
    return {path: one for path, one in sorted(found.items()) if isinstance(one, dict) and "cell_id" in one}


def ids() -> dict[str, str]:
    """Return the ids of the copied documents, as they say them."""
    lines = [f"{one['cell_id']} {path}" for path, one in with_a_cell(DOCUMENTS).items()]
    return {"ids.txt": "\n".join(lines) + "\n"}


def tables(scratch: Path) -> dict[str, str]:
    """Return the tables of each machine and experiment."""
    made = {}
    for folder in sorted(DOCUMENTS.glob("*/records/*")):
        cells, batches = scratch / "cells.csv", scratch / "batches.csv"
        tabulate(sorted(folder.glob("*/*.json")), cells, batches)
        name = f"{folder.parts[-3]}-{folder.name}"
        made[f"cells-{name}.csv"] = cells.read_text()
        if len(batches.read_text().splitlines()) > 1:
            made[f"batches-{name}.csv"] = batches.read_text()
    for folder in sorted(DOCUMENTS.glob("*/sweeps/*")):
        tabulate_decoders(sorted(folder.glob("*.json")), scratch / "decoders.csv")
        made[f"decoders-{folder.parts[-3]}.csv"] = (scratch / "decoders.csv").read_text()
    return made


class Skeleton(HTMLParser):
    """Notes the parts of a page in their order, without their words."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def handle_starttag(self, tag, attrs):
        if tag in SKELETON:
            known = dict(attrs)
            self.lines.append(" ".join([tag, *(known[key] or "" for key in ("id", "class") if key in known)]))


def page(scratch: Path) -> dict[str, str]:
    """Return the parts of a report on the copied documents in their order."""
    (scratch / "reference").symlink_to(DOCUMENTS)
    plans = {name: {"title": name, "question": "", "cells": [], "repeats": 0} for name in ON_THE_PAGE}
    info = {"experiments": plans, "left_out": [], "command": "snakemake"}
    report(scratch, plans, info, scratch / "report.html")
    parser = Skeleton()
    parser.feed((scratch / "report.html").read_text())
    return {"page.txt": "\n".join(parser.lines) + "\n"}


class Checkout:
    """A copy of the workflow without results, beside a home with images of one's own."""

    def __init__(self, folder: Path):
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, self.folder / part)
        for split in ("train/a", "train/b", "val/a", "val/b"):
            (folder / "home/images" / split).mkdir(parents=True)
            (folder / "home/images" / split / "0.jpg").touch()
        self.environment = {**os.environ, "HOME": str(folder / "home"), "PYTHONPATH": str(self.folder)}

    def says(self, *command: str, **environment: str) -> str:
        """Return what a command of Python's modules prints here."""
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout + done.stderr

    def plan(self, config: str) -> dict[str, str]:
        """Return counts of jobs, what is asked for in its order, and every job with its resources."""
        said = self.says("snakemake", "-n", "--cores", "64", "--configfile", f"config/{config}.yaml")
        counts = said.rpartition("Job stats:\n")[2].partition("\n\n")[0]
        jobs = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):\n((?:    .*\n)+)", said, re.MULTILINE)
        assert jobs, said[-3000:]
        wanted, lines = [], set()
        for rule, body in jobs:
            told = dict(re.findall(r"^    (\w+): (.*)$", body, re.MULTILINE))
            if rule == "all":
                wanted = told["input"].split(", ")
            asks = re.sub(r"tmpdir=[^,]*(, )?", "", told.get("resources", ""))
            lines.add(
                f"{rule}: {told.get('output', '')} | threads {told.get('threads', 1)} | {asks}".rstrip()
            )
        numbers = sorted(re.findall(r"^(\w+) +(\d+)$", counts, re.MULTILINE))
        text = "\n".join([*(f"{rule} {n}" for rule, n in numbers), "", *wanted, "", *sorted(lines)])
        return {f"plan-{config}.txt": text + "\n"}

    def lines(self) -> dict[str, str]:
        """Return the lines for Slurm of a handful of rules of a shipped config."""
        command = ("gpufeed.preflight", "--configfile", "config/h200.yaml", "--site", "pace-ice")
        said = self.says(*command, SBATCH_ACCOUNT="coc")
        found = re.findall(r"^(\w+) \(\d+ jobs?\)\n  (sbatch .*)$", said, re.MULTILINE)
        return {
            "sbatch-h200.txt": "".join(f"{rule}\n  {line}\n" for rule, line in found if rule in SUBMITTED)
        }
