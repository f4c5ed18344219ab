"""References to user code, where the config takes a registered model, dataset, loader or augment.

`torchvision:NAME`, `timm:NAME`, `package.module:attribute` or `path.py:attribute`. Standard library only:
while planning, references are checked without being imported. Only `resolve` imports, in jobs.
"""

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from gpufeed.core.errors import GpufeedError
from gpufeed.core.folders import expanded
from gpufeed.core.source_digest import PACKAGE, imported, statements

LIBRARIES = ("torchvision", "timm")  # whose models have names
OF_CODE = ("package.module:attribute", "path.py:attribute")
FORMS = {"model": (*(f"{library}:NAME" for library in LIBRARIES), *OF_CODE)}
FORMS |= {"loader": OF_CODE, "dataset": OF_CODE, "augment": OF_CODE}
INSTALLED = ("site-packages", "dist-packages")  # code below these has a version instead of a digest


def is_reference(name: object) -> bool:
    """Return whether a name refers to code: registered names have no colon."""
    return isinstance(name, str) and ":" in name


def split(reference: str) -> tuple[str, str]:
    """Return the parts before and after the last colon."""
    where, _, attribute = reference.rpartition(":")
    return where, attribute


def is_file(reference: str) -> bool:
    """Return whether a reference names a file."""
    return split(reference)[0].endswith(".py")


def short(name: str) -> str:
    """Return a name for paths: `my_model.Net` for my_model.py:Net; registered names are unchanged.

    A file in another folder gets a digest of its path, since files may share a name.
    """
    if not is_reference(name):
        return name
    where, attribute = split(name)
    parts = [f"{Path(where).stem if is_file(name) else where}.{attribute}"]
    if is_file(name) and Path(where).name != where:
        parts.append(hashlib.sha256(where.encode()).hexdigest()[:4])
    return re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(parts))


def check(kind: str, reference: str, where: str) -> None:
    """Raise GpufeedError for a reference whose module or file does not exist.

    kind: a key of FORMS. where: its place in the config.
    """
    place, attribute = split(reference)
    found, forms = f"{kind} {reference!r} in {where}", " or ".join(FORMS[kind])
    if place in LIBRARIES:
        if kind != "model" or not attribute:
            remedy = "write the name of a model after the colon" if kind == "model" else "name your own code"
            raise GpufeedError(found, forms, remedy)
        return
    words = attribute.split(".") + ([] if is_file(reference) else place.split("."))
    if not all(word.isidentifier() for word in words):
        raise GpufeedError(found, forms, "write it in one of these forms")
    if not is_file(reference):
        module_file(place, found)
        return
    if not (path := expanded(place)).is_file():
        near = get_close_matches(path.name, [other.name for other in sorted(path.parent.glob("*.py"))], n=1)
        there = path.parent.absolute()
        raise GpufeedError(
            f"{found}, and no file {path.name} in {there}",
            "a Python file; its path is relative to the folder of the run",
            f"write {str(path.with_name(near[0]))!r} instead" if near else "correct the path",
        )


@cache
def module_file(module: str, found: str = "") -> Path | None:
    """Return the file of a module without importing it; None for a built-in one.

    Raises GpufeedError, which begins with `found`, if there is no such module.
    """
    see_run_folder()
    top, *rest = module.split(".")
    try:
        spec = None if top == "__main__" else importlib.util.find_spec(top)
    except ValueError:  # a module without a spec
        spec = None
    folders, name = (spec and spec.submodule_search_locations) or [], top
    for part in rest if spec else ():
        spec = importlib.machinery.PathFinder.find_spec(name := f"{name}.{part}", list(folders))
        if spec is None:
            break
        folders = spec.submodule_search_locations or []
    if spec is None:
        raise GpufeedError(
            f"{found or module}, and no module {name}",
            "a module in the folder of the run, in PYTHONPATH or installed",
            "correct its name, or install the package",
        )
    return Path(spec.origin) if spec.has_location and spec.origin else None


def see_run_folder() -> None:
    """Append the folder of the run to sys.path."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def source_file(reference: str) -> Path | None:
    """Return the user's file that a reference names; None for an installed package."""
    where, _ = split(reference)
    if where in LIBRARIES:
        return None
    path = expanded(where) if is_file(reference) else module_file(where)
    return None if path is None or set(INSTALLED) & set(path.parts) else path


def code_of(references: Iterable[str]) -> dict[str, str]:
    """Return file -> digest of the code, for the files that references name and those that they import.

    Comments, docstrings and layout do not count. File names are relative to where their imports begin. Raises
    GpufeedError for a file that is not valid Python.
    """
    places = [place for reference in references if (place := place_of(reference))]
    return {name: digest for place in places for name, digest in closure(*place).items()}


def place_of(reference: str) -> tuple[Path, Path] | None:
    """Return the user's file that a reference names, and the folder where its imports begin."""
    if (path := source_file(reference)) is None:
        return None
    depth = 0 if is_file(reference) else split(reference)[0].count(".") + (path.name == "__init__.py")
    return path.absolute(), path.absolute().parents[depth]


