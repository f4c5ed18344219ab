"""The config, checked before anything is planned, and the hyper-parameters of config/hydra.

Imported while the workflow plans, so it needs nothing beyond what Snakemake itself brings.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from gpufeed.builds import planned_builds
from gpufeed.ceilings import plan as ceilings_plan
from gpufeed.errors import GpufeedError, unknown
from gpufeed.experiment import Cell, Plan, plan
from gpufeed.impact import planned_impact
from gpufeed.inference import plan as inference_plan
from gpufeed.kernels.plan import check_lines
from gpufeed.models import vit_options
from gpufeed.registry import DECODERS, DERIVED, LAYOUTS, LOADERS
from gpufeed.sweep.plan import check_sweep
from gpufeed.sweep.plan import settings as sweep_settings
from gpufeed.trained.plan import kept_cells

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
SCHEMAS = PACKAGE / "schemas"
CONFIG = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else ROOT / "config"  # conf: the copy in a wheel
HYPER = CONFIG / "hydra"
GROUPS = ("model", "trainer", "augment")
# An experiment is a target beside these, so it cannot bear the name of one.
RULES = (
    *("all", "download", "prepare_dataset"),
    *("build_cache", "build_strips", "build_shards", "build_beton", "build_extension"),
    *("measure_cell", "count_repeats", "measure_build", "measure_kernel", "gate"),
    *("train_model", "evaluate_model", "plot_confusion", "predict"),
    *("export_model", "quantise_model", "measure_inference", "plot_inference"),
    *("measure_ceilings", "plot_ceilings"),
    *("tabulate", "plot", "assemble_report", "report", "compare"),
    *("measure_decoder", "tabulate_sweep", "plot_sweep"),
)
FASHION_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def is_integer(checker: object, value: object) -> bool:
    """Whether a value is a whole number in Python too: JSON Schema lets 32.0 pass for one."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(checker: object, value: object) -> bool:
    """Whether a value is a number that a float can hold: YAML and json.loads give NaN and Infinity too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN


def read_yaml(text: str) -> Any:
    """Plain values; by libyaml where it is there, which takes an eighth of the time in every start."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def validator(name: str) -> Validator:
    """The validator of one of the schemas, `config` or `hyper`."""
    types = Draft202012Validator.TYPE_CHECKER.redefine_many({"integer": is_integer, "number": is_number})
    schema = read_yaml((SCHEMAS / f"{name}.schema.yaml").read_text())
    return extend(Draft202012Validator, type_checker=types)(schema)


def first_error(name: str, instance: object) -> ValidationError | None:
    """The first violation of a schema, in the order of the paths; None if there is none."""
    errors = validator(name).iter_errors(instance)
    return min(errors, key=lambda error: [str(part) for part in error.absolute_path], default=None)


BOUNDS = {
    "type": "type",
    "enum": "one of:",
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "pattern": "matching",
    "multipleOf": "a multiple of",
    "minItems": "entries: at least",
    "maxItems": "entries: at most",
    "minProperties": "keys: at least",
}


def bounds(schema: Mapping) -> str:
    """What a schema allows, in words."""
    parts = []
    for key, words in BOUNDS.items():
        if key in schema:
            value = schema[key]
            parts.append(f"{words} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    description = schema.get("description", "")
    return f"{'; '.join(parts)} ({description})" if parts and description else description or "; ".join(parts)


def one_value(schema: Mapping) -> Mapping:
    """The schema of one value alone where several may be listed, too."""
    types = schema.get("type")
    if not isinstance(types, list) or "array" not in types:
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("items", "minItems", "maxItems")}
    return kept | {"type": [name for name in types if name != "array"]}


