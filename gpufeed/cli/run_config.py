"""The config of `gpufeed run`: config/own.yaml with the images, model and loaders of a command line."""

import os
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpufeed.core.cell_matrix import Plan, check_names
from gpufeed.core.cells import check_batch
from gpufeed.core.config import CONFIG, merged_config, planned, read_hyper
from gpufeed.core.config_schema import explain, first_error, read_yaml
from gpufeed.core.errors import GpufeedError, first_line, unknown
from gpufeed.core.folders import check_run_folder, expanded, settle_folders, unwritable
from gpufeed.core.image_listing import names_below
from gpufeed.core.plan_advice import BEST, settings
from gpufeed.core.references import check, is_reference, short
from gpufeed.core.registry import LOADERS, is_made

EXPERIMENT, TODAY = "own", "dataloader"  # of config/own.yaml: what is measured, its block to improve on
OF_THE_GPU = "of_the_gpu"  # its block for GPUs: a quick run without one leaves it out
HERE = "the command line"
SHORT_SIDE = 256 / 224  # of evaluation images, to the size that is cut from their middle
DECODER = "torchvision_cpu"  # of workers that have a choice
STEPS_OF_AN_EPOCH = 4  # at least, with a batch size that nobody asked for
# A CPU trains few images at once as fast as many. A repeat leaves out half of its steps at most, and goes on
# until the others took `least_s`: where a step takes seconds, more planned ones only make it longer.
ON_CPU = {"batch_size": 8, "steps": 12}
KINDS_OF_DATA = (
    "a folder with CLASS/IMAGE, or with train/CLASS/IMAGE and val/CLASS/IMAGE; a name in `sources` of the "
    "config; or a torch Dataset, path.py:attribute"
)


def shipped_config() -> dict[str, Any]:
    """Return config/config.yaml, that of the folder of the run where it has one, as the Snakefile does.

    Raises GpufeedError for one of another project, and for the first error in it.
    """
    here = Path("config/config.yaml")
    path = here if here.exists() else CONFIG / "config.yaml"
    try:
        found = read_yaml(path.read_text(encoding="utf-8"), str(path))
        if isinstance(found, dict) and found.keys() >= {"sources", "experiments"}:
            if error := first_error("config", found | {"run": [EXPERIMENT]}):  # as the command sets it
                raise explain(error, str(path))
            return found
        why = "no `sources` and `experiments`"
    except (OSError, UnicodeDecodeError) as error:
        why = first_line(error)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())  # its last line says where
    raise GpufeedError(
        f"{path.absolute()}, which is no config of gpufeed ({why})",
        "a folder without config/config.yaml, or with one of gpufeed",
        "correct it, or run in another folder: images, models and loaders may be named by whole paths",
    )


