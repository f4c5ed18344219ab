"""The tuner against an exhaustive search of its own space, on real trainings.

    python tests/bench/tuner_against_search.py --device cpu --archives ../shared/data --out /tmp/tuner
    python tests/bench/tuner_against_search.py --device cuda --archives shared/data --out $OUT

For each task, in a process of its own: the space of settings is written down (TASK-space.json), the tuner
runs, then each setting of the space trains whole epochs for at least --seconds after its start. At last both
winners train again in turn, --turns times each. TASK.json has all of it; a line a task and the verdict come
at the end: the tuner's winner as a share of the search's, and the tuner's time as a share of the search's.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

PHOTOS = ("data=imagenet_800", "recipe=random_resized_crop", "augment=none")
LIGHT = ("model=simple_cnn", "model.channels=[8,16]", "augment=none")
# name -> (arguments of gpufeed.tune, axis -> its values where they are not the usual ones)
TASKS: dict[str, dict[str, tuple[tuple[str, ...], dict[str, list]]]] = {
    "cpu": {  # epochs of two seconds or so on two cores
        "photos": (
            (*PHOTOS, *LIGHT[:2], "recipe.size=128", "batch_size=32", "data.limit=320", "data.copies=null"),
            {},
        ),
        "tiny": (("data=tiny_imagenet_40", *LIGHT, "batch_size=64", "data.limit=3000", "loader=overlap"), {}),
        "cifar": (("data=cifar10_jpeg", *LIGHT, "batch_size=128", "data.limit=6000"), {}),
    },
    "cuda": {  # 36 and 32 settings at most, five to six seconds each
        "tiny": (
            (
                "data=tiny_imagenet_40",
                "data.copies=2",
                "model=resnet18",
                "model.stem=cifar",
                "batch_size=256",
            ),
            {"workers": [16, 8, 4], "pin_memory": [True]},
        ),
        "photos": (
            (
                *PHOTOS,
                "data.copies=8",
                "recipe.size=224",
                "model=resnet18",
                "batch_size=128",
                "loader=overlap",
            ),
            {"workers": [16, 8], "prefetch_factor": [2, 4]},
        ),
    },
}
MOST_S = 120.0  # of one stretch


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=TASKS, default="cpu")
    parser.add_argument("--archives", default="../shared/data", help="folder of the datasets' archives")
    parser.add_argument("--data", default="/tmp/gpufeed-tuner-data", help="folder where datasets are kept")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", help="some of them; default: all of the device")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each setting in the search")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--most", type=int, help="settings of the space, for a try; default: all")
    parser.add_argument("--here", action="store_true", help="the one task in this process")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    names = asked.tasks or list(TASKS[asked.device])
    if asked.here:
        return run_task(names[0], asked)
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], "--here", "--tasks", name]
        subprocess.run(command, check=False)  # one that fails leaves the others
    return verdict([asked.out / f"{name}.json" for name in names])


def run_task(name: str, asked: argparse.Namespace) -> int:
    """Compose the task as gpufeed.tune does, and measure it."""
    from gpufeed import train, tune

    given, only = TASKS[asked.device][name]
    place = [f"archives=[{asked.archives}]", f"data_folder={asked.data}", f"hydra.run.dir={asked.out}/{name}"]
    place += [f"trainer.accelerator={asked.device}", "cache_decoder=pillow"]
    said = {text.partition("=")[0] for text in given}
    usual = [f"{key}={value}" for key, value in tune.DEFAULTS.items() if key not in said]
    sys.argv = [sys.argv[0], *given, *place, *usual]
    return train.main(lambda found, folder: measured(name, found, only, asked))


def measured(name: str, composed: Any, only: dict[str, list], asked: argparse.Namespace) -> None:
    """Measure a task: the tuner, the search, and both winners again."""
    from gpufeed.advice.setting_search import Search
    from gpufeed.advice.tuner import Stretches, prepared, row
    from gpufeed.cli.standalone_tuning import provided
    from gpufeed.core.document import now
    from gpufeed.core.loader_setting import Setting
    from gpufeed.system.environment import environment
    from gpufeed.system.page_cache import read_in
    from gpufeed.training.cell_training import made_ready, settle_process
    from gpufeed.training.runtime_context import RuntimeContext, workers_of

    cell, manifest, stores = provided(composed)
    settle_process(None)
    cell, place = replace(cell, workers=workers_of(cell)), RuntimeContext()
    found = {"task": name, "started_at": now(), "arguments": TASKS[asked.device][name][0]}
    with made_ready(cell, 0, manifest, stores, place, None) as ready:
        read_in(ready.loader.files())
        stretches, began = Stretches(cell, ready), time.perf_counter()
        limits, costs, settings, own = prepared(cell, ready, only)
        settings = settings[: asked.most]
        spent_s = time.perf_counter() - began
        space = {"limits": asdict(limits), "decoders": costs, "settings": [asdict(one) for one in settings]}
        (asked.out / f"{name}-space.json").write_text(json.dumps(space, indent=1) + "\n")
        print(f"{name}: {len(settings)} settings, an epoch of {ready.loader.share} images", flush=True)

        search = Search(settings, stretches.measure, costs, own, spent_s)
        tried = [row(one) for one in search.run()]
        tuner_s = time.perf_counter() - began
        found |= {"budget_s": search.budget_s, "tuner_s": tuner_s, "tried": tried}

        def whole(setting: Setting) -> Any:
            return stretches.measure(setting, asked.seconds, MOST_S, whole=True)

        began = time.perf_counter()
        grid = [{**asdict(one), **asdict(whole(one))} for one in settings]
        grid.sort(key=lambda one: -one["images_per_s"])
        found |= {"grid_s": time.perf_counter() - began, "grid": grid}

        ours, theirs = Setting.of(tried[0]), Setting.of(grid[0])
        again: dict[str, list[float]] = {"tuner": [], "search": []}
        for turn in range(asked.turns):
            sides = [("tuner", ours), ("search", theirs)]
            for side, setting in sides if turn % 2 == 0 else sides[::-1]:
                again[side].append(whole(setting).images_per_s)
    ratios = [one / other for one, other in zip(again["tuner"], again["search"], strict=True)]
    found |= {
        "environment": environment(place.device),
        "winners": [asdict(ours), asdict(theirs)],
        "again": again,
    }
    found |= {"same": ours == theirs, "ratios": ratios, "ratio": median(ratios)}
    found |= {"share_of_time": found["tuner_s"] / found["grid_s"], "settings": len(settings)}
    (asked.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def verdict(paths: Sequence[Path]) -> int:
    """Print a line a task; return 0 if each holds the bar."""
    held = True
    for path in paths:
        if not path.exists():
            print(f"{path.stem}: not measured")
            held = False
            continue
        found = json.loads(path.read_text())
        # where both choose the same setting the ratio is the machine's own noise
        holds = (found["same"] or found["ratio"] >= 0.97) and found["share_of_time"] <= 0.1
        held &= holds
        low, high = min(found["ratios"]), max(found["ratios"])
        same = "the same setting" if found["same"] else "another setting"
        print(
            f"{found['task']}: {found['ratio']:.1%} of the best ({low:.1%} to {high:.1%}, {same}) in "
            f"{found['share_of_time']:.1%} of the time ({found['tuner_s']:.1f} of {found['grid_s']:.0f} s), "
            f"{len(found['tried'])} of {found['settings']} settings tried: "
            f"{'holds' if holds else 'does not hold'}"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
