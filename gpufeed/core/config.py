"""Checks of the config before anything is planned, and the hyper-parameters of config/hydra.

The workflow imports this while it plans, so it needs nothing beyond what Snakemake itself brings.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from gpufeed.core import plan_advice as advice_plan
from gpufeed.core import plan_ceilings as ceilings_plan
from gpufeed.core import plan_inference as inference_plan
from gpufeed.core import vit_options
from gpufeed.core.cell_matrix import Plan, crossed, name_sources, plan
from gpufeed.core.cells import AXES, Cell, check_batch, impossible
from gpufeed.core.config_schema import explain, first_error, one_value, read_yaml, validator
from gpufeed.core.config_sources import EVALUATION, check_of, check_source, holds_out, training_images
from gpufeed.core.errors import GpufeedError, require_known
from gpufeed.core.plan_builds import planned_builds
from gpufeed.core.plan_decoding import check_sweep
from gpufeed.core.plan_decoding import settings as sweep_settings
from gpufeed.core.plan_impact import planned_impact
from gpufeed.core.plan_kernels import check_lines
from gpufeed.core.plan_plugins import answers, as_text, parse_override, question, references_of
from gpufeed.core.plan_side_by_side import pair
from gpufeed.core.references import code_of, is_reference
from gpufeed.core.registry import DECODERS, DERIVED, LOADERS, STORES, is_made

PACKAGE = Path(__file__).resolve().parents[1]
# the repository, or its copy in a wheel
ROOT = PACKAGE / "repository" if (PACKAGE / "repository").is_dir() else PACKAGE.parent
CONFIG = ROOT / "config"
OWN = Path("config/hydra")  # of a folder of runs, as gpufeed init writes it
HYPER = OWN.absolute() if (OWN / "train.yaml").is_file() else CONFIG / "hydra"
GROUPS = ("model", "trainer", "augment", "recipe")
# Rules, whose names no experiment may have: both are targets of Snakemake.
RULES = (
    *("all", "download", "prepare_dataset"),
    *(f"build_{name}" for name in (*STORES, "scaled_cache", "extension")),
    *("measure_cell", "find_disturbed", "count_repeats", "measure_build", "measure_kernel", "gate"),
    *("tune_cell", "gate_tuned"),
    *("train_model", "evaluate_model", "plot_confusion", "predict"),
    *("export_model", "quantise_model", "measure_inference", "plot_inference"),
    *("measure_ceilings", "plot_ceilings", "probe_cell", "advise"),
    *("tabulate", "plot", "plot_side_by_side", "assemble_report", "report", "compare"),
    *("measure_decoder", "tabulate_sweep", "plot_sweep"),
)


def merged_config(config: Mapping, changes: Mapping) -> dict:
    """Return a config with another merged over it key by key, as `--configfile` does."""
    both = dict(config)
    for key, value in changes.items():
        old = config.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        both[key] = merged_config(old, value) if nested else value
    return both


def check(config: Mapping) -> None:
    """Raise GpufeedError for the first error in a config."""
    if error := first_error("config", config):
        raise explain(error)
    for name in config["experiments"]:
        if name in RULES:
            raise GpufeedError(
                f"experiment {name!r}, which is also the name of a rule",
                f"a name other than {', '.join(RULES)}",
                f"give it another name, such as {name}_cells",
            )
    for name, source in config["sources"].items():
        check_source(source, f"sources.{name}")
    for name, stand_in in config["use_instead"].items():
        for dataset in (name, stand_in):
            require_known("dataset", dataset, config["sources"], "use_instead")
        check_stand_in(config["use_instead"], name, stand_in)
    require_known("decoder", config["cache_decoder"], DECODERS, "cache_decoder")
    for name in config["experiments"]:
        planned_builds(config, name)
    for name, source in config["sources"].items():
        if source["layout"] in DERIVED:
            check_of(config, name)
    for name, experiment in config["experiments"].items():
        for block in experiment.get("quick", ()):
            require_known("block", block, experiment["blocks"], f"experiments.{name}.quick")
        check_sweep(config, name)
        check_lines(config, name)
        inference_plan.check(config, name)


def check_stand_in(stand_ins: Mapping, name: str, stand_in: str) -> None:
    """Raise GpufeedError for a stand-in that has a stand-in itself."""
    last = stand_ins.get(stand_in, stand_in)
    if stand_in not in (name, last):
        also = "" if last == name else f"write {name}: {last}, or "
        raise GpufeedError(
            f"use_instead: {stand_in!r} for {name!r}, and {last!r} for {stand_in!r}",
            "sources that have no stand-in themselves",
            f"{also}remove one of the two from use_instead",
        )


def check_evaluation(config: Mapping, cells: Iterable[Cell]) -> None:
    """Raise GpufeedError for a cell that would train and then have no image to evaluate."""
    for cell in cells:
        source = config["sources"][cell.dataset]
        if cell.steps is not None or LOADERS[cell.loader].ceiling or holds_out(source):
            continue
        found = (
            f"experiment {cell.experiment!r} trains whole epochs on {cell.dataset!r}, "
            f"which has no evaluation split"
        )
        steps = "`steps` in every block, which turns evaluation off"
        if is_reference(source["layout"]):
            raise GpufeedError(
                found,
                f"{steps}, or the options of the Dataset to evaluate",
                f"give experiment {cell.experiment!r} `steps`, or the source options such as "
                f"{EVALUATION}: {{train: false}}",
            )
        if source["layout"] in ("mosaic", "noise"):
            raise GpufeedError(found, steps, f"give experiment {cell.experiment!r} `steps`")
        option = f"sources.{cell.dataset}.options.evaluation_share"
        raise GpufeedError(
            found,
            f"{option} above 0, or {steps}",
            f"raise {option}, or give experiment {cell.experiment!r} `steps`",
        )


def check_batches(config: Mapping, cells: Iterable[Cell]) -> None:
    """Raise GpufeedError for a batch larger than the training split, if the config gives its size.

    `check_prepared` checks the others, whose size is in the manifest. A cell on several devices, which most
    nodes skip, is checked by its job.
    """
    for cell in cells:
        if cell.ranks == 1 and (images := training_images(config["sources"][cell.dataset])) is not None:
            check_batch(cell, images)


def check_prepared(config: Mapping, dataset: str, images: int) -> None:
    """Raise GpufeedError for a batch of `run` larger than a prepared dataset's training split of `images`."""
    for name in config["run"]:
        for _, cell in crossed(config, name):
            if cell.dataset == dataset and cell.ranks == 1 and not impossible(cell):
                check_batch(cell, images)