def explain(
    error: ValidationError,
    place: str = "the config",
    path: Iterable[str | int] | None = None,
    lists: bool = True,
) -> GpufeedError:
    """A schema violation as found / expected / what to do.

    path: of the wrong value within `place`. lists: whether what may be one value may be several there.
    """
    key = ".".join(str(part) for part in (error.absolute_path if path is None else path))
    where = f"{key} in {place}" if key else place
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        allowed = error.schema.get("properties", {})
        extra = next(name for name in error.instance if name not in allowed)
        return unknown("key", extra, allowed, where)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        described = error.schema["properties"][missing].get("description", "")
        return GpufeedError(
            f"no {missing!r} in {where}", described or f"a {missing}", f"add {missing!r} to {where}"
        )
    found = f"{key}: {error.instance!r}, in {place}" if key else f"{error.instance!r} as {place}"
    allowed = error.schema if lists else one_value(error.schema)
    return GpufeedError(found, bounds(allowed), f"correct {where}")


def check(config: Mapping) -> None:
    """Raises GpufeedError at the first thing in the config that cannot be meant."""
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
            if dataset not in config["sources"]:
                raise unknown("dataset", dataset, config["sources"], "use_instead")
    if config["cache_decoder"] not in DECODERS:
        raise unknown("decoder", config["cache_decoder"], DECODERS, "cache_decoder")
    for name in config["experiments"]:
        planned_builds(config, name)
    for name, source in config["sources"].items():
        if source["layout"] in DERIVED:
            check_of(config, name)
    for name in config["experiments"]:
        check_sweep(config, name)
        check_lines(config, name)
        inference_plan.check(config, name)


def check_source(source: Mapping, where: str) -> None:
    """Raises GpufeedError for a source that its layout would refuse once its files are there."""
    layout, options = source["layout"], source.get("options", {})
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS, where)
    if layout == "synthetic":
        check_splits(options, where)
    elif layout in DERIVED:
        check_derived(source, where)
    elif options:
        raise GpufeedError(
            f"options in {where}", f"none: layout {layout} has no options", "remove `options:` from it"
        )
    else:
        check_files(layout, [file["name"] for file in source.get("files", [])], where)


def check_files(layout: str, names: list[str], where: str) -> None:
    """Raises GpufeedError unless the files are those that the layout reads."""
    found = f"{', '.join(names) or 'no files'} in {where}"
    if layout == "fashion_mnist":
        if sorted(names) != sorted(FASHION_MNIST_FILES):
            raise GpufeedError(
                found,
                f"the four files {', '.join(FASHION_MNIST_FILES)}",
                "list these four under `files:`, each with name and sha256",
            )
    elif not names:
        raise GpufeedError(found, "one row with name and sha256", "add `files:` to it")
    elif len(names) > 1:
        raise GpufeedError(found, f"one archive for layout {layout}", "leave one row under `files:`")


def check_derived(source: Mapping, where: str) -> None:
    """Raises GpufeedError unless a source that is made of another one has its options, and no files."""
    layout = source["layout"]
    if source.get("files"):
        raise GpufeedError(
            f"files in {where}", f"none: layout {layout} is made of another source", "remove `files:`"
        )
    if not source.get("options"):
        needed = validator("config").schema["$defs"][layout]["required"]
        listed = ", ".join(f"{key}: ..." for key in needed)
        raise GpufeedError(
            f"no options in {where}",
            f"{', '.join(needed[:-1])} and {needed[-1]}",
            f"add `options: {{{listed}}}`",
        )


def check_of(config: Mapping, dataset: str) -> None:
    """Raises GpufeedError unless the source that another is made of can be that.

    It is made of none itself. Mosaics want one size of image, gray_idx a split that nothing trains on.
    """
    layout = config["sources"][dataset]["layout"]
    of, where = config["sources"][dataset]["options"]["of"], f"sources.{dataset}.options.of"
    others = [
        name
        for name, row in config["sources"].items()
        if row["layout"] not in DERIVED and ("resize" not in row if layout == "mosaic" else holds_out(row))
    ]
    for name in (of, config["use_instead"].get(of, of)):
        if name not in others:
            raise unknown("dataset", name, others, where)


