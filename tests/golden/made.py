"""What follows from the documents and the configs, as text: file name -> what the golden file holds."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from gpufeed.core.packed_results import unpacked
from tests.golden import kinds
from tests.golden.the_one_place import report, tabulate, tabulate_sweep

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DOCUMENTS, GOLDEN = HERE / "documents", HERE / "held"
PUBLISHED = unpacked(ROOT / "results/reference")
CONFIGS = ("config", "demo", "own", "reference")
# a part of it; the default resources of the profile, which those of a site replace
PROFILES = {"reference": ("--profile", "slurm", "--config", "run=[gpu_decoding, tensor_cache]")}
PARTS = ("Snakefile", "rules", "workflow", "gpufeed", "config", "profiles", "slurm", "envs", "containers")
SUBMITTED = ("build_cache", "build_strips", "gate", "measure_cell", "measure_decoder", "tabulate")
# What the page shows: place among the results -> copied documents. Those of ceilings and inference name their
# experiment, so they stay in it; the other kinds share one experiment.
ON_THE_PAGE = {
    "records/notebook": "h100_cuda12/records/notebook",
    "builds/notebook": "h200/builds/tensor_cache",
    "sweeps/notebook": "h200/sweeps/gpu_decoding",
    "kernels/notebook.json": "h200/kernels/accelerated_vit.json",
    "records/accuracy": "h200/records/accuracy",
    "ceilings/feed": "h200/ceilings/feed",
    "inference/inference": "h200/inference/inference",
    "gate": "h200/gate",
}
NAMED = 8  # inputs of a job that its line names; of more it has the number and a digest
DERIVED = {"", "tmpdir", "mem", "mem_mib", "disk", "disk_mib"}  # what Snakemake adds to the resources
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
        tabulate_sweep(sorted(folder.glob("*.json")), scratch / "decoders.csv")
        made[f"decoders-{folder.parts[-3]}.csv"] = (scratch / "decoders.csv").read_text()
    return made | kinds.all_of(DOCUMENTS, ROOT / "config/config.yaml")


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
    for place, of in ON_THE_PAGE.items():
        path = scratch / "reference/a_node" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(DOCUMENTS / of)
    names = ("notebook", "accuracy", "feed", "inference")
    plans = {name: {"title": name, "question": "", "cells": ["a"], "repeats": 1} for name in names}
    plans["notebook"] |= {
        "models": ["a"],
        "side_by_side": kinds.pair(DOCUMENTS / ON_THE_PAGE["records/notebook"]),
    }
    info = {"experiments": plans, "left_out": [], "command": "snakemake"}
    report(scratch, plans, info, scratch / "report.html")
    parser = Skeleton()
    parser.feed((scratch / "report.html").read_text())
    return {"page.txt": "\n".join(parser.lines) + "\n"}


def brief(inputs: list[str]) -> str:
    """Return the inputs of a job in their order, or how many there are and a digest of them."""
    text = ", ".join(inputs)
    if len(inputs) <= NAMED:
        return text
    return f"{len(inputs)}: {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def asked(resources: str) -> str:
    """Return what a job asks for, sorted, without DERIVED and what is not known yet."""
    pairs = (pair.partition("=") for pair in sorted(resources.split(", ")))
    return ", ".join(
        f"{name}={value}" for name, _, value in pairs if name not in DERIVED and value != "<TBD>"
    )


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
        command = ("snakemake", "-np", "--cores", "64", "--configfile", f"config/{config}.yaml")
        said = self.says(*command, *PROFILES.get(config, ()))
        counts = said.rpartition("Job stats:\n")[2].partition("\n\n")[0]
        jobs = re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):\n((?:    .*\n)+)", said, re.MULTILINE)
        assert jobs, said[-3000:]
        wanted, lines = [], set()
        for rule, body in jobs:
            told = dict(re.findall(r"^    (\w+): (.*)$", body, re.MULTILINE))
            inputs = told.get("input", "").split(", ")
            if rule == "all":
                wanted = inputs
            fields = (
                told.get("output", ""),
                f"from {brief(inputs)}",
                f"priority {told.get('priority', 0)}",
                f"threads {told.get('threads', 1)}",
                asked(told.get("resources", "")),
            )
            lines.add(f"{rule}: {' | '.join(fields)}".rstrip())
        numbers = sorted(re.findall(r"^(\w+) +(\d+)$", counts, re.MULTILINE))
        text = "\n".join([*(f"{rule} {n}" for rule, n in numbers), "", *wanted, "", *sorted(lines)])
        return {f"plan-{config}.txt": text + "\n"}

    def lines(self) -> dict[str, str]:
        """Return the lines for Slurm of a handful of rules of a shipped config."""
        command = ("gpufeed.preflight", "--configfile", "config/reference.yaml", "--site", "pace-ice")
        said = self.says(*command, SBATCH_ACCOUNT="coc")
        found = re.findall(r"^(\w+) \(\d+ jobs?\)\n  (sbatch .*)$", said, re.MULTILINE)
        return {
            "sbatch-reference.txt": "".join(
                f"{rule}\n  {line}\n" for rule, line in found if rule in SUBMITTED
            )
        }