def check_resume(config: Mapping, name: str, cells: Iterable[Cell]) -> None:
    """Raise GpufeedError for `resume` in an experiment with trainer fastai, which has no checkpoints."""
    if config["experiments"][name].get("resume") and any(cell.trainer == "fastai" for cell in cells):
        raise GpufeedError(
            f"resume: true in experiment {name!r}, which has cells with trainer fastai",
            "trainers that keep checkpoints, plain and lightning",
            "give its cells with trainer fastai an experiment of their own, without `resume`",
        )


def check_models(config: Mapping, found: Plan) -> None:
    """Raise GpufeedError for a model to keep or measure that could not be evaluated."""
    for name, key in itertools.product(config["experiments"], ("models", "inference")):
        for cell_id in found.cells_for(config, name, key):
            dataset = found.cells[name][cell_id].dataset
            if not holds_out(config["sources"][dataset]):
                raise GpufeedError(
                    f"a cell of experiments.{name}.{key} whose dataset {dataset!r} has no evaluation split",
                    "a dataset with an evaluation split",
                    "name another block",
                )


def check_resized(config: Mapping, found: Plan) -> None:
    """Raise GpufeedError for a resized dataset where images are read in the size of their files."""
    for dataset, place, remedy in wanted_as_they_are(config, found):
        size = config["sources"][dataset].get("resize")
        if size:
            raise GpufeedError(
                f"dataset {dataset!r} in {place}, whose images are resized to {size[0]} x {size[1]} (resize)",
                f"a dataset without `resize`: {place} reads images in the size of their files",
                remedy,
            )


def check_made(config: Mapping) -> None:
    """Raise GpufeedError for a sweep or timed builds over a dataset without image files."""
    for name in config["experiments"]:
        builds, sweep = planned_builds(config, name), sweep_settings(config, name) or {}
        of = {"builds": [builds.dataset] if builds else [], "sweep": sweep.get("datasets", [])}
        for part, datasets in of.items():
            for dataset in datasets:
                if is_made(config["sources"][dataset]):
                    raise GpufeedError(
                        f"dataset {dataset!r} in experiments.{name}.{part}, which has no image files",
                        "a dataset of image files, since decoders read files",
                        f"name another dataset in experiments.{name}.{part}",
                    )


