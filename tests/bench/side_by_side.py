"""What cells cost each other: python tests/bench/side_by_side.py FOLDER [--gpus 2] [--cores N] [--pairs 1]

Measures the same cells, a GPU and a share of the cores each, by turns one after another (`shares=GPUS`) and
as many at once as there are GPUs, in the order ABBA: one that lives on the GPU, one that lives on the CPU.
One after another they are measured on each of the GPUs, since which one a cell takes beside others is chance.
A turn before them, which makes the data and fills the caches, does not count. Prints a line for each run with
images/s, GPUs and for how many seconds the cells were timed at once; in the end each cell's ratio beside /
alone, of the medians on one GPU, and their geometric mean over the GPUs, held to 3 %: exit status 1 if one
misses it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import yaml
from snakemake.utils import update_config

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpufeed.core.config import planned  # noqa: E402

LIMIT = 0.03
CONFIG = {
    "run": ["side_by_side"],
    "least_s": 5,  # that imports and captures of different lengths leave them a common time
    "experiments": {
        "side_by_side": {
            "title": "Cells side by side",
            "question": "Is a cell as fast beside others as alone?",
            "common": {
                "dataset": "synthetic",
                "model": "resnet18",
                "augment": "torch",
                "batch_size": 256,
                "steps": 117,  # three epochs
                "cuda_graphs": True,
                "overrides": [["model.stem=imagenet"]],
            },
            "blocks": {
                "device": {"loader": "resident"},
                "host": {"loader": "dataloader_workers", "workers": 8, "persistent_workers": True},
            },
        }
    },
    "sources": {"synthetic": {"options": {"count": 9_984, "evaluation_share": 0.0}}},
}


def targets(results: Path, repeat: int) -> list[Path]:
    """The records of a run: this repeat of each cell."""
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    update_config(config, CONFIG | {"repeats": repeat + 1})
    return [
        results / "records/side_by_side" / cell / f"{repeat}.json"
        for cell in planned(config).cells["side_by_side"]
    ]


def run(asked: argparse.Namespace, repeat: int, gpu: int | None) -> list[dict]:
    """This repeat of each cell, as records: one after another on one GPU, or all at once."""
    folder = asked.folder.resolve()
    paths = targets(folder / "results", repeat)
    command = [sys.executable, "-m", "snakemake", "--configfile", str(folder / "config.yaml")]
    command += ["--cores", str(asked.cores), "--resources", f"gpu={asked.gpus}"]
    command += [f"shares={asked.gpus}"] if gpu is not None else []
    command += [
        "--config",
        f"repeats={repeat + 1}",
        f"data={folder / 'data'}",
        f"results={folder / 'results'}",
    ]
    mask = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
    done = subprocess.run(
        [*command, "--", *map(str, paths)], cwd=ROOT, env=os.environ | mask, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return measured(paths)


def measured(paths: list[Path]) -> list[dict]:
    records = [json.loads(path.read_text()) for path in paths]
    for record in records:
        if record["status"] != "done":
            raise SystemExit(f"{record['cell_id']}: {record['status']}: {record['sentence']}")
    return records


def overlap(records: list[dict]) -> float:
    """Seconds in which all of them were timed."""
    ended = [datetime.fromisoformat(record["finished_at"]).timestamp() for record in records]
    begun = [end - record["throughput"]["seconds"] for end, record in zip(ended, records, strict=True)]
    return round(max(0.0, min(ended) - max(begun)), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="for data and results; a run that was cut goes on there")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pairs", type=int, default=1, help="of ABBA: four turns each")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    (asked.folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    rates: dict[str, dict[str, dict[str, list[float]]]] = {}  # by loader, GPU and arm
    arms = ["warm-up", *["alone", "beside", "beside", "alone"] * asked.pairs]
    runs = [(arm, gpu) for arm in arms for gpu in (range(asked.gpus) if arm == "alone" else [None])]
    for repeat, (arm, gpu) in enumerate(runs):
        begun = time.perf_counter()
        records = run(asked, repeat, gpu)
        line: dict[str, object] = {"run": repeat, "arm": arm, "seconds": round(time.perf_counter() - begun)}
        gpus = [record["environment"]["gpu"]["uuid"] for record in records]
        for record, uuid in zip(records, gpus, strict=True):
            loader, rate = record["cell"]["loader"], record["throughput"]["images_per_s"]
            if arm != "warm-up":
                rates.setdefault(loader, {}).setdefault(uuid, {}).setdefault(arm, []).append(rate)
            line[loader] = round(rate)
        line |= {"cores": [record["environment"]["cores_allowed"] for record in records], "gpus": gpus}
        print(json.dumps(line | {"timed at once, s": overlap(records)}), flush=True)
    missed = []
    for loader, by_gpu in rates.items():
        of = {uuid: ratio(arms["beside"], arms["alone"]) for uuid, arms in by_gpu.items() if len(arms) == 2}
        together = statistics.geometric_mean(of.values())
        print(json.dumps({"loader": loader, "beside / alone": round(together, 4), "by GPU": of, **by_gpu}))
        if abs(together - 1) > LIMIT:
            missed.append(loader)
    print(f"missed by {', '.join(missed)}" if missed else "each within 3 % of itself alone")
    return int(bool(missed))


def ratio(beside: list[float], alone: list[float]) -> float:
    return round(statistics.median(beside) / statistics.median(alone), 4)


if __name__ == "__main__":
    sys.exit(main())
