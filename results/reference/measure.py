"""Blocks of an experiment on all GPUs of a node at once: measure.py WORK CONFIG EXPERIMENT --only AXES ...

From a clean checkout. CONFIG: as for `snakemake --configfile`, with absolute folders, without `results`, and
with as many repeats as blocks are asked for. Each GPU has a clone of the checkout in WORK and cores of its
own, and measures a block of every --only, one after the other: the most important first, since what is done
stays if time runs out or the run is stopped (Ctrl-C, SIGTERM). What blocks need is made before, once for all:
data, the extension, and the verdicts on the loaders, shared out to the GPUs. Meanwhile the last GPU compiles
what --warm names. Records end up in WORK/results.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[2]
DATA = ("prepare_dataset", "build_cache", "build_scaled_cache", "build_strips", "build_shards", "build_beton")
SHARED = ("gate", "extension")  # folders of results that all clones have in common
Axes = dict[str, list]
STOPPED = threading.Event()  # nothing more begins then
RUNNING: set[subprocess.Popen] = set()


@dataclass(frozen=True)
class Run:
    """What all calls of Snakemake have in common."""

    work: Path
    config: Path
    experiment: str
    dry: bool


@dataclass(frozen=True)
class Place:
    """A clone with a GPU and cores. gpu: as CUDA_VISIBLE_DEVICES has it, empty for none."""

    run: Run
    name: str
    gpu: str
    cores: list[int]

    def make(self) -> None:
        folder = self.run.work / self.name
        subprocess.run(["git", "clone", "--quiet", CHECKOUT, folder], check=True)
        (folder / "results").mkdir(exist_ok=True)
        for name in SHARED:
            common = self.run.work / name
            common.mkdir(exist_ok=True)
            (folder / "results" / name).symlink_to(common)

    def snakemake(self, what: str, only: Axes, block: int, *until: str) -> bool:
        """Run the experiment's cells that have these axes, or what they need up to some rules.

        Return whether all went well; what was said is in a log in WORK.
        """
        if STOPPED.is_set():
            return False
        command = [sys.executable, "-m", "snakemake", self.run.experiment, "--keep-going", "--printshellcmds"]
        command += ["--rerun-triggers", "mtime", *(["--until", *until] if until else [])]
        command += ["--config", f"only={yaml.safe_dump(only, default_flow_style=True, width=10**6).strip()}"]
        command += [f"block={block}", "--configfile", self.run.config, "--cores", str(len(self.cores))]
        command += ["--resources", "gpu=1", *(["--dry-run"] if self.run.dry else [])]
        folder, began = self.run.work / self.name, time.monotonic()
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu, "PYTHONPATH": path_with(folder)}
        with (self.run.work / f"{self.name}.log").open("a") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, which `interrupt` reaches whole
                preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
            )
        RUNNING.add(process)
        if STOPPED.is_set():  # while it began
            interrupt(process)
        code = process.wait()
        RUNNING.discard(process)
        said = "done" if code == 0 else f"failed, see {self.name}.log in {self.run.work}"
        print(f"{self.name}: {what}: {said}, {time.monotonic() - began:.0f} s", flush=True)
        return code == 0


def interrupt(process: subprocess.Popen) -> None:
    """Let a call of Snakemake end with all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)


def stop(*_: object) -> None:
    """End what runs; what was measured is collected then."""
    STOPPED.set()
    for process in list(RUNNING):
        interrupt(process)


