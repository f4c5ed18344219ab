"""What many cells cost: python tests/bench/scale.py CELLS [--runs N] [--bare] [--execute] [--report]

Prints a line of JSON for the report (--report), or else for each run of Snakemake, with the greedy scheduler,
in a copy of the workflow whose config has so many cells of one repeat:

- dry: `snakemake -n` of the whole report: seconds, those of them on a CPU, and the most memory of it;
- bare (--bare): the same of a Snakefile with one rule and as many jobs, each time right after it;
- execute (--execute): the cells "measured" by jobs that touch their outputs; seconds beyond a dry run over
  cells. No job takes longer than its shell;
- report: the page of as many hand-made records, and the figures of their experiment: CPU seconds, and the
  size of the page.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/fixtures")]

import record_fixtures as made  # noqa: E402
from workflow_fixtures import TINY, Workflow  # noqa: E402

from gpufeed.report import publish  # noqa: E402

LOADERS, AUGMENTS, BATCH_SIZES = ["dataloader_sync", "resident"], ["none", "torch"], list(range(8, 18))
OF_ONE_RATE = len(LOADERS) * len(AUGMENTS) * len(BATCH_SIZES)
TOUCH = 'shell:\n        "mkdir -p data/synthetic/images; touch {output}"'
SCRIPT = re.compile(r'script:\n +"[^"]+"')
BARE = """rule all:
    input: [f"out/{{number}}" for number in range({jobs})]
rule one:
    output: "out/{{number}}"
    shell: "touch {{output}}"
"""


def config(cells: int) -> dict:
    """So many cells, by learning rates; a loader with a batch size has a verdict that its cells wait for."""
    rates = [f"trainer.learning_rate={1 + number}e-5" for number in range(-(-cells // OF_ONE_RATE))]
    block = {"loader": LOADERS, "augment": AUGMENTS, "batch_size": BATCH_SIZES}
    experiment = {
        **TINY["experiments"]["tiny"],
        "common": {"dataset": "synthetic", "model": "simple_cnn"},
        "blocks": {"many": {**block, "overrides": [[rate] for rate in rates]}},
    }
    return {**TINY, "repeats": 1, "experiments": {"tiny": experiment}}


def environment(folder: Path) -> dict[str, str]:
    """That of a user, whose Python keeps the bytecode of what it imports."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}


def timed(command: list[str], folder: Path) -> tuple[dict[str, float], str]:
    """({"seconds", "cpu_s", "peak_mib"}, what it said) of a command that has to succeed."""
    with (folder / "said.txt").open("w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    said = (folder / "said.txt").read_text()
    if status:
        sys.exit(said[-3000:])
    cpu_s, peak_mib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak_mib}, said


def reported(cells: int, folder: Path) -> None:
    """Print what the page and the figures of so many cells cost."""
    rates = [(f"trainer.learning_rate={1 + number}e-5",) for number in range(-(-cells // OF_ONE_RATE))]
    each = itertools.islice(itertools.product(rates, BATCH_SIZES, AUGMENTS, LOADERS), cells)
    ids = []
    for number, (rate, size, augment, loader) in enumerate(each):
        of = made.cell(loader, "tiny", augment=augment, batch_size=size, overrides=rate)
        made.write(folder, made.record(of, 0, 1000.0 + number))
        ids.append(of.id)
    start = time.process_time()
    publish.report(folder, ["tiny"], made.plan_info({"tiny": ids}, 1), folder / "report.html")
    page_s = time.process_time() - start
    publish.plot(sorted(folder.glob("records/*/*/*.json")), *(folder / f"{n}.svg" for n in range(4)))
    size = (folder / "report.html").stat().st_size / 2**20
    plot_s = time.process_time() - start - page_s
    told("report", cells=cells, page_cpu_s=page_s, plot_cpu_s=plot_s, page_mib=size)


def told(what: str, **values: float) -> None:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cells", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--execute", action="store_true")
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufeed-scale-") as name:
        if asked.report:
            return reported(asked.cells, Path(name))
        flow = Workflow(Path(name) / "ours", config(asked.cells))
        command = [*flow.command(), "--scheduler", "greedy"]
        dry_s = 0.0
        timed([*command, "--version"], flow.folder)  # which imports what all runs do
        for _ in range(asked.runs):
            dry, said = timed([*command, "-n"], flow.folder)
            dry_s = dry["seconds"]
            jobs = int(re.findall(r"^total +(\d+)", said, re.MULTILINE)[0])
            cells = int(re.findall(r"^measure_cell +(\d+)", said, re.MULTILINE)[0])
            told("dry", cells=cells, jobs=jobs, **dry)
            if asked.bare:
                bare = Path(name) / "bare"
                bare.mkdir(exist_ok=True)
                (bare / "Snakefile").write_text(BARE.format(jobs=jobs - 1))
                start = [sys.executable, "-m", "snakemake", "--cores", "2", "--scheduler", "greedy", "-n"]
                found, _ = timed(start, bare)
                ratios = {f"ratio_of_{key}": dry[key] / found[key] for key in ("seconds", "cpu_s")}
                told("bare", jobs=jobs, **found, **ratios)
        if asked.execute:
            for rules in (flow.folder / "rules").glob("*.smk"):
                rules.write_text(SCRIPT.sub(lambda _: TOUCH, rules.read_text()))
            run, _ = timed([*command, "--until", "measure_cell"], flow.folder)
            told("execute", cells=cells, **run, ms_a_cell=(run["seconds"] - dry_s) / cells * 1e3)


if __name__ == "__main__":
    main()
