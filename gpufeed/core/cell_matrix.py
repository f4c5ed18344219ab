"""The matrix of a config: the cells of each experiment, and why any combination was left out.

Standard library only: the workflow imports this while it plans, on nodes that have nothing else. Nothing here
looks at the node, so that a login node without a GPU plans the GPU's cells.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpufeed.core.cells import PRECISIONS, SYNCHRONISE, Cell, impossible, impossible_as_composed, settle
from gpufeed.core.errors import GpufeedError, require_known, unknown
from gpufeed.core.references import FORMS, check, code_of, is_reference, short
from gpufeed.core.registry import AUGMENTS, DECODERS, DERIVED, LOADERS, MODELS, RECIPES, TRAINERS
from gpufeed.core.repeats import Auto, read_auto

QUANTITY = ("limit", "copies", "times")  # keys of a source: how many images are used, and how often


@dataclass(frozen=True)
class LeftOut:
    """Combinations of an experiment that cannot exist, and the reason."""

    experiment: str
    sentence: str
    combinations: int


@dataclass(frozen=True)
class Plan:
    """The cells of every experiment in the config, by experiment and cell id.

    repeats: of each cell, by experiment; the minimum for an experiment in `auto`. blocks: experiment -> block
    -> cell ids; a cell may be in several blocks.
    """

    cells: dict[str, dict[str, Cell]]
    left_out: list[LeftOut]
    repeats: dict[str, int]
    blocks: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    auto: dict[str, Auto] = field(default_factory=dict)

    def cells_for(self, config: Mapping, experiment: str, part: str) -> list[str]:
        """Return the ids of the cells in the blocks that a part of an experiment names, without ceilings.

        part: `models`, `inference` or `ceilings`. A block whose cells are all impossible under this config
        yields none. Raises GpufeedError for an unknown block, and for one that has only ceilings.
        """
        where, found = f"experiments.{experiment}.{part}.blocks", []
        for block in config["experiments"][experiment].get(part, {}).get("blocks", []):
            require_known("block", block, self.blocks[experiment], where)
            cells = self.blocks[experiment][block]
            ours = [cell for cell in cells if not LOADERS[self.cells[experiment][cell].loader].ceiling]
            if cells and not ours:
                raise GpufeedError(
                    f"block {block!r} in {where}, which has no cell but the limit",
                    "a block with a cell of another loader: replay, the limit, sees one batch only",
                    "name another block",
                )
            found += ours
        return list(dict.fromkeys(found))

    @property
    def most_repeats(self) -> int:
        """The largest number of repeats that a cell can reach."""
        return max([*self.repeats.values(), *(auto.most for auto in self.auto.values())])


def combinations(block: Mapping) -> Iterator[dict]:
    """Yield the cross product of a block's lists as {axis: value}; a single value is a list of one."""
    axes = {axis: (values if isinstance(values, list) else [values]) for axis, values in block.items()}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def flat(overrides: Iterable[str | list[str]]) -> tuple[str, ...]:
    """Return the axis `overrides` as one flat tuple; a nested list, such as a YAML anchor, is unpacked."""
    return tuple(text for entry in overrides for text in ((entry,) if isinstance(entry, str) else entry))


def check_names(axes: Mapping, where: str, datasets) -> None:
    """Raise GpufeedError for a value that is not among the choices of its axis."""
    choices = {
        "dataset": datasets,
        "loader": LOADERS,
        "augment": AUGMENTS,
        "recipe": RECIPES,
        "decoder": DECODERS,
        "model": MODELS,
        "trainer": TRAINERS,
        "precision": PRECISIONS,
        "synchronise": SYNCHRONISE,
    }
    for axis, allowed in choices.items():
        if axis in FORMS and is_reference(axes.get(axis)):
            check(axis, axes[axis], where)
            allowed[axes[axis]]  # raises where a loader's entry is wrong
        elif axis in axes and axes[axis] not in allowed:
            raise unknown(axis, axes[axis], [*allowed, *FORMS.get(axis, ())], where)
    for axis in ("dataset", "loader"):
        if axis not in axes:
            raise GpufeedError(
                f"no {axis} in {where}", f"a list of {axis}s", f"add `{axis}: [...]` to the block"
            )