def with_defaults(options: Mapping) -> dict:
    """The options of a synthetic source, with the defaults of those that it leaves out."""
    described = validator("config").schema["$defs"]["synthetic"]["properties"]
    return {**{key: schema["default"] for key, schema in described.items()}, **options}


def evaluation_images(options: Mapping) -> int:
    """Images that a synthetic source with all its options holds out for evaluation."""
    return round(options["count"] * options["evaluation_share"])


def check_splits(options: Mapping, where: str) -> None:
    """Raises GpufeedError if a split of a synthetic source has no image of some class."""
    options = with_defaults(options)
    held_out, classes = evaluation_images(options), options["classes"]
    if options["count"] - held_out < classes:
        raise GpufeedError(
            f"{options['count'] - held_out} training images for {classes} classes in {where}",
            "at least one for each class",
            "raise `count`, or lower `classes` or `evaluation_share`",
        )
    if options["evaluation_share"] and held_out < classes:
        raise GpufeedError(
            f"{held_out} evaluation images for {classes} classes in {where}",
            "at least one for each class, or evaluation_share 0",
            "raise `count` or `evaluation_share`, or lower `classes`",
        )


def check_evaluation(config: Mapping, cells: Iterable[Cell]) -> None:
    """Raises GpufeedError for a cell that would train and then find nothing to evaluate on."""
    for cell in cells:
        source = config["sources"][cell.dataset]
        if cell.steps is not None or LOADERS[cell.loader].ceiling or holds_out(source):
            continue
        found = (
            f"experiment {cell.experiment!r} trains whole epochs on {cell.dataset!r}, "
            f"which holds no image out for evaluation"
        )
        steps = "`steps` in every block, after which nothing is evaluated"
        if source["layout"] == "mosaic":
            raise GpufeedError(found, steps, f"give experiment {cell.experiment!r} `steps`")
        option = f"sources.{cell.dataset}.options.evaluation_share"
        raise GpufeedError(
            found,
            f"{option} above 0, or {steps}",
            f"raise {option}, or give experiment {cell.experiment!r} `steps`",
        )


def check_resume(config: Mapping, name: str, cells: Iterable[Cell]) -> None:
    """Raises GpufeedError where repeats are to go on where they were and a trainer keeps no checkpoints."""
    if config["experiments"][name].get("resume") and any(cell.trainer == "fastai" for cell in cells):
        raise GpufeedError(
            f"resume: true in experiment {name!r}, which has cells with trainer fastai",
            "trainers that keep checkpoints, plain and lightning",
            "give its cells with trainer fastai an experiment of their own, without `resume`",
        )


def check_models(config: Mapping, found: Plan) -> None:
    """Raises GpufeedError for a model that is to be kept or measured and could not be evaluated."""
    for name, key in itertools.product(config["experiments"], ("models", "inference")):
        for cell_id in kept_cells(config, found, name, key):
            dataset = found.cells[name][cell_id].dataset
            if not holds_out(config["sources"][dataset]):
                raise GpufeedError(
                    f"a cell of experiments.{name}.{key} whose dataset {dataset!r} holds no image out",
                    "a dataset with images that nothing trains on, to evaluate the model",
                    "name another block",
                )


def check_resized(config: Mapping, found: Plan) -> None:
    """Raises GpufeedError where images that are to be resized would come from what gives them as they are."""
    for dataset, place, remedy in wanted_as_they_are(config, found):
        size = config["sources"][dataset].get("resize")
        if size:
            raise GpufeedError(
                f"dataset {dataset!r} in {place}, whose images are brought to {size[0]} x {size[1]} (resize)",
                f"a dataset without `resize`: {place} takes images in the size of their files",
                remedy,
            )


