"""The matrix of a config: its cells, experiment by experiment, and a sentence for every combination left out.

Standard library only: the workflow imports this while it plans, on nodes that have nothing else.
Nothing here looks at the node, so that a login node without a GPU plans the GPU's cells.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpufeed.core.cells import PRECISIONS, SYNCHRONISE, Cell, impossible, impossible_as_composed, settle
from gpufeed.core.errors import GpufeedError, require_known, unknown
from gpufeed.core.references import FORMS, check, code_of, is_reference, short
from gpufeed.core.registry import AUGMENTS, DECODERS, DERIVED, LOADERS, MODELS, RECIPES, TRAINERS
from gpufeed.core.repeats import Auto, read_auto


@dataclass(frozen=True)
class LeftOut:
    """Combinations of an experiment that cannot exist, and why."""

    experiment: str
    sentence: str
    combinations: int


@dataclass(frozen=True)
class Plan:
    """The cells of every experiment that the config names, by experiment and cell id.

    repeats: of a cell, by experiment; the fewest of one in `auto`, which has more if its numbers need them.
    blocks: experiment -> block -> the ids of its cells, of which another block may have some too.
    """

    cells: dict[str, dict[str, Cell]]
    left_out: list[LeftOut]
    repeats: dict[str, int]
    blocks: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    auto: dict[str, Auto] = field(default_factory=dict)

    def cells_for(self, config: Mapping, experiment: str, part: str) -> list[str]:
        """Return the ids of the cells in the blocks that a part of an experiment names, without ceilings.

        part: `models`, `inference` or `ceilings`. A block whose cells are all impossible under this config
        has none. Raises GpufeedError for a block that there is not, and for one that has ceilings only.
        """
        where, found = f"experiments.{experiment}.{part}.blocks", []
        for block in config["experiments"][experiment].get(part, {}).get("blocks", []):
            require_known("block", block, self.blocks[experiment], where)
            cells = self.blocks[experiment][block]
            ours = [cell for cell in cells if not LOADERS[self.cells[experiment][cell].loader].ceiling]
            if cells and not ours:
                raise GpufeedError(
                    f"block {block!r} in {where}, which has no cell but ceilings",
                    "a block with a cell that is no ceiling: a ceiling sees one batch only",
                    "name another block",
                )
            found += ours
        return list(dict.fromkeys(found))

    @property
    def most_repeats(self) -> int:
        """The most that any cell may come to have."""
        return max([*self.repeats.values(), *(auto.most for auto in self.auto.values())])


def combinations(block: Mapping) -> Iterator[dict]:
    """The cross product of a block's lists, as {axis: value}; a single value counts as a list of one."""
    axes = {axis: (values if isinstance(values, list) else [values]) for axis, values in block.items()}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def flat(overrides: Iterable[str | list[str]]) -> tuple[str, ...]:
    """One value of the axis: a list among the overrides, as a YAML anchor makes it, is its entries."""
    return tuple(text for entry in overrides for text in ((entry,) if isinstance(entry, str) else entry))


def check_names(axes: Mapping, where: str, datasets) -> None:
    """Raises GpufeedError for a value that names nothing."""
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
    """Make a source of each reference that a block has as its dataset, and let the block name that."""
    for experiment in config["experiments"].values():
        for block in (experiment.get("common", {}), *experiment["blocks"].values()):
            given = block.get("dataset", [])
            names = given if isinstance(given, list) else [given]
            for name in filter(is_reference, names):
                check("dataset", name, "a block")
                config["sources"].setdefault(short(name), {"layout": name})
            if any(map(is_reference, names)):
                block["dataset"] = [short(name) for name in names]


QUANTITY = ("limit", "copies", "times")  # keys of a source: how many of its images are used, and how often


def quantity(source: Mapping) -> dict[str, int]:
    """Return the QUANTITY of a source, those keys alone that it sets."""
    return {key: source[key] for key in QUANTITY if source.get(key) is not None}


def source_options(config: Mapping, dataset: str) -> dict:
    """The options of a source; one made of another takes the stand-in that `use_instead` names."""
    source = config["sources"][dataset]
    options = dict(source.get("options", {}))
    if source["layout"] in DERIVED:
        options["of"] = config["use_instead"].get(options["of"], options["of"])
    return options


def content(config: Mapping, dataset: str) -> dict:
    """What a dataset is made of: layout, checksums, options and quantity, not where its files come from.

    One made of another dataset has that of the other too, so that other images are another cell.
    """
    source, options = config["sources"][dataset], source_options(config, dataset)
    files = {file["name"]: file["sha256"] for file in source.get("files", [])}
    resize = {"resize": list(source["resize"])} if source.get("resize") else {}
    tiles = {"tiles": content(config, options["of"])} if source["layout"] in DERIVED else {}
    code = {"code": code_of([source["layout"]])} if is_reference(source["layout"]) else {}
    made_of = {"layout": source["layout"], "files": files, "options": options}
    return {**made_of, **resize, **quantity(source), **tiles, **code}


def crossed(config: Mapping, name: str) -> Iterator[tuple[str, Cell]]:
    """(block, cell) of all combinations of an experiment, impossible ones too; without hyper-parameters."""
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
    """All cells of a checked config.

    compose: (a cell, where it stands in the config) -> its hyper-parameters. Raises GpufeedError
    for a name that does not exist and for an experiment in `run` that is not defined.
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
                "see the sentences: "
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
