"""The next blocks of the reference run: measure.py WORK --tag TAG --minutes 25 --done DONE

config/reference.yaml lists comparisons, the most important first. A block is one repeat of all cells of a
comparison, or one document of another kind. Each GPU has a clone of TAG in WORK and cores of its own, and
takes the most important block that is not done and fits into the time that is left. What blocks need is
made before, once for all: data, the extension, and, shared out to the GPUs, verdicts on loaders and models.
A block is copied to WORK/results when all of it is there, so a run that is stopped leaves no part of one.
The plan is the tag's, too: what begins here goes on as the clone's measure.py.

DONE is what earlier machines with the same model of card brought back: copy WORK/results over it. Its
documents of this commit are not measured again, but for blocks of which a machine skipped some: these come
last, since another may have what they need. --list measures nothing: it prints the blocks and their
minutes, and which ones time does not allow. --verdicts makes the verdicts of all blocks and measures nothing.
They are not timed, so four at once share each GPU.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpufeed.core import plan_ceilings, plan_decoding
from gpufeed.core.cell_matrix import Plan
from gpufeed.core.config import merged_config, planned
from gpufeed.core.config_schema import read_yaml
from gpufeed.core.errors import require_known
from gpufeed.core.plan_builds import planned_builds
from gpufeed.core.result_kinds import RESULT_KINDS
from gpufeed.core.run_part import matching
from gpufeed.core.run_time_estimate import measured_seconds, usual_seconds
from gpufeed.system.gpu_locks import file_locks
from gpufeed.workflow.gates import Gates
from gpufeed.workflow.run import Run

CHECKOUT = Path(__file__).resolve().parents[2]
# rules whose jobs measure, judge or train: the rest makes what they read
MEASURING = (
    "gate",
    "measure_cell",
    "measure_ceilings",
    "measure_decoder",
    "measure_build",
    "measure_kernel",
    "train_model",
)
SHARED = ("gate", "extension", "models")  # folders of results that all clones have in common
STOPPED = threading.Event()  # nothing more begins then
RUNNING: set[subprocess.Popen] = set()
PATIENCE_S = 60  # for what is stopped to end by itself
JUDGES = 4  # verdicts at once on a GPU
GAIN = 2.4  # times as fast: 47 on an H200 with 16 cores took 388 s, by published times 953 s one by one


@dataclass(frozen=True)
class Block:
    """What is measured together. documents, verdicts, models: paths below the folder of results."""

    name: str
    minutes: float
    documents: tuple[str, ...]
    verdicts: tuple[str, ...] = ()
    models: tuple[str, ...] = ()  # trained, exported and quantised before


def read_config(checkout: Path, *names: str) -> dict[str, Any]:
    """Return config.yaml with other configs, paths below `config` or absolute ones, merged over it."""
    folder, config = checkout / "config", {}
    for name in ("config.yaml", *names):
        config = merged_config(config, read_yaml((folder / name).read_text(), str(name)))
    return config


def listed(config: dict[str, Any]) -> list[Block]:
    """Return all blocks of a config with `reference`, the most important first."""
    plan = planned(config)
    gates = Gates(Run(config, plan))
    found = [block for part in config["reference"] for block in blocks_of(part, config, plan, gates)]
    return list({block.documents: block for block in found}.values())


def blocks_of(part: Mapping, config: dict[str, Any], plan: Plan, gates: Gates) -> list[Block]:
    """Return the blocks of one comparison."""
    experiment, kind = part["experiment"], part.get("results", "records")
    require_known("experiment", experiment, plan.cells, "reference")
    chosen = plan.cells[experiment]
    if "blocks" in part:
        for name in part["blocks"]:
            require_known("block", name, plan.blocks[experiment], f"reference, {experiment}")
        named = {cell for name in part["blocks"] for cell in plan.blocks[experiment][name]}
        chosen = {cell: chosen[cell] for cell in chosen if cell in named}
    chosen = matching(chosen, part.get("only", {}))
    axes = (f"{axis} {value}" for axis, value in part.get("only", {}).items())
    few = part.get("blocks", []) if len(part.get("blocks", [])) < 3 else []
    said = " ".join([experiment, *few, *axes])
    place = RESULT_KINDS[kind].place
    if kind == "records":
        cells = [list(chosen)] * part["n"]
        units = [[f"{cell}/{number}" for cell in chosen] for number in range(part["n"])]
        names = [f"{said}: block {number}" for number in range(part["n"])]
    else:
        of_kind = units_of(kind, experiment, config, plan)
        units = [[unit] for unit in of_kind if unit in chosen or unit not in plan.cells[experiment]]
        names = [f"{said}: {unit or kind}" for (unit,) in units]
        cells = [[unit] if unit in chosen else [] for (unit,) in units]
    documents = [
        tuple(place.format(experiment=experiment, unit=unit) for unit in together) for together in units
    ]
    verdicts = [gates.names(experiment, ours) if ours else [] for ours in cells]
    judged = [tuple(f"gate/{verdict}.json" for verdict in each) for each in verdicts]
    lasts = [part["minutes"]] * len(names)
    if kind != "records":  # half as long again as the published document, whose machine may have been faster
        known = [measured_seconds(Path(path), os.devnull) for (path,) in documents]
        known = [seconds / 60 if seconds else part["minutes"] for seconds in known]
        lasts = [min(max(one, part["minutes"]), 1.5 * one) for one in known]
    models = [tuple(f"models/{experiment}/{unit}/quantised.json" for unit in each) for each in units]
    models = models if kind == "inferences" else [()] * len(names)
    return [Block(*each) for each in zip(names, lasts, documents, judged, models, strict=True)]


def units_of(kind: str, experiment: str, config: dict[str, Any], plan: Plan) -> list[str]:
    """Return what tells the documents of a kind and an experiment apart."""
    if kind == "ceilings":
        return plan_ceilings.cells(config, plan, experiment)
    if kind == "sweeps":
        return (plan_decoding.settings(config, experiment) or {"decoders": []})["decoders"]
    if kind == "builds":
        builds = planned_builds(config, experiment)
        return [f"{decoder}-{cores}" for decoder, cores in builds.runs] if builds else []
    return plan.cells_for(config, experiment, "inference") if kind == "inferences" else [""]


def status_of(path: Path, commit: str) -> str | None:
    """Return the status of a document of this commit without changes; None if there is none."""
    try:
        found = json.loads(path.read_text())
        made_by = found["environment"]
        return found["status"] if (made_by["commit"], made_by["dirty"]) == (commit, False) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def passed(path: Path, commit: str) -> bool:
    """Return whether a verdict of this commit need not be made again."""
    return status_of(path, commit) == "passed"


def to_do(blocks: Iterable[Block], done: Iterable[Path], commit: str) -> list[Block]:
    """Return the blocks of which some document is in none of the folders; last those that a node skipped."""
    done = list(done)

    def measured(block: Block, *but: str) -> bool:
        found = ({status_of(folder / path, commit) for folder in done} for path in block.documents)
        return all(statuses - {None, *but} for statuses in found)

    return sorted((block for block in blocks if not measured(block, "skipped")), key=measured)


def seconds_of(document: str) -> float:
    """Return the seconds that a document takes, by published ones of its kind."""
    return measured_seconds(Path(document), os.devnull) or usual_seconds(Path(document))


def fitting(blocks: Iterable[Block], minutes: float, gpus: int, judged: set[str]) -> list[Block]:
    """Return the blocks that so many GPUs measure in so many minutes, with what they need, by importance."""
    free, known, chosen = [minutes] * gpus, set(judged), []
    for block in blocks:
        needed = {*block.verdicts, *block.models} - known
        judging = sum(seconds_of(path) for path in needed & {*block.verdicts}) / GAIN
        making = (judging + sum(seconds_of(path) for path in needed & {*block.models})) / 60 / gpus
        left = [each - making for each in free]
        place = max(range(gpus), key=left.__getitem__)
        if left[place] >= block.minutes:
            left[place] -= block.minutes
            free, known = left, known | needed
            chosen.append(block)
    return chosen


@dataclass(frozen=True)
class Place:
    """A clone with a GPU and cores. gpu: as CUDA_VISIBLE_DEVICES has it, empty for none."""

    work: Path
    name: str
    gpu: str
    cores: list[int]
    configs: list[Path]
    archives: Path

    def make(self, source: Path, tag: str) -> None:
        folder = self.work / self.name
        quiet = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--branch", tag]
        subprocess.run([*quiet, source, folder], check=True)
        (folder / "results").mkdir(exist_ok=True)
        for name in SHARED:
            (self.work / name).mkdir(exist_ok=True)
            (folder / "results" / name).symlink_to(self.work / name)

    def snakemake(
        self,
        what: str,
        documents: Iterable[str],
        *omit: str,
        cores: list[int] | None = None,
        shares: bool = False,
        crowd: bool = False,
    ) -> bool:
        """Make these documents, or what they need without the jobs of some rules.

        shares: whether other places use the GPU at once. crowd: whether four large jobs share the cores, for
        most take longer to start than to work. Return whether all went well; what was said is in a log in
        WORK.
        """
        documents, cores = [f"results/{path}" for path in documents], cores or self.cores
        if STOPPED.is_set():
            return False
        if not documents:
            return True
        command = [sys.executable, "-m", "snakemake", *documents, "--keep-going", "--printshellcmds"]
        command += ["--rerun-triggers", "mtime", *(["--omit-from", *omit] if omit else [])]
        command += ["--config", f"data={self.work / 'data'}", f"archives=[{self.archives}]"]
        command += ["--configfile", *self.configs, "--resources", "gpu=1"]
        command += ["--cores", len(cores) * (2 if crowd else 1)]
        command += ["--max-threads", max(1, len(cores) // 2)] if crowd else []
        folder, began = self.work / self.name, time.monotonic()
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": self.gpu, "PYTHONPATH": path_with(folder)}
        if shares:
            environment[file_locks.VARIABLE] = str(self.work / f"{self.name}.locks")
        os.sched_setaffinity(0, cores)  # of this thread, whose processes have it, too
        with (self.work / f"{self.name}.log").open("a") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, which `interrupt` reaches whole
            )
        RUNNING.add(process)
        if STOPPED.is_set():  # while it began
            interrupt(process)
        code = process.wait()
        RUNNING.discard(process)
        said = "done" if code == 0 else f"failed, see {self.name}.log in {self.work}"
        print(f"{self.name}: {what}: {said}, {time.monotonic() - began:.0f} s", flush=True)
        return code == 0


def interrupt(process: subprocess.Popen) -> None:
    """Let a call of Snakemake end with all that it has started, by force if it takes longer than a minute."""
    tell(process, signal.SIGINT)
    last = threading.Timer(PATIENCE_S, tell, (process, signal.SIGKILL))
    last.daemon = True
    last.start()


def tell(process: subprocess.Popen, number: int) -> None:
    """Send a signal to a process and all of its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, number)


