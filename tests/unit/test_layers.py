"""The rooms of gpufeed: imports go down its layers, or stay in one without a circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from data_fixtures import REPOSITORY

LAYERS = {
    "core": 0,
    "system": 1,
    "plugins": 1,
    "native": 2,
    "decoders": 3,
    "datasets": 3,
    "stores": 4,
    "augment": 4,
    "models": 4,
    "loaders": 5,
    "training": 6,
    "benchmarks": 7,
    "advice": 8,
    "cluster": 8,
    "tracking": 8,
    "report": 9,
    "watch": 10,
    "workflow": 1,  # of core alone
    "cli": 11,
    "": 12,  # the package itself
    "__main__": 12,
    "train": 12,
    "predict": 12,
    "compare": 12,
    "tune": 12,
    "preflight": 12,
    "job": 12,
}
WITH_SNAKEMAKE = ("workflow", "job")
ALONE = {
    "workflow": {"core"},
    "watch": {"core", "system", "training", "report", "advice"},
}  # what a room may import


def modules(root: Path) -> dict[str, Path]:
    """The modules of the package by name, such as gpufeed.core.cells."""
    paths = {path.relative_to(root).with_suffix(""): path for path in sorted(root.rglob("gpufeed/**/*.py"))}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module of every import in a file, those in functions and for annotations too."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, inner if (inner := f"{base}.{alias.name}") in known else base


def room(module: str) -> str:
    """The room of a module, or its own name where it stands at the root of the package."""
    return (*module.split("."), "")[1]


def faults(root: Path) -> list[str]:
    """What is wrong with the imports of the package below `root`, a sentence each."""
    known, graph, rooms, wrong = modules(root), {}, {}, []
    for name, path in known.items():
        own, where = room(name), path.relative_to(root)
        if own not in LAYERS:
            wrong.append(f"{where} is in no room of CONTRIBUTING.md: move it into one of {', '.join(LAYERS)}")
            continue
        graph[name] = set()
        for line, target in imports(name, path, known):
            first, other = target.split(".")[0], room(target)
            if first == "snakemake" and own not in WITH_SNAKEMAKE:
                wrong.append(
                    f"{where}:{line} imports snakemake, which only {' and '.join(WITH_SNAKEMAKE)} may"
                )
            if first != "gpufeed" or other not in LAYERS:
                continue
            if target in known and target != name:
                graph[name].add(target)
            rooms.setdefault(own, set()).update({other} - {own})
            if LAYERS[other] > LAYERS[own]:
                wrong.append(
                    f"{where}:{line} of layer {LAYERS[own]} imports {target} of layer {LAYERS[other]}"
                )
            elif own in ALONE and other not in {own, *ALONE[own]}:
                wrong.append(f"{where}:{line} imports {target}: {own} imports {', '.join(ALONE[own])} alone")
    for what, edges in {"modules": graph, "rooms": rooms}.items() if not wrong else ():
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            return [f"{what} import each other in a circle: {' <- '.join(error.args[1])}"]
    return wrong


def test_imports_go_down_the_layers_without_a_circle():
    assert faults(REPOSITORY) == []


PLANTED = {
    "up": (
        {"core/a.py": "def f():\n    import gpufeed.native.k"},
        "core/a.py:2 of layer 0 imports gpufeed.native.k",
    ),
    "up by an annotation": (
        {"system/b.py": "if TYPE_CHECKING:\n    from gpufeed.native import kernel"},
        "system/b.py:2 of layer 1 imports gpufeed.native of layer 2",
    ),
    "relative": (
        {"core/a.py": "from ..native import k"},
        "core/a.py:1 of layer 0 imports gpufeed.native of layer 2",
    ),
    "a circle": (
        {"core/a.py": "from gpufeed.core import c", "core/c.py": "from gpufeed.core.a import A"},
        "modules import each other in a circle: gpufeed.core.",
    ),
    "a circle of rooms": (
        {
            "models/m.py": "from gpufeed.augment.a import A",
            "augment/a.py": "",
            "augment/b.py": "import gpufeed.models.n",
            "models/n.py": "",
        },
        "rooms import each other in a circle: ",
    ),
    "no room": ({"loose.py": ""}, "gpufeed/loose.py is in no room"),
    "snakemake": ({"report/r.py": "from snakemake.utils import x"}, "report/r.py:1 imports snakemake"),
    "more than core": (
        {"workflow/w.py": "import gpufeed.system.b"},
        "workflow/w.py:1 imports gpufeed.system.b",
    ),
}


@pytest.mark.parametrize("how", PLANTED)
def test_a_planted_import_is_named_with_file_and_line(tmp_path, how):
    files, sentence = PLANTED[how]
    fine = {
        "core/a.py": "",
        "core/c.py": "import json",
        "system/b.py": "from gpufeed.core import a",
        "job.py": "",
    }
    for name, text in {**fine, **files}.items():
        (tmp_path / "gpufeed" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "gpufeed" / name).write_text(text)
    (found,) = faults(tmp_path)
    assert sentence in found
