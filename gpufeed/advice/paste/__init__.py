"""The code to paste: a complete script that loads images as a cell did, in its library's own API.

A loader's template is NAME.py.j2; those whose names begin with `_` are shared. A template may import modules
that only some settings need: imports are collected, and unused ones are left out.
"""

import ast
import json
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jinja2

from gpufeed.core.config import read_hyper
from gpufeed.core.errors import GpufeedError
from gpufeed.core.image_listing import is_image, names_below
from gpufeed.core.references import is_reference
from gpufeed.core.registry import AUGMENTS, LAYOUTS, LOADERS
from gpufeed.datasets.image_folder import TRAIN, found_in

TEMPLATES = Path(__file__).parent
BY_TORCH = ("torchvision_cpu", "torchcodec_cpu")  # decoders whose images are tensors
WIDTH = 110  # of a line
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# augments of whole batches in plain torch; the others use this project's kernels
IN_TORCH = ("none", "torch")


def script(cell: Mapping[str, Any], cache: str | None = None, folder: str | None = None) -> str | None:
    """Return a script that loads a folder of class folders as a cell did; None for a ceiling.

    cell: Cell.asdict() with the values found for `auto`, or a row of `tables.cells` with the record's
    `source`. cache: decoder and version of the cache that the cell read. folder: of the class folders, as
    `class_folders` returns it; by default the one that the workflow has prepared. For a Dataset by reference,
    and for a loader or an augment without a template, the script is a sentence that says what was measured.
    """
    loader = cell["loader"]
    if not is_reference(loader) and loader in LOADERS and LOADERS[loader].ceiling:
        return None
    if sentence := not_expressed(cell):
        return f"# {sentence}\n"
    text = environment().get_template(f"{loader}.py.j2").render(settings(cell, cache, folder))
    return with_imports(text)


def not_expressed(cell: Mapping[str, Any]) -> str | None:
    """Return a sentence about a cell that has no template; None if it has one."""
    if is_reference(layout := plain(cell.get("source")).get("layout")):
        return f"Measured with the Dataset {layout}, by loader {cell['loader']}: use it as it is."
    if is_reference(loader := cell["loader"]):
        return f"Measured with your own loader, {loader}: use it as it is."
    if is_reference(augment := cell["augment"]):
        return f"Measured with your own augment, {augment}, behind loader {loader}: use both as they are."
    if not (TEMPLATES / f"{loader}.py.j2").is_file() or augment not in AUGMENTS:
        return f"This version has no code to paste for loader {loader} with augment {augment}."
    return None


def settings(cell: Mapping[str, Any], cache: str | None, folder: str | None) -> dict[str, Any]:
    """Return the values of templates."""
    hyper, source = plain(cell["hyper"]), plain(cell.get("source"))
    mean, std = mean_and_std(hyper, source)
    augment = cell["augment"]
    usual = read_hyper("augment", augment)
    options = usual | hyper.get("augment", {})
    device, workers = cell["device"], number(cell["workers"]) or 0
    device = "cuda" if device in (None, "auto") else device
    recipe = hyper.get("recipe") or None
    if recipe:
        recipe = recipe | {name: tuple(recipe[name]) for name in ("scale", "ratio")}
    return {
        "loader": cell["loader"],
        "folder": folder or f"data/{cell['dataset']}/images/train",
        "batch_size": int(cell["batch_size"]),
        "device": device,
        "cuda": device == "cuda",
        "seed": number(cell.get("seed")) or 0,
        "workers": workers,
        "prefetch_factor": number(cell["prefetch_factor"]),
        "pin_memory": bool(cell["pin_memory"]) and device == "cuda",
        "persistent_workers": bool(cell["persistent_workers"]) and workers > 0,
        "decoder": cell.get("decoder") or "pillow",
        "by_torch": cell.get("decoder") in BY_TORCH,
        "cache_decoder": (cache or "simplejpeg").split()[0],
        "hw_decoder_load": number(cell.get("hw_decoder_load"), float),
        "recipe": recipe,
        "resize": tuple(source["resize"]) if source.get("resize") else None,
        "augment": augment,
        "options": options,
        "changed": {name: value for name, value in options.items() if value != usual.get(name)},
        "reads": LOADERS[cell["loader"]].reads,
        "in_torch": augment in IN_TORCH,
        "on_device": AUGMENTS[augment].where == "device",
        "mean": tuple(mean),
        "std": tuple(std),
        "moments_known": (mean, std) != IMAGENET or "input" in hyper,
        "dtype": options.get("dtype", "float32"),
        "channels_last": bool(cell.get("channels_last", True)),
        "ranks": (number(cell.get("devices")) or 1) * (number(cell.get("nodes")) or 1),
    }


