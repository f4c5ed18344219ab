"""From a command line of `python -m gpufeed.train`, which Hydra composes, to a cell, and back.

The workflow composes cells without Hydra while it plans (gpufeed.core.config.Composer). Its jobs take the
planned cell and log the command that trains it standalone. A standalone training leaves its cell as a YAML
file beside its weights.
"""

import json
import logging
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpufeed.core import vit_options
from gpufeed.core.cell_matrix import QUANTITY, check_names, crossed, quantity, source_options
from gpufeed.core.cells import AXES, LATER, Cell, copied, impossible, impossible_as_composed
from gpufeed.core.config import (
    CONFIG,
    GROUPS,
    HYPER,
    Composer,
    check_batches,
    check_evaluation,
    check_hyper,
    read_hyper,
    settled,
)
from gpufeed.core.config_schema import explain, first_error, read_yaml
from gpufeed.core.config_sources import check_of, check_source
from gpufeed.core.errors import GpufeedError, require_known, unknown
from gpufeed.core.file_writes import write_whole
from gpufeed.core.plan_plugins import ask, parse_override, question, references_of
from gpufeed.core.references import FORMS, is_reference, short
from gpufeed.core.registry import DERIVED

log = logging.getLogger("gpufeed")
ADVICE = "To append to your config"  # in Hydra's messages; we refuse added keys
PRIMARY = "train"  # config/hydra/train.yaml
STANDALONE = "train"  # the experiment of a standalone training
HERE = "the command line"
ACCELERATORS = ("auto", "gpu", "cuda", "mps", "cpu")
PLACE = ("accelerator", "devices", "num_nodes")  # axes in the trainer group, no hyper-parameters
# axes that are not keys of the primary config; python -m gpufeed.tune tunes `settings`
ELSEWHERE = {"dataset", *GROUPS, "overrides", "devices", "nodes", "settings"}
OWN_AXES = AXES - ELSEWHERE
# keys of the workflow's config -> their names here
SHARED = {key: key for key in ("seed", "tracking", "archives", "cache_decoder", "max_quarantined_share")}
SHARED |= {"data_form": "data_form", "least_download_kb_s": "least_download_kb_s"}
SHARED |= {"data": "data_folder"}  # `data` is a group
PLAIN_WORD = re.compile(r"(?!(null|true|false|nan|inf)$)[A-Za-z][\w.-]*", re.IGNORECASE)
YAML_WIDTH = 110
OPTIONS = "options."  # prefix of a Dataset's options in the group `data`
LOADER_OPTIONS = "loader_options"  # Hydra's key for options of a referenced loader; `loader` is no group


@dataclass(frozen=True)
class Composed:
    """What Hydra composed. values: plain data, interpolations resolved.

    choices: group -> chosen name, `data` among them. texts: the overrides, as typed.
    """

    values: dict[str, Any]
    choices: Mapping[str, str]
    texts: tuple[str, ...]


@cache
def shipped() -> Mapping:
    """Return config/config.yaml, whose sources are the choices of the group `data`. Do not change it."""
    return read_yaml((CONFIG / "config.yaml").read_text(), str(CONFIG / "config.yaml"))


@cache
def read_primary() -> Mapping:
    """Return the primary config's own keys, without its groups. Do not change them."""
    path = HYPER / f"{PRIMARY}.yaml"
    return read_yaml(path.read_text(), str(path))


def row(config: Mapping, dataset: str) -> dict:
    """Return a source as an option of the group `data`, with the stand-in that is in use."""
    source = config["sources"][dataset]
    unset = {"files": [], **dict.fromkeys(("resize", *QUANTITY))}
    return {**unset, **source, "options": source_options(config, dataset)}


def offer(rows: Mapping[str, dict], group: str = "data") -> None:
    """Register rows as choices of a Hydra group beside its files, in this process."""
    from hydra.core.config_store import ConfigStore

    for name, row in rows.items():
        ConfigStore.instance().store(group=group, name=name, node=row, provider="gpufeed")


def offer_references(arguments: Iterable[str]) -> None:
    """Register the references of a command line, with their options, as choices of their groups."""
    parsed = [parse_override(text) for text in arguments]
    for group, key, name in parsed:
        if key or not is_reference(name):
            continue
        given = {key: value for of, key, value in parsed if of == group and key}
        if group in GROUPS:
            offer({name: given}, group)
        elif group == "data":
            named = {key: value for key, value in given.items() if key.startswith(OPTIONS)}
            options = {key.removeprefix(OPTIONS): value for key, value in named.items()}
            offer({name: row({"sources": {name: {"layout": name, "options": options}}}, name)})