def path_with(folder: Path) -> str:
    """The search path for modules with the clone's own package first."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def together(parts: list[Axes]) -> Axes:
    """The axes that all parts have, each with the values of all."""
    common = set.intersection(*(set(part) for part in parts))
    return {axis: list(dict.fromkeys(v for part in parts for v in part[axis])) for axis in sorted(common)}


def shares(values: list, count: int) -> list[list]:
    """The values dealt out to so many."""
    return [values[number::count] for number in range(count)]


def measure(places: list[Place], parts: list[Axes], warm: list[Axes], first: int) -> bool:
    """Everything in its order; whether all of it went well."""
    needed = together(parts)
    everywhere = replace(places[0], cores=[core for place in places for core in place.cores])
    if not everywhere.snakemake("data", needed, first, *DATA, "build_extension"):
        return False
    warming = Place(places[0].run, "warm", places[-1].gpu, places[-1].cores)
    judges = places[:-1] if warm and len(places) > 1 else places
    by_judge = [{**needed, "loader": share} for share in shares(needed.get("loader", []), len(judges))]
    if "loader" not in needed:
        judges, by_judge = judges[:1], [needed]
    with ThreadPoolExecutor() as pool:
        judging = [
            (pool.submit(place.snakemake, "verdicts", share, first, "gate"), share)
            for place, share in zip(judges, by_judge, strict=True)
            if share.get("loader", True)
        ]
        calls = [call for call, _ in judging]
        if warm:
            warming.make()
            calls.append(pool.submit(compiled, warming, warm, judging, first))
        well = [call.result() for call in calls]
    with ThreadPoolExecutor() as pool:
        blocks = pool.map(lambda pair: blocks_of(*pair, parts), enumerate(places, start=first))
        return all([*well, *blocks])


def compiled(place: Place, warm: list[Axes], judging: list[tuple[Future, Axes]], block: int) -> bool:
    """Measure cells for what they compile, each when nobody makes the verdict that it waits for any more."""
    well = True
    for one in warm:
        for call, share in judging:
            if not {"loader"} <= share.keys() & one.keys() or set(share["loader"]) & set(one["loader"]):
                call.result()
        well &= place.snakemake("compile", one, block, "measure_cell")
    return well


def blocks_of(number: int, place: Place, parts: list[Axes]) -> bool:
    """One block of each part; what follows one that failed is measured all the same."""
    done = [place.snakemake(f"block {number} of {part}", part, number, "measure_cell") for part in parts]
    return all(done)


def collect(places: list[Place]) -> None:
    """Records and verdicts of all clones in one folder."""
    work = places[0].run.work
    for source in [work / place.name / "results/records" for place in places]:
        if source.exists():
            shutil.copytree(source, work / "results/records", dirs_exist_ok=True)
    shutil.copytree(work / "gate", work / "results/gate", dirs_exist_ok=True)


def axes(text: str) -> Axes:
    found = yaml.safe_load(text)
    if not isinstance(found, dict) or not all(isinstance(values, list) for values in found.values()):
        raise argparse.ArgumentTypeError(f"found {text}; expected axes with values: {{model: [resnet50]}}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="a folder that is made")
    parser.add_argument("config", type=Path)
    parser.add_argument("experiment")
    parser.add_argument("--only", type=axes, action="append", required=True, metavar="AXES")
    parser.add_argument("--warm", type=axes, action="append", default=[], metavar="AXES")
    parser.add_argument("--gpus", nargs="+", default=["0"], help='numbers; "" for none')
    parser.add_argument("--cores", type=int, default=16, help="of each GPU")
    parser.add_argument("--first-block", type=int, default=0)
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    ).stdout
    if changed:
        parser.error(f"found changes in {CHECKOUT}; expected none, since records name a commit: commit them")
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < given.cores * len(given.gpus):
        parser.error(
            f"found {len(allowed)} cores; expected {given.cores} for each of {len(given.gpus)} GPUs: "
            "lower --cores or name fewer GPUs"
        )
    if given.work.exists():
        parser.error(f"found {given.work}; expected a folder that is made, for this run alone: name another")
    if not given.config.is_file():
        parser.error(f"found no file {given.config}; expected one as for --configfile: look at its name")
    given.work.mkdir(parents=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    run = Run(given.work.resolve(), given.config.resolve(), given.experiment, given.dry_run)
    places = [
        Place(run, f"gpu{number}", gpu, allowed[number * given.cores : (number + 1) * given.cores])
        for number, gpu in enumerate(given.gpus)
    ]
    for place in places:
        place.make()
    try:
        well = measure(places, given.only, given.warm, given.first_block)
    finally:
        collect(places)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
