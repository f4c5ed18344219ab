"""The notebook's loop beside `snakemake notebook`: python tests/bench/notebook.py FOLDER [--repeats 5]

Alternates two programs, each run in its own process. One is a bare PyTorch script that does what the notebook
on pipelining does: a plain Dataset, a DataLoader, a loop that waits after each phase. The other is the cell
of experiment `notebook` that does the same, as the workflow measures it. Both run without and with
pipelining. One repeat of each cell runs first and does not count: it prepares the dataset and checks the
loaders. Prints the mean of each phase, and the ratio of cell to bare script, pair by pair, as median and
range: over all 20 batches, and without the first one. FOLDER/notebook.json has all times. `--bare 0` or
`--bare 2` runs the bare script alone, with that many workers, and prints its times as JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PHASES = ("load_ms", "transfer_ms", "train_ms")
BATCHES, FEW = 20, 10.0  # FEW: per cent by which the means may differ


def bare(workers: int) -> list[dict[str, float]]:
    """Train as the notebook does, without this project's code; return the milliseconds of each batch."""
    import numpy as np
    import torch
    from PIL import Image
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.Resize((224, 224)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )

    class Noise(Dataset):
        def __len__(self) -> int:
            return 500

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            pixels = np.random.randint(0, 256, (224, 224, 3), dtype=np.uint8)
            return transform(Image.fromarray(pixels)), index % 10

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    ahead = {"pin_memory": True, "prefetch_factor": 2, "persistent_workers": True} if workers else {}
    loader = DataLoader(Noise(), batch_size=32, shuffle=True, num_workers=workers, **ahead)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 56 * 56, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    ).to(device)
    optimiser, criterion = torch.optim.Adam(model.parameters(), lr=0.001), nn.CrossEntropyLoss()
    rows: list[dict[str, float]] = []
    while len(rows) < BATCHES:
        began = time.perf_counter()
        for images, labels in loader:
            loaded = time.perf_counter()
            images = images.to(device, non_blocking=workers > 0)
            labels = labels.to(device, non_blocking=workers > 0)
            wait()
            moved = time.perf_counter()
            optimiser.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimiser.step()
            wait()
            trained = time.perf_counter()
            spans = (loaded - began, moved - loaded, trained - moved)
            rows.append({name: span * 1e3 for name, span in zip(PHASES, spans, strict=True)})
            if len(rows) == BATCHES:
                break
            began = time.perf_counter()
    return rows


def bare_run(workers: int) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--bare", str(workers)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def workflow_run(folder: Path, target: str, cores: int, config: Path) -> None:
    command = [sys.executable, "-m", "snakemake", target, "--cores", str(cores), "--resources", "gpu=1"]
    done = subprocess.run(
        [*command, "--configfile", str(config)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])


def cell_run(folder: Path, cell: str, repeat: int, cores: int, config: Path) -> list[dict[str, float]]:
    """The times of each batch of one repeat of one cell."""
    import pandas as pd

    record = folder / f"results/records/notebook/{cell}/{repeat}.json"
    workflow_run(folder, str(record), cores, config)
    found = json.loads(record.read_text())
    if found["status"] != "done":
        raise SystemExit(f"{record}: {found['status']}: {found['sentence']}")
    steps = pd.read_parquet(record.with_suffix(".steps.parquet")).head(BATCHES)
    return steps[list(PHASES)].to_dict("records")


def means(rows: list[dict[str, float]], skip: int) -> dict[str, float]:
    return {name: statistics.fmean(row[name] for row in rows[skip:]) for name in PHASES}


def ranged(values: list[float], digits: int) -> str:
    """`1.02 (0.97 to 1.05)`: median and range."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def report(runs: dict[str, dict[str, list]]) -> None:
    """Prints means and ratios. runs: pipeline -> "bare" and "cell" -> rows of each repeat."""
    for skip, over in ((0, f"all {BATCHES} batches"), (1, "all batches but the first")):
        print(f"\nmeans over {over}, ms, median over repeats (range); ratio cell / bare, pair by pair")
        for pipeline, sides in runs.items():
            found = {side: [means(rows, skip) for rows in repeats] for side, repeats in sides.items()}
            for name in PHASES:
                ours, theirs = ([one[name] for one in found[side]] for side in ("cell", "bare"))
                ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b > 0.01]
                off = abs(statistics.median(ratios) - 1) * 100 > FEW if ratios and max(ours) > 0 else False
                said = (
                    (ranged(ratios, 3) + f"  MORE THAN {FEW:g} %" * off) if ratios and max(ours) > 0 else "-"
                )
                print(f"{pipeline:20} {name:12} bare {ranged(theirs, 2):28} cell {ranged(ours, 2):28} {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="results, data and notebook.json go there")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--bare", type=int, choices=(0, 2))
    asked = parser.parse_args()
    if asked.bare is not None:
        print(json.dumps(bare(asked.bare)))
        return
    if asked.folder is None:
        parser.error("a FOLDER is needed, or --bare")
    import yaml

    from gpufeed.core.config import planned

    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    changes = {"results": str(folder / "results"), "data": str(folder / "data"), "run": ["notebook"]}
    experiment = {"repeats": asked.repeats + 1}
    (folder / "config.yaml").write_text(yaml.safe_dump({**changes, "experiments": {"notebook": experiment}}))
    blocks = planned(config).blocks["notebook"]
    cells = {name: ids[0] for name, ids in blocks.items()}
    for cell in cells.values():  # the dataset and the verdicts, and warm files
        cell_run(folder, cell, asked.repeats, asked.cores, folder / "config.yaml")
    runs: dict[str, dict[str, list]] = {name: {"bare": [], "cell": []} for name in cells}
    for repeat in range(asked.repeats):
        for (name, cell), workers in zip(cells.items(), (0, 2), strict=True):
            runs[name]["bare"].append(bare_run(workers))
            runs[name]["cell"].append(cell_run(folder, cell, repeat, asked.cores, folder / "config.yaml"))
            last = {side: means(rows[-1], 0) for side, rows in runs[name].items()}
            print(f"repeat {repeat + 1}, {name}: {last}", flush=True)
            (folder / "notebook.json").write_text(json.dumps(runs, indent=1) + "\n")
    report(runs)


if __name__ == "__main__":
    main()