def for_hydra(arguments: Iterable[str]) -> list[str]:
    """Return a command line as Hydra takes it: `loader.NAME=VALUE` is renamed for a loader by reference.

    Raises GpufeedError for options of any other loader.
    """
    texts = list(arguments)
    of_loader = {key: value for group, key, value in map(parse_override, texts) if group == "loader"}
    if not is_reference(of_loader.pop("", None)):
        for option in of_loader:
            raise GpufeedError(
                f"loader.{option} on {HERE}",
                "options only with a loader by reference, such as loader=my_loader.py:Cached",
                "remove it, or name such a loader",
            )
        return texts
    return [re.sub(r"^loader\.", f"+{LOADER_OPTIONS}.", text) for text in texts]


def from_hydra(values: Mapping[str, Any], choices: Mapping[str, str], texts: Iterable[str]) -> Composed:
    """Return what Hydra composed of a command line, with that line as it was typed (see `for_hydra`)."""
    kept = {key: value for key, value in values.items() if key != LOADER_OPTIONS}
    typed = (re.sub(rf"^\+{LOADER_OPTIONS}\.", "loader.", text) for text in texts)
    return Composed(kept, dict(choices), tuple(typed))


def composed(arguments: Iterable[str]) -> Composed:
    """Return what Hydra composes of these arguments; raise GpufeedError if it refuses them."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    texts = for_hydra(arguments)
    try:
        with initialize_config_dir(str(HYPER), job_name=PRIMARY, version_base="1.3"):
            found = compose(PRIMARY, overrides=texts, return_hydra_config=True)
        values = {key: found[key] for key in found if key != "hydra"}
        plain = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
        return from_hydra(plain, found.hydra.runtime.choices, texts)
    except (HydraException, OmegaConfBaseException) as error:
        raise refused(error) from error


def refused(error: Exception) -> GpufeedError:
    """Return the GpufeedError for an error of Hydra or OmegaConf."""
    options, missing = getattr(error, "options", None), getattr(error, "missing_cfg_file", None)
    if options and missing:
        group, _, name = missing.rpartition("/")
        forms = FORMS.get("dataset" if group == "data" else group, ())
        return unknown(group, name, [*options, *forms], HERE)
    key, node = (getattr(error.__cause__, name, None) for name in ("full_key", "parent_node"))
    if key and node:  # an unknown key, which Hydra advises to add
        parent = key.rpartition(".")[0]
        known = {f"{parent}.{name}" if parent else name for name in node} - {"hydra"}
        return unknown("key", key, known | namesakes(key, node._get_root()), HERE)
    text, override = str(error).split(ADVICE)[0], getattr(error, "override", None) or ""
    said = text if override in text else f"{override}: {text}"
    return GpufeedError(
        " ".join(said.split()), "overrides that config/hydra has", "see python -m gpufeed.train --help"
    )


def namesakes(key: str, root: Mapping) -> set[str]:
    """Return the other places where the last part of a key exists, such as `trainer.epochs` for `epochs`."""
    last = key.rpartition(".")[2]
    nodes = {"": root, **{f"{name}.": root._get_node(name) for name in ("data", *GROUPS)}}
    return {path + last for path, node in nodes.items() if isinstance(node, Mapping) and last in node}


def cell_from(found: Composed, config: Mapping, count: Callable[[str], int] = lambda device: 1) -> Cell:
    """Return the checked cell behind a composed command line.

    config: its `sources` describe the data. count: returns the number of devices that `devices=auto` means
    for trainer lightning. Raises GpufeedError for an invalid value, and for a combination that cannot exist.
    """
    for group in ("data", *GROUPS):
        if not isinstance(found.choices.get(group), str):  # a list of several
            raise GpufeedError(
                f"not one {group} on {HERE}", f"one option of the group {group}", f"--multirun {group}=A,B"
            )
    values, dataset = found.values, short(found.choices["data"])
    known = {"data", *GROUPS, *read_primary()} - {"defaults", "hydra"}
    if extra := sorted(set(values) - known):  # such as +epoch=5
        raise unknown("key", extra[0], known, HERE)
    hyper = {group: dict(values[group] or {}) for group in GROUPS}
    place = {key: hyper["trainer"].pop(key) for key in PLACE}
    device = device_of(place["accelerator"])
    axes = {key: values[key] for key in sorted(OWN_AXES)}
    axes |= {"dataset": dataset, **{group: found.choices[group] for group in GROUPS}}
    axes["devices"] = devices_of(place["devices"], device, axes["trainer"], count)
    axes["nodes"] = number("num_nodes", place["num_nodes"], "set how many nodes of a Slurm job to use")
    trial = trial_of(config, dataset, values, axes, device)
    ((_, cell),) = crossed(trial, STANDALONE)
    for group in GROUPS:
        check_hyper(group, getattr(cell, group), hyper[group], HERE)
    if "heads" in hyper["model"] and not is_reference(cell.model):  # a vision transformer of ours
        vit_options.check(hyper["model"], f"{HERE}, model {cell.model}")
    hyper = settled(hyper, HERE)
    cell = replace(cell, overrides=changes_of(found.texts))
    if references := references_of(cell):
        hyper = Composer(trial, ask(question(trial, cell, kind) for kind in references))(cell, HERE)
    cell = replace(cell, hyper=hyper)
    if sentence := impossible(cell) or impossible_as_composed(cell):
        raise GpufeedError(sentence, "a combination that can exist", f"change one of the two on {HERE}")
    check_evaluation(trial, [cell])
    check_batches(trial, [cell])
    return cell


def trial_of(config: Mapping, dataset: str, values: Mapping, axes: dict, device: str) -> dict:
    """Return the command line as a checked config of one experiment with one cell."""
    source = {key: value for key, value in values["data"].items() if value not in (None, {}, [])}
    blocks = {"title": STANDALONE, "question": "", "blocks": {"hand": axes}}
    trial = {**config, "device": device, "run": [STANDALONE], "use_instead": {}}
    trial |= {ours: values[theirs] for ours, theirs in SHARED.items()}
    # the schema would refuse a reference as a name
    checked = STANDALONE if is_reference(source["layout"]) else dataset
    trial |= {"sources": {**config["sources"], checked: source}, "experiments": {STANDALONE: blocks}}
    for axis, value in axes.items():
        if isinstance(value, list):  # a block of the config may have several
            raise GpufeedError(
                f"{axis} {value} on {HERE}", "one value", f"--multirun {axis}={','.join(map(str, value))}"
            )
    if error := first_error("config", trial):
        raise explain(error, HERE, as_typed(list(error.absolute_path)), lists=False)
    trial["sources"] = {**config["sources"], dataset: source}
    check_names(axes, HERE, trial["sources"])
    check_source(source, "data")
    if source["layout"] in DERIVED:
        check_of(trial, dataset)
    return trial


def as_typed(path: list) -> list:
    """Translate the path of a value in the trial config to how the command line spells it."""
    if path[:1] == ["experiments"]:
        return path[4:]  # experiments, its name, blocks, hand
    if path[:1] == ["sources"]:
        return ["data", *path[2:]]
    return [SHARED.get(path[0], path[0]), *path[1:]] if path else path


def device_of(accelerator: object) -> str:
    """Return the device for `trainer.accelerator`; `gpu` is mps on a Mac, cuda elsewhere."""
    require_known("trainer.accelerator", accelerator, ACCELERATORS, HERE)
    if accelerator == "gpu":
        return "mps" if sys.platform == "darwin" else "cuda"
    return accelerator


def devices_of(asked: object, device: str, trainer: str, count: Callable[[str], int]) -> int:
    """Return the number behind `trainer.devices`."""
    if asked == "auto":
        return count(device) if trainer == "lightning" else 1
    return number("devices", asked, "give a number; CUDA_VISIBLE_DEVICES chooses which", "auto, or ")


def number(key: str, asked: object, remedy: str, also: str = "") -> int:
    """Return a positive number of the trainer's config. also: what else the key may be, for the error."""
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise GpufeedError(f"trainer.{key} {asked!r} on {HERE}", f"{also}a number of 1 or more", remedy)
    return asked