def files_of(reference: str) -> dict[str, Path]:
    """Return name -> file for the files that a reference needs, named relative to the folder of the run."""
    if (place := place_of(reference)) is None:
        return {}
    below = Path(split(reference)[0]).parent if is_file(reference) else Path()
    return {(below / name).as_posix(): place[1] / name for name in closure(*place)}


def closure(first: Path, root: Path) -> dict[str, str]:
    """Return file -> digest of the code, for a file and all files below `root` that it imports."""
    ahead, found = [first], {}
    while ahead:
        name = ahead[0].relative_to(root).as_posix()
        digest, imports = parsed(path := ahead.pop(0), path.stat().st_mtime_ns, root)
        if name not in found:
            found[name] = digest
            ahead += imports
    return found


def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file; raise GpufeedError if it is not valid Python."""
    try:
        return ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
        raise GpufeedError(
            f"{path}{line}: {error.msg if isinstance(error, SyntaxError) else error}",
            "valid Python",
            "correct it",
        ) from error


@cache
def parsed(path: Path, changed_ns: int, root: Path) -> tuple[str, list[Path]]:
    """Return the digest of a file's code, and the files below `root` that it imports."""
    tree = tree_of(path)
    within = list(path.relative_to(root).parent.parts)
    names = {tuple(name.split(".")) for node in statements(tree) for name in imported(node, within)}
    # gpufeed itself, which a run in the clone can import, has its own digests
    others = [name for name in names if name[0] != PACKAGE.name]
    parts = {name[:count] for name in others for count in range(1, len(name) + 1)}
    files = (root.joinpath(*part, *end) for part in parts for end in ((), ("__init__",)))
    inside = sorted(file for stem in files if (file := stem.with_name(f"{stem.name}.py")).is_file())
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12], inside


def declared(reference: str, name: str) -> dict[str, Any] | None:
    """Return the dict that a class assigns to `name` in its body, read without importing; None without it.

    Raises GpufeedError for a dict that is not a literal, and for a file that is not valid Python.
    """
    path = source_file(reference)
    if path is None or not path.is_file():
        return None
    text = literal(path, path.stat().st_mtime_ns, split(reference)[1], name)
    try:
        return text and dict(ast.literal_eval(text))
    except (ValueError, TypeError) as error:
        raise GpufeedError(
            f"`{name}` of {reference}: {text}",
            "a dict literal of strings, numbers, booleans and lists: it is read without importing the file",
            "write the values out",
        ) from error


def declared_entry(reference: str, kind: type, choices: Mapping[str, tuple]) -> dict[str, Any]:
    """Return the fields of `entry` in a user's class, for an Entry of this kind.

    choices: field -> allowed values, if these are not true and false. Raises GpufeedError for an unknown
    field or value.
    """
    given = declared(reference, "entry") or {}
    known = {one.name: one.default for one in fields(kind) if one.name not in ("target", "does")}
    for name, value in given.items():
        if name not in known:
            where = f"one of: {', '.join(known)}"
            raise GpufeedError(f"{name!r} in `entry` of {reference}", where, nearest(name, known))
        allowed, several = choices.get(name, (True, False)), isinstance(known[name], tuple)
        given[name] = tuple(value) if several else value
        if not set(given[name] if several else [value]) <= set(allowed):
            raise GpufeedError(
                f"{name}: {value!r} in `entry` of {reference}",
                f"{'some' if several else 'one'} of: {', '.join(map(str, allowed))}",
                "correct it",
            )
    return given


@cache
def literal(path: Path, changed_ns: int, of: str, name: str) -> str | None:
    """Return the expression that a class of a file assigns to `name`, as text."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef) and node.name == of:
            for line in node.body:
                if isinstance(line, ast.Assign | ast.AnnAssign) and f"{ast.unparse(line)} ".startswith(
                    (f"{name} =", f"{name}: ")
                ):
                    return ast.unparse(line.value)
    return None


def resolve(reference: str) -> Any:
    """Import the code that a reference names, and return the attribute.

    A file is imported as a top-level module, with its folder first in sys.path, so that worker processes find
    it again. Raises GpufeedError for a missing attribute.
    """
    where, attribute = split(reference)
    see_run_folder()
    if is_file(reference):
        path = expanded(where).absolute()
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        module = importlib.import_module(path.stem)
        if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
            raise GpufeedError(
                f"{path}, whose name is that of another module, {path.stem}",
                "a file whose name no installed module has",
                f"give it another name, such as my_{path.stem}.py",
            )
    else:
        module = importlib.import_module(where)
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in vars(found) if not name.startswith("_")]
            raise GpufeedError(
                f"no {part!r} in {getattr(found, '__file__', None) or where}",
                f"one of: {', '.join(public)}",
                nearest(part, public),
            )
        found = getattr(found, part)
    return found


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the advice for a name that is not among the choices."""
    near = get_close_matches(name, list(choices), n=1)
    return f"write {near[0]!r} instead" if near else "correct the name"