def wanted_as_they_are(config: Mapping, found: Plan) -> Iterator[tuple[str, str, str]]:
    """(dataset, where, what else to do) of all that knows images in the size of their files alone."""
    if config["cache_decoder"] == "strips":
        for name, cells in found.cells.items():
            for cell in cells.values():
                if LOADERS[cell.loader].reads == "cache":
                    yield (
                        cell.dataset,
                        f"cache_decoder strips (experiments.{name}, loader {cell.loader})",
                        "take another cache_decoder than strips, or another dataset",
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


def holds_out(source: Mapping) -> bool:
    """Whether a source has images that nothing trains on."""
    if source["layout"] == "synthetic":
        return bool(evaluation_images(with_defaults(source.get("options", {}))))
    return source["layout"] != "mosaic"


def check_hyper(group: str, name: str, values: object, place: str) -> None:
    """Raises GpufeedError at the first value that the definition of a model, trainer or augment refuses."""
    if error := first_error("hyper", {group: {name: values}}):
        path = list(error.absolute_path)
        raise explain(error, place, path[:1] + path[2:])  # as overrides write it: without the name


def read_hyper(group: str, name: str) -> dict:
    """The checked defaults of one model, trainer or augment from config/hydra."""
    path = HYPER / group / f"{name}.yaml"
    place = str(path.relative_to(ROOT))
    try:
        values = read_yaml(path.read_text())
    except OSError as error:
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


def parse_override(text: str) -> tuple[str, str, object]:
    """'model.stem=cifar' as (group, key, value); the value is JSON where it can be, else a string."""
    target, _, value = text.partition("=")
    group, _, key = target.partition(".")
    try:
        return group, key, json.loads(value)
    except (ValueError, RecursionError):  # the latter for a thousand opening brackets
        return group, key, value


class Composer:
    """Hyper-parameters of a cell: the defaults of its model, trainer and augment, then its overrides."""

    def __init__(self):
        self.defaults: dict[tuple[str, str], dict] = {}
        self.composed: dict[tuple, dict] = {}  # checking each of 10,000 cells took 2.1 of 3.1 s

    def __call__(self, cell: Cell, where: str) -> dict:
        """{"model": ..., "trainer": ..., "augment": ...}; where: the cell's place in the config.

        Cells that differ in other axes share one dict. Raises GpufeedError for an override of nothing and
        for a value that the schema refuses.
        """
        key = (*(getattr(cell, group) for group in GROUPS), cell.overrides)
        if key not in self.composed:
            self.composed[key] = self._compose(cell, where)
        return self.composed[key]

    def _compose(self, cell: Cell, where: str) -> dict:
        hyper = {group: self._defaults(group, getattr(cell, group)) for group in GROUPS}
        for text in cell.overrides:
            group, key, value = parse_override(text)
            name = getattr(cell, group)
            if not hyper[group]:
                raise GpufeedError(
                    f"{text!r} in {where}", f"nothing: {group} {name!r} has no hyper-parameters", "remove it"
                )
            if key not in hyper[group]:
                raise unknown(f"{group} hyper-parameter", key, hyper[group], f"{where}: {text}")
            hyper[group][key] = value
            check_hyper(group, name, hyper[group], f"the overrides of {where}")
        if "heads" in hyper["model"]:  # a vision transformer of ours
            vit_options.check(hyper["model"], f"{where}, model {cell.model}")
        return hyper

    def _defaults(self, group: str, name: str) -> dict:
        """A copy of the defaults, read once."""
        if (group, name) not in self.defaults:
            self.defaults[group, name] = read_hyper(group, name)
        return dict(self.defaults[group, name])


def planned(config: Mapping) -> Plan:
    """Checks a config and returns all its cells."""
    check(config)
    found = plan(config, Composer())
    for name, cells in found.cells.items():
        check_evaluation(config, cells.values())
        check_resume(config, name, cells.values())
        planned_impact(config, name, cells.values())
        ceilings_plan.cells(config, found, name)
    check_models(config, found)
    check_resized(config, found)
    return found