def name_sources(config: Mapping) -> None:
    """Add a source for each Dataset reference in a block, and replace the reference by that source's name."""
    for experiment in config["experiments"].values():
        for block in (experiment.get("common", {}), *experiment["blocks"].values()):
            given = block.get("dataset", [])
            names = given if isinstance(given, list) else [given]
            for name in filter(is_reference, names):
                check("dataset", name, "a block")
                config["sources"].setdefault(short(name), {"layout": name})
            if any(map(is_reference, names)):
                block["dataset"] = [short(name) for name in names]


def quantity(source: Mapping) -> dict[str, int]:
    """Return the QUANTITY keys that a source sets."""
    return {key: source[key] for key in QUANTITY if source.get(key) is not None}


def source_options(config: Mapping, dataset: str) -> dict:
    """Return the options of a source; `of` names the stand-in where `use_instead` has one."""
    source = config["sources"][dataset]
    options = dict(source.get("options", {}))
    if source["layout"] in DERIVED:
        options["of"] = config["use_instead"].get(options["of"], options["of"])
    return options


def content(config: Mapping, dataset: str) -> dict:
    """Return what identifies the images of a dataset: layout, checksums, options and quantity, without URLs.

    A dataset made of another one includes the content of that one, so that other images give another cell.
    """
    source, options = config["sources"][dataset], source_options(config, dataset)
    files = {file["name"]: file["sha256"] for file in source.get("files", [])}
    resize = {"resize": list(source["resize"])} if source.get("resize") else {}
    tiles = {"tiles": content(config, options["of"])} if source["layout"] in DERIVED else {}
    code = {"code": code_of([source["layout"]])} if is_reference(source["layout"]) else {}
    made_of = {"layout": source["layout"], "files": files, "options": options}
    return {**made_of, **resize, **quantity(source), **tiles, **code}


def crossed(config: Mapping, name: str) -> Iterator[tuple[str, Cell]]:
    """Yield (block, cell) for all combinations of an experiment, impossible ones too, without
    hyper-parameters.
    """
    experiment = config["experiments"][name]
    for block_name, block in experiment["blocks"].items():
        for axes in combinations({**experiment.get("common", {}), **block}):
            check_names(axes, f"experiments.{name}.blocks.{block_name}", config["sources"])
            axes["dataset"] = config["use_instead"].get(axes["dataset"], axes["dataset"])
            axes["overrides"] = flat(axes.get("overrides") or ())
            axes["source"] = content(config, axes["dataset"])
            cell = Cell(experiment=name, device=config["device"], seed=config["seed"], **axes)
            yield block_name, settle(cell)


def plan(config: Mapping, compose=lambda cell, where: {}) -> Plan:
    """Return the plan of a checked config.

    compose: (cell, its place in the config) -> its hyper-parameters. Raises GpufeedError for an unknown name,
    for an unknown experiment in `run`, and for an experiment without a possible cell.
    """
    experiments = config["experiments"]
    for name in config["run"]:
        require_known("experiment", name, experiments, "run")
    cells: dict[str, dict[str, Cell]] = {}
    blocks: dict[str, dict[str, list[str]]] = {}
    left_out: dict[tuple[str, str], int] = {}
    for name, experiment in experiments.items():
        cells[name], blocks[name] = {}, {block: [] for block in experiment["blocks"]}
        for block_name, cell in crossed(config, name):
            sentence = impossible(cell)
            if not sentence:
                cell = replace(cell, hyper=compose(cell, f"experiments.{name}.blocks.{block_name}"))
                sentence = impossible_as_composed(cell)
            if sentence:
                left_out[name, sentence] = left_out.get((name, sentence), 0) + 1
                continue
            cell_id = cell.id
            cells[name][cell_id] = cell
            blocks[name][block_name].append(cell_id)
        if not cells[name]:
            raise GpufeedError(
                f"experiment {name!r} has no possible cell",
                "at least one",
                "change its blocks: "
                + "; ".join(sentence for (owner, sentence) in left_out if owner == name),
            )
    asked = {name: experiment.get("repeats", config["repeats"]) for name, experiment in experiments.items()}
    auto = {name: found for name, value in asked.items() if (found := read_auto(value, name))}
    return Plan(
        cells,
        [LeftOut(name, sentence, count) for (name, sentence), count in left_out.items()],
        {name: auto[name].least if name in auto else value for name, value in asked.items()},
        blocks,
        auto,
    )