def stop(*_: object) -> None:
    """End what runs; whole blocks are kept."""
    STOPPED.set()
    for process in list(RUNNING):
        interrupt(process)


def path_with(folder: Path) -> str:
    """Return the search path for modules with the clone's own package first."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def measure(
    places: list[Place],
    judges: list[Place],
    blocks: list[Block],
    done: list[Path],
    commit: str,
    ends: float,
    judge: bool,
) -> bool:
    """Make what blocks need, then the blocks, each where a GPU is free; return whether all went well.

    judges: the places, and more that share their GPUs, for verdicts. ends: when a block must be over, by the
    monotonic clock. judge: whether to stop after the verdicts.
    """
    everywhere = [core for place in places for core in place.cores]
    documents = [path for block in blocks for path in block.documents]
    ready = places[0].snakemake("data", documents, *MEASURING, cores=everywhere, crowd=True)
    verdicts = dict.fromkeys(path for block in blocks for path in block.verdicts)
    for path in verdicts:  # newer than the data, as Snakemake wants it
        judged = next((folder / path for folder in done if passed(folder / path, commit)), None)
        if judged:
            (places[0].work / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(judged, places[0].work / path)
    open_ones = [path for path in verdicts if not passed(places[0].work / path, commit)]
    waiting, lock = [] if judge else list(blocks), threading.Lock()

    def shared_out(what: str, paths: list[str], among: list[Place]) -> list[bool]:
        parts = [paths[number :: len(among)] for number in range(len(among))]
        shares = len(among) > len(places)

        def make(place: Place, part: list[str]) -> bool:
            return place.snakemake(what, part, shares=shares)

        with ThreadPoolExecutor() as pool:
            return list(pool.map(make, among, parts))

    def next_block() -> Block | None:
        with lock:
            left = (ends - time.monotonic()) / 60
            block = next((block for block in waiting if block.minutes <= left), None)
            if block:
                waiting.remove(block)
            return block

    def blocks_on(place: Place) -> bool:
        well = True
        while not STOPPED.is_set() and (block := next_block()):
            well &= place.snakemake(block.name, block.documents)
            if not kept(place, block):
                print(f"{place.name}: {block.name}: not whole, and not kept", flush=True)
                well = False
        return well

    well = shared_out("verdicts", open_ones, judges)
    keep_verdicts(places[0].work, commit)
    well += shared_out("models", [path for block in waiting for path in block.models], places)
    with ThreadPoolExecutor() as pool:
        well += pool.map(blocks_on, places)
    for block in waiting:
        print(f"not begun: {block.name}", flush=True)
    return ready and all(well) and not waiting


def kept(place: Place, block: Block) -> bool:
    """Copy the documents of a block to WORK/results if all are there; return whether they are."""
    results, work = place.work / place.name / "results", place.work / "results"
    if not all((results / path).is_file() for path in block.documents):
        return False
    for document in block.documents:
        path, there = results / document, (work / document).parent
        there.mkdir(parents=True, exist_ok=True)
        for each in path.parent.glob(f"{path.stem}.*"):  # the table of steps, too
            shutil.copyfile(each, there / each.name)
        found = json.loads(path.read_text())
        if found["status"] in ("failed", "skipped"):
            print(f"{found['status']}: {document}: {found['sentence']}", flush=True)
    return True


def keep_verdicts(work: Path, commit: str) -> None:
    """Copy the verdicts that passed to WORK/results."""
    for path in sorted(work.glob("gate/**/*.json")):
        if passed(path, commit):
            there = work / "results" / path.relative_to(work)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there)


def told(blocks: list[Block], chosen: list[Block], all_n: int) -> str:
    """Return the blocks that are to be done, a line each, and whether this run has time for them."""
    lines = [
        f"{'now  ' if block in chosen else 'later'} {block.minutes:4.1f} min  {block.name}"
        for block in blocks
    ]
    minutes = sum(block.minutes for block in blocks)
    return "\n".join([*lines, f"{all_n - len(blocks)} of {all_n} blocks done, {minutes:.0f} minutes left"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="a folder that is made")
    parser.add_argument("--tag", required=True, help="what is measured, whatever was committed since")
    parser.add_argument("--source", type=Path, default=CHECKOUT, help="a repository or a bundle that has it")
    parser.add_argument("--archives", type=Path, default=CHECKOUT / "archives", help="of data, as downloaded")
    parser.add_argument("--minutes", type=float, required=True, help="from now on; what runs then is stopped")
    parser.add_argument("--done", type=Path, nargs="*", default=[], help="results of earlier machines")
    parser.add_argument(
        "--config", type=Path, nargs="*", default=[], help="more of them, over reference.yaml"
    )
    parser.add_argument("--gpus", nargs="+", default=["0"], help='numbers; "" for none')
    parser.add_argument("--cores", type=int, default=16, help="for each of --gpus")
    parser.add_argument(
        "--verdicts", action="store_true", help="make those of all blocks, and measure nothing"
    )
    parser.add_argument("--list", action="store_true", help="print the blocks and measure nothing")
    given = parser.parse_args()
    ends = time.monotonic() + 60 * given.minutes
    named = [gpu for gpu in given.gpus if gpu]
    if len(set(named)) < len(named):
        parser.error("found a GPU twice in --gpus; expected each once")
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < given.cores * len(given.gpus) and not given.list:
        parser.error(
            f"found {len(allowed)} cores; expected {given.cores} for each of {len(given.gpus)} GPUs: "
            "lower --cores or name fewer GPUs"
        )
    work, configs = given.work.resolve(), [path.resolve() for path in given.config]
    clone = work / "gpu0"
    if work.exists() and clone != CHECKOUT:
        parser.error(f"found {given.work}; expected a folder that is made, for this run alone: name another")
    if lost := [path for path in (*given.config, *given.done) if not path.exists()]:
        parser.error(f"found no {lost[0]}; expected a config, or a folder of results: look at its name")
    places = [
        Place(
            work,
            f"gpu{number}",
            gpu,
            allowed[number * given.cores : (number + 1) * given.cores],
            [work / f"gpu{number}/config/reference.yaml", *configs],
            given.archives.resolve(),
        )
        for number, gpu in enumerate(given.gpus)
    ]
    if clone != CHECKOUT:
        work.mkdir(parents=True)
        try:
            places[0].make(given.source.resolve(), given.tag)
        except subprocess.CalledProcessError:
            shutil.rmtree(work)
            parser.error(f"found no tag {given.tag} in {given.source}; expected one: git tag {given.tag}")
        same = ["--source", given.source.resolve(), "--archives", given.archives.resolve()]
        same += ["--minutes", (ends - time.monotonic()) / 60]
        command = [sys.executable, clone / Path(__file__).relative_to(CHECKOUT), *sys.argv[1:], *same]
        os.execve(sys.executable, list(map(str, command)), os.environ | {"PYTHONPATH": path_with(clone)})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True)
    commit = head.stdout.strip()
    blocks = listed(read_config(clone, "reference.yaml", *map(str, configs)))
    left = to_do(blocks, given.done, commit)

    def affordable() -> list[Block]:
        verdicts = {path for block in left for path in block.verdicts}
        folders = [*given.done, work]
        judged = {path for path in verdicts if any(passed(folder / path, commit) for folder in folders)}
        return fitting(left, (ends - time.monotonic()) / 60, len(places), judged)

    chosen = left if given.verdicts else affordable()
    print(told(left, chosen, len(blocks)), flush=True)
    if given.list:
        shutil.rmtree(work)
        return 0
    judges = [
        replace(place, name=f"{place.name}-{number}") if number else place
        for number in range(min(JUDGES, given.cores))
        for place in places
    ]
    for place in judges[1:]:
        place.make(given.source.resolve(), given.tag)
    timer = threading.Timer(max(0.0, ends - time.monotonic()), stop)
    timer.daemon = True
    timer.start()
    well = True
    while chosen and not STOPPED.is_set():
        well &= measure(places, judges, chosen, given.done, commit, ends, given.verdicts)
        left = [block for block in left if block not in chosen]
        chosen = affordable()  # by what the others took less
    timer.cancel()
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