def config_of(asked: Namespace, sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command line changes in config/config.yaml.

    asked: as run_workflow.parser parses it. sources: of config/config.yaml. Raises GpufeedError for names of
    nothing.
    """
    own = read_yaml((CONFIG / "own.yaml").read_text(), "config/own.yaml")
    experiment = own["experiments"][EXPERIMENT]
    dataset, source = source_of(asked, sources, own["sources"]["own"]["limit"])
    common = experiment["common"] | {"dataset": dataset}
    common |= {} if asked.gpus else ON_CPU
    given = {key: getattr(asked, key) for key in ("model", *ON_CPU)}
    common |= {key: value for key, value in given.items() if value is not None}
    for loader in asked.loaders or ():
        check_names({"dataset": dataset, "loader": loader}, HERE, [dataset])
    check_names({**common, "loader": "replay"}, HERE, [dataset])
    common["overrides"] = [overrides_of(common["model"], asked.size)]
    experiment["common"] = common
    best = BEST
    if asked.loaders:
        experiment["blocks"] = blocks_of(experiment["blocks"], asked.loaders)
        del experiment["quick"]
        best = len(asked.loaders)  # all that are not slower by their probes
    elif not asked.gpus:
        experiment["quick"].remove(OF_THE_GPU)
    if TODAY in experiment["blocks"] and not asked.all:
        experiment["advice"] = {"of": TODAY, "best": best}
    found = {"run": [EXPERIMENT], "results": str(asked.out), "quick": asked.quick}
    found |= {} if asked.gpus else {"device": "cpu", "cache_decoder": "simplejpeg"}
    return found | {"sources": {dataset: source} if source else {}, "experiments": {EXPERIMENT: experiment}}


def source_of(asked: Namespace, sources: Mapping[str, Any], limit: int) -> tuple[str, dict[str, Any]]:
    """Return the name of the images to measure, and what the config says of them.

    limit: of a folder, where the command line has none. Raises GpufeedError for what is none of
    KINDS_OF_DATA.
    """
    given, folder = str(asked.folder), expanded(asked.folder)
    limited = {"limit": asked.limit} if asked.limit else {}
    if folder.is_dir():
        name = plain(folder.resolve().name)
        name = name if re.match("[a-z]", name) and name not in sources else f"own_{name}".rstrip("_")
        return name, {"layout": "image_folder", "folder": str(folder), "limit": limit, **limited}
    if given in sources or is_reference(given):
        if is_reference(given):
            check("dataset", given, HERE)
        source = sources.get(given, {"layout": given})
        if limited and is_made(source):
            raise GpufeedError(
                f"--limit {asked.limit} for {given}, which makes its images",
                "a limit for images in files",
                "leave --limit out, and let the Dataset have fewer items",
            )
        name = given if given in sources else plain(short(given))
        return name, limited if given in sources else source
    if folder.exists():
        raise GpufeedError(
            f"{folder}, which is a file", KINDS_OF_DATA, "name a folder; unpack an archive first"
        )
    if os.sep in given:
        raise GpufeedError(f"no folder {folder}", KINDS_OF_DATA, "correct its path, or mount what it lies on")
    error = unknown("folder or dataset", given, sources, HERE)
    raise GpufeedError(f"no folder {folder}, and no dataset of this name", KINDS_OF_DATA, error.remedy)


def plain(name: str) -> str:
    """Return a name of lower-case letters, digits and `_`, as the config has them."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def overrides_of(model: str, size: int | None) -> list[str]:
    """Return the options of the cells. size: of the images; None: the model's own, or that of the recipe."""
    found = ["model.stem=imagenet"] if "stem" in read_hyper("model", model) else []
    if size is not None:
        found += [f"recipe.size={size}", f"recipe.short_side={round(size * SHORT_SIDE)}"]
    return found


def blocks_of(blocks: Mapping[str, dict], loaders: Iterable[str]) -> dict[str, dict]:
    """Return the blocks with these loaders and the limit alone, and another for each loader that none has."""
    kept, loaders = {}, list(dict.fromkeys(loaders))
    for name, block in blocks.items():
        listed = block["loader"] if isinstance(block["loader"], list) else [block["loader"]]
        if found := [loader for loader in listed if loader in loaders or LOADERS[loader].ceiling]:
            kept[name] = {**block, "loader": found}
    there = {loader for block in kept.values() for loader in block["loader"]}
    for loader in loaders:
        if loader not in there:
            entry = LOADERS[loader]
            block = {"loader": loader, "persistent_workers": entry.workers != "never" and not entry.anew}
            kept[plain(short(loader))] = block | ({"decoder": DECODER} if DECODER in entry.decoders else {})
    return kept


def images_to_train_on(config: Mapping[str, Any], changes: Mapping[str, Any]) -> int | None:
    """Return how many images of a folder a run trains on; None where its images come from elsewhere."""
    dataset = changes["experiments"][EXPERIMENT]["common"]["dataset"]
    source = {**config["sources"].get(dataset, {}), **changes["sources"].get(dataset, {})}
    return images_in(source) if "folder" in source else None


def fit_batch(asked: Namespace, changes: Mapping[str, Any], images: int | None, least_s: float) -> str:
    """Lower the batch size where the images are few; return the sentences on what nobody asked for.

    asked: as in config_of. images: to train on, if known. least_s: as in the config.
    """
    common = changes["experiments"][EXPERIMENT]["common"]
    size = common["batch_size"]
    if images and not asked.batch_size:  # a power of two, at least 2
        common["batch_size"] = min(size, 1 << max(1, (images // STEPS_OF_AN_EPOCH).bit_length() - 1))
    said, steps, lowered = [], common["steps"], common["batch_size"]
    if lowered < size:
        said.append(
            f"Batch size: {lowered}, since there are {images} images to train on; --batch-size N sets "
            "another."
        )
    if not asked.gpus and None in (asked.batch_size, asked.steps):
        more = f", and more until it took {least_s:g} s" if least_s else ""
        said.append(
            f"On a CPU a repeat has {steps} steps of {lowered} images{more}; --steps N and --batch-size N "
            "set others."
        )
    return " ".join(said)


def plan_of(
    config: Mapping[str, Any], changes: Mapping[str, Any], images: int | None
) -> tuple[Plan, str, dict[str, Any] | None]:
    """Return the plan of a run, the folder of its results, and the settings of its advice.

    images: to train on, if known. Nothing is prepared: references are tried. Raises GpufeedError for what
    cannot be measured.
    """
    whole = merged_config(config, changes)
    check_run_folder(Path.cwd(), CONFIG.parent)
    settle_folders(whole)
    if refused := unwritable(whole["results"]):
        raise refused
    plan = planned(whole)
    cells = plan.cells[EXPERIMENT].values()
    for cell in cells if images is not None else ():
        check_batch(cell, images)
    if all(LOADERS[cell.loader].ceiling for cell in cells):
        left = {one.sentence for one in plan.left_out if one.experiment == EXPERIMENT}
        limits = sorted({cell.loader for cell in cells})
        left = left or {f"{', '.join(limits)} is the limit that loaders are held against"}
        raise GpufeedError(
            f"no loader to measure: {'; '.join(sorted(left))}",
            "one at least that can measure these images with this model",
            "name others with --loaders, or leave it out",
        )
    return plan, whole["results"], settings(whole, plan, EXPERIMENT)


def images_in(source: Mapping[str, Any]) -> int:
    """Return how many images of a folder are trained on.

    Raises GpufeedError for one that cannot be laid out.
    """
    from gpufeed.datasets.image_folder import TRAIN, Options, placed, within  # numpy and pandas

    folder, limit = expanded(source["folder"]), source.get("limit")
    found = placed(names_below(folder), Options(**source.get("options", {})), folder)
    places = found.places if limit is None else within(found, limit)
    return sum(split == TRAIN for split, *_ in places.values())