def class_folders(folder: str | Path) -> str | None:
    """Return the folder of the training classes that layout image_folder finds in a folder.

    None where it finds none, as on another machine than the one that was measured.
    """
    try:
        images = filter(is_image, names_below(Path(folder)))
    except GpufeedError:
        return None
    one_each = {image.rpartition("/")[0]: image for image in images}  # of a million images one a folder tells
    found = found_in([*one_each.values()], Path(folder))
    ways = (
        name.removesuffix("/".join(rest)) for name, (split, rest) in found.places.items() if split == TRAIN
    )
    return next((str(Path(folder, way)) for way in ways), None)


def plain(value: Any) -> dict[str, Any]:
    """Return a dict, which tables hold as JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    return json.loads(value) if isinstance(value, str) and value else {}


def number(value: Any, kind: type = int) -> Any:
    """Return a number of a table; None if it is missing."""
    return None if str(value) in ("None", "nan", "<NA>") else kind(value)


def mean_and_std(hyper: Mapping, source: Mapping) -> tuple[tuple, tuple]:
    """Return mean and std of the model's input, else those of the dataset's layout, else ImageNet's."""
    if "input" in hyper:
        return tuple(hyper["input"]["mean"]), tuple(hyper["input"]["std"])
    if (layout := source.get("layout")) not in LAYOUTS:
        return IMAGENET
    if layout == "mosaic" and "tiles" in source:
        return mean_and_std(hyper, source["tiles"])
    module = import_module(LAYOUTS[layout].target.partition(":")[0])
    if looks := getattr(module, "LOOKS", None):
        return looks.mean, looks.std
    return getattr(module, "MEAN", IMAGENET[0]), getattr(module, "STD", IMAGENET[1])


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    made.filters["literal"] = literal
    return made


def literal(value: Any, indent: int = 0) -> str:
    """Return a text, tuple or dict as code; a long dict has one entry a line. indent: of its first line."""
    if isinstance(value, str):
        return json.dumps(value)
    if not isinstance(value, dict):
        return repr(value)
    entries = [f"{json.dumps(name)}: {literal(own)}" for name, own in value.items()]
    if indent + len(line := f"{{{', '.join(entries)}}}") < WIDTH - 20:
        return line
    space = " " * indent
    return "{\n" + "".join(f"{space}    {entry},\n" for entry in entries) + space + "}"


def with_imports(text: str) -> str:
    """Return the script with the imports that it uses, each once and sorted, after its docstring."""
    lines = text.splitlines()
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    own = {number for node in imports for number in range(node.lineno, node.end_lineno + 1)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found = {(node.module, *names(alias)) for node in imports if isinstance(node, ast.ImportFrom)
             for alias in node.names if names(alias)[1] in used}  # fmt: skip
    whole = {names(alias) for node in imports if isinstance(node, ast.Import) for alias in node.names
             if names(alias)[1].split(".")[0] in used}  # fmt: skip
    head = tree.body[0].end_lineno
    body = "\n".join(line for number, line in enumerate(lines, 1) if number > head and number not in own)
    top = "\n".join(lines[:head])
    return f"{top}\n\n{in_order(whole, found)}\n{spaced(body).rstrip()}\n"


def names(alias: ast.alias) -> tuple[str, str]:
    """Return the imported name, and the name that the script uses for it."""
    return alias.name, alias.asname or alias.name


def in_order(whole: set[tuple[str, str]], found: set[tuple[str, str, str]]) -> str:
    """Return import statements in isort's order, the standard library first."""
    statements: dict[bool, list[tuple]] = {True: [], False: []}
    for name, known_as in whole:
        line = f"import {name}" + (f" as {known_as}" if known_as != name else "")
        statements[is_standard(name)].append((0, name.lower(), line))
    for module in {module for module, _, _ in found}:
        parts = sorted(((name, alias) for own, name, alias in found if own == module), key=by_kind)
        listed = ", ".join(name if name == alias else f"{name} as {alias}" for name, alias in parts)
        line = f"from {module} import {listed}"
        if len(line) > WIDTH:
            line = f"from {module} import (\n    {listed.replace(', ', f',{chr(10)}    ')},\n)"
        statements[is_standard(module)].append((1, module.lower(), line))
    parts = ["\n".join(line for *_, line in sorted(statements[standard])) for standard in (True, False)]
    return "\n\n".join(part for part in parts if part) + "\n"


def by_kind(pair: tuple[str, str]) -> tuple[int, str]:
    """Return the key that sorts constants before classes before functions."""
    name = pair[0]
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name


def is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def spaced(body: str) -> str:
    """Return the code with PEP 8's empty lines between its top-level statements."""
    tree, lines, found, before = ast.parse(body), body.splitlines(), [], None
    end = 0
    for node in tree.body:
        start = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        comments = [line for line in lines[end : start - 1] if line.strip()]
        block = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if before is not None:
            gap = 2 if block or before else int(not lines[end].strip() if end < len(lines) else False)
            found += [""] * gap
        elif block:
            found.append("")
        found += [*comments, *lines[start - 1 : node.end_lineno]]
        end, before = node.end_lineno, block
    return "\n".join([*found, *(line for line in lines[end:] if line.strip())])