def changes_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the hyper-parameter overrides among those of a command line, as a cell keeps them."""
    pattern = re.compile(rf"(?:loader|{'|'.join(GROUPS)})\.(?!(?:{'|'.join(PLACE)})=)")
    return tuple(text for text in texts if pattern.match(text))


def arguments_of(cell: Cell) -> list[str]:
    """Return the arguments of `python -m gpufeed.train` for the cell, without those of its data."""
    primary = read_primary()
    said = [f"data={cell.dataset}", *(f"{group}={getattr(cell, group)}" for group in GROUPS)]
    said += [f"trainer.accelerator={cell.device}", f"trainer.devices={cell.devices}"]
    said += [f"trainer.num_nodes={cell.nodes}"] if cell.nodes > 1 else []
    for axis in primary:
        if axis in OWN_AXES | {"seed"}:
            # None without workers: `settle` removes it anyway
            value = getattr(cell, axis)
            if value != primary[axis] and not (axis == "prefetch_factor" and value is None):
                said.append(f"{axis}={hydra_value(value)}")
    return [*said, *cell.overrides]


def hydra_value(value: object) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, str) and PLAIN_WORD.fullmatch(value):
        return value
    return json.dumps(value)


def made_of(planned: Mapping, known: Mapping | None) -> list[str] | None:
    """Return overrides that turn the known source into the planned one; None if that takes a file."""
    if known is None:
        return None
    (ours, now), (theirs, before) = map(parted, (planned, known))
    if ours != theirs or set(before) - set(now):
        return None
    changed = {key: value for key, value in now.items() if key not in before or before[key] != value}
    return [f"++data.{key}={hydra_value(value)}" for key, value in changed.items()]


def parted(source: Mapping) -> tuple[dict, dict]:
    """Split a source: without the URLs of its files, and its options and quantity by key."""
    files = [{key: file[key] for key in file if key != "urls"} for file in source["files"]]
    rest = {key: value for key, value in source.items() if key not in ("options", *QUANTITY)}
    options = {f"options.{key}": value for key, value in source["options"].items()}
    return {**rest, "files": files}, options | quantity(source)


def planned_cell(job: Any) -> dict:
    """Return the cell of a job (Cell.asdict), and log the command that trains it standalone.

    job: the `snakemake` of a script; its param `cell` is the planned one (Cell.identity).
    """
    cell = restored(job.params.cell)
    log.info("%s", standalone_command(cell, job.config))
    return cell.asdict()


def restored(identity: Mapping) -> Cell:
    """Return the cell with this identity, with the LATER fields that were removed from it."""
    cell = Cell(**{**copied(dict(identity)), "overrides": tuple(identity["overrides"])})
    for *path, name, before in LATER:
        if path:  # a hyper-parameter, of the models, trainers and augments that have it
            _, group = path
            if name in read_hyper(group, getattr(cell, group)):
                cell.hyper[group].setdefault(name, before)
    return cell


def standalone_command(cell: Cell, config: Mapping) -> str:
    """Return the command that trains a planned cell standalone. config: of the run that planned it."""
    known, source, said = shipped(), row(config, cell.dataset), arguments_of(cell)
    if is_reference(layout := source["layout"]):
        known, said = {"sources": {cell.dataset: {"layout": layout}}}, [f"data={layout}", *said[1:]]
    changes = made_of(source, row(known, cell.dataset) if cell.dataset in known["sources"] else None)
    return in_words(cell, [*said, *(changes or [])], source if changes is None else None)


def in_words(cell: Cell, arguments: list[str], source: Mapping | None) -> str:
    """Return the comment of a cell's file. source: of data that only this run's config describes."""
    lines = [f"Cell {cell.id} of experiment {cell.experiment}. Standalone:", "  python -m gpufeed.train \\"]
    lines += [f"    {shlex.quote(argument)} \\" for argument in arguments]
    lines[-1] = lines[-1].removesuffix(" \\")
    if source is not None:
        lines += [f"with --config-dir FOLDER, where FOLDER/data/{cell.dataset}.yaml is"]
        lines += [f"  {line}" for line in yaml.safe_dump(dict(source), sort_keys=False).splitlines()]
    return "\n".join(lines)


def write_cell(path: str | Path, cell: Cell, comment: str) -> None:
    """Write the cell, whole or not at all, in the order of its fields; comment: lines for the reader."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    text = head + yaml.safe_dump(cell.asdict(), sort_keys=False, width=YAML_WIDTH)
    write_whole(path, text)


def read_cell(path: str | Path) -> dict:
    """Return the cell as Cell.asdict gives it; raise GpufeedError for a missing or invalid file."""
    fields = Cell.__dataclass_fields__
    try:
        cell = read_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise unreadable_cell(path, str(error)) from error
    if isinstance(cell, dict):  # fields added since have their old value
        cell = copied({name: before for name, before, *deeper in LATER if not deeper}) | cell
    if not isinstance(cell, dict) or set(cell) != set(fields):
        raise unreadable_cell(path, "other keys than a cell has")
    return cell


def unreadable_cell(path: str | Path, why: str) -> GpufeedError:
    return GpufeedError(
        f"no readable cell at {path} ({why})",
        "cell.yaml as python -m gpufeed.train writes it",
        "put it back, or name another folder",
    )