def wanted_as_they_are(config: Mapping, found: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield (dataset, place, remedy) for all that reads images in the size of their files only."""
    if DECODERS[decoder := config["cache_decoder"]].reads != "files":
        for name, cells in found.cells.items():
            for cell in cells.values():
                if LOADERS[cell.loader].decoded:
                    yield (
                        cell.dataset,
                        f"cache_decoder {decoder} (experiments.{name}, loader {cell.loader})",
                        f"take another cache_decoder than {decoder}, or another dataset",
                    )
    for name in config["experiments"]:
        builds = planned_builds(config, name)
        if builds and any(decoder == "strips" for decoder, _ in builds.runs):
            yield (
                builds.dataset,
                f"experiments.{name}.builds",
                "remove strips from it, or name another dataset",
            )
        for dataset in (sweep_settings(config, name) or {}).get("datasets", []):
            yield dataset, f"experiments.{name}.sweep", "remove the dataset from the sweep"


def is_described(group: str, name: str) -> bool:
    """Return whether the schema describes the hyper-parameters of a model, trainer or augment."""
    return name in validator("hyper").schema["properties"][group]["properties"]


def check_hyper(group: str, name: str, values: object, place: str) -> None:
    """Raise GpufeedError for the first value that the schema of a model, trainer or augment refuses."""
    if is_reference(name) or (not values and not is_described(group, name)):
        return  # gpufeed.plugins checks those of references; others may have no options
    if error := first_error("hyper", {group: {name: values}}):
        path = list(error.absolute_path)
        raise explain(error, place, path[:1] + path[2:])  # as in overrides: without the name


def check_axes(values: Mapping, place: str, **optional: object) -> None:
    """Raise GpufeedError for the first value of an axis, a source's key or the seed that the schema refuses.

    An axis has one value here. optional: more of them, which may be None.
    """
    schema = validator("config").schema
    definitions = schema["$defs"]
    known = {"seed": schema["properties"]["seed"]}
    known |= definitions["source"]["properties"] | definitions["block"]["properties"]
    given = {name: value for name, value in optional.items() if value is not None}
    for name, value in {**values, **given}.items():
        described = known[name]
        described = one_value(definitions.get(described.get("$ref", "").rpartition("/")[2], described))
        value = list(value) if isinstance(value, tuple) else value
        if error := next(validator("config").evolve(schema=described).iter_errors(value), None):
            raise explain(error, place, [name, *error.absolute_path])


def check_dict(name: str, given: object, place: str, example: str) -> None:
    """Raise GpufeedError unless options are a dict or None."""
    if given is not None and not isinstance(given, Mapping):
        raise GpufeedError(
            f"{name}: {given!r}, in {place}", "a dict of options", f"write such as {name}={example}"
        )


def read_hyper(group: str, name: str) -> dict:
    """Return the checked defaults of a model, trainer or augment from config/hydra; {} without options."""
    if is_reference(name):
        return {}
    path = HYPER / group / f"{name}.yaml"
    place = f"config/hydra/{group}/{name}.yaml"
    try:
        values = read_yaml(path.read_text(), place)
    except OSError as error:
        if not is_described(group, name):
            return {}
        raise GpufeedError(
            f"no hyper-parameters of {group} {name!r}", f"a file {place}", "write it, if only with {}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GpufeedError(
            f"{place} is no YAML ({error})", "lines of `key: value`", f"correct {place}"
        ) from error
    values = {} if values is None else values  # a file of comments
    check_hyper(group, name, values, place)
    return values


def settled(hyper: dict, where: str) -> dict:
    """Return the checked hyper-parameters of a cell; a recipe without options has no entry."""
    if not (recipe := hyper["recipe"]):
        return {group: values for group, values in hyper.items() if group != "recipe"}
    for name in ("scale", "ratio"):
        if recipe[name][0] > recipe[name][1]:
            raise GpufeedError(
                f"recipe.{name} {recipe[name]} in {where}", "the lower bound first", "exchange the two"
            )
    if recipe["size"] > recipe["short_side"]:
        raise GpufeedError(
            f"recipe.size {recipe['size']} and recipe.short_side {recipe['short_side']} in {where}",
            "a size of at most short_side, since evaluation crops the centre of it",
            "raise recipe.short_side (256 for 224 is usual), or lower recipe.size",
        )
    return hyper


class Composer:
    """Composes the hyper-parameters of a cell: the defaults of its groups, then its overrides.

    config, answers: the questions about its references, and their answers (gpufeed.core.plan_plugins).
    """

    def __init__(self, config: Mapping | None = None, answers: Mapping | None = None):
        self.config, self.answers = config, answers or {}
        self.defaults: dict[tuple[str, str], dict] = {}
        self.composed: dict[tuple, dict] = {}  # checking 10,000 cells one by one took 2.1 of 3.1 s

    def __call__(self, cell: Cell, where: str) -> dict:
        """Return {"model": ..., "trainer": ..., "augment": ...}, with "recipe" if that has options.

        where: the cell's place in the config. Cells that differ in other axes share one dict. Raises
        GpufeedError for an override of an unknown key, and for a value that the schema refuses.
        """
        names = (*(getattr(cell, group) for group in GROUPS), cell.overrides, *references_of(cell).values())
        if names not in self.composed:
            self.composed[names] = self._compose(cell, where)
        return self.composed[names]

    def _compose(self, cell: Cell, where: str) -> dict:
        hyper = {group: self._defaults(group, getattr(cell, group)) for group in GROUPS}
        references = references_of(cell)
        made_for = self._made_for(cell) if "model" in references else {}
        if hyper["recipe"] and made_for:
            hyper["recipe"] |= {name: made_for[name] for name in ("size", "short_side")}
        for text in cell.overrides:
            group, name, value = parse_override(text)
            entry = getattr(cell, group)
            if group in references:
                hyper.setdefault(group, {})[name] = value
                continue
            if not hyper.get(group):
                raise GpufeedError(
                    f"{text!r} in {where}", f"nothing: {group} {entry!r} has no hyper-parameters", "remove it"
                )
            require_known(f"{group} hyper-parameter", name, hyper[group], f"{where}: {text}")
            hyper[group][name] = value
            check_hyper(group, entry, hyper[group], f"the overrides of {where}")
        if "heads" in hyper["model"] and "model" not in references:  # a vision transformer of ours
            vit_options.check(hyper["model"], f"{where}, model {cell.model}")
        if made_for:
            hyper["input"] = {name: made_for[name] for name in ("mean", "std")}
        if code := code_of(name for kind, name in references.items() if kind != "dataset"):
            hyper["code"] = code
        return settled(hyper, where)

    def _made_for(self, cell: Cell) -> dict:
        """Return size, short_side, mean and std of the images that the cell's model was made for, or {}."""
        found = self.answers.get(as_text(question(self.config, cell, "model")), {}) if self.config else {}
        return found.get("made_for") or {}

    def _defaults(self, group: str, name: str) -> dict:
        """Return a copy of the defaults, which are read once."""
        if (group, name) not in self.defaults:
            self.defaults[group, name] = read_hyper(group, name)
        return dict(self.defaults[group, name])


def keep_quick(config: Mapping) -> None:
    """Apply `quick: true` to a checked config: keep the blocks in `quick`, and one repeat."""
    if config["quick"] in (True, "true"):
        for experiment in config["experiments"].values():
            blocks = experiment["blocks"]
            experiment["blocks"] = {name: blocks[name] for name in experiment.get("quick", blocks)}
            experiment["repeats"] = 1


def planned(config: Mapping, tried: bool = True) -> Plan:
    """Check a config and return its plan; `quick: true` is applied to the config first.

    tried: whether to import its references, which takes a Python with torch. Without that, cells with a model
    of timm get other ids.
    """
    check(config)
    name_sources(config)
    keep_quick(config)
    found = plan(config, Composer(config, answers(config) if tried else {}))
    for name, cells in found.cells.items():
        check_evaluation(config, cells.values())
        if name in config["run"]:  # others may be meant for another dataset of the same name
            check_batches(config, cells.values())
        check_resume(config, name, cells.values())
        planned_impact(config, name, cells.values())
        ceilings_plan.cells(config, found, name)
        advice_plan.settings(config, found, name)
        pair(config, found, name)
    for axis in config["only"]:
        require_known("axis", axis, AXES, "only")
    check_models(config, found)
    check_resized(config, found)
    check_made(config)
    return found
