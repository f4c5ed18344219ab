"""Digests of the code behind a rule, so that an edit re-runs only the jobs that it can affect.

Snakemake watches scripts, but not the modules that they import. Standard library only: used while planning.
"""

import ast
import gc
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path

from gpufeed.core.errors import GpufeedError
from gpufeed.core.file_writes import write_whole

PACKAGE = Path(__file__).parents[1]
# Modules outside of the layers that jobs compute with. The rest of core plans, checks and writes documents;
# its results reach jobs as params, which Snakemake compares.
COMPUTING = (
    "plugins",
    "core/image_listing",
    "core/loader_setting",
    "core/plan_decoding",
    "core/plan_inference",
    "core/plan_kernels",
    "core/references",
    "core/repeats",
    "core/vit_options",
)
MEASURING = (
    "system",
    "native",
    "decoders",
    "datasets",
    "stores",
    "augment",
    "models",
    "loaders",
    "training",
    "benchmarks",
    "advice",
    *COMPUTING,
)
REPORTING = (*MEASURING, "core", "report")  # tables and figures are quick to make: all of core counts


@cache
def digest(*patterns: str, package: Path = PACKAGE) -> str:
    """Return a digest over the bytes of the package's files that match; 12 hex digits.

    Raises ValueError for a pattern without a match, since a renamed module must not go unwatched.
    """
    whole = hashlib.sha256()
    for pattern in patterns:
        files = sorted(package.glob(pattern))
        if not files:
            raise ValueError(f"no file matches {package.name}/{pattern}")
        for file in files:
            whole.update(file.relative_to(package).as_posix().encode())
            whole.update(file.read_bytes())
    return whole.hexdigest()[:12]


class SourceDigests:
    """Digests of files and of what they import from a package; each file is read once.

    A file counts by its syntax tree without docstrings, so comments and layout do not count. Imports are
    those of its import statements, also inside functions, but not under TYPE_CHECKING. A string counts as an
    import too if it names a module ("package.module:attribute") or a program beside the file ("program.py").
    Strings of core, which holds the registry, are not followed: callers name the targets that they use.

    package: its folder. known: a cache file, so that the next run parses only changed files.
    """

    def __init__(self, package: Path = PACKAGE, known: Path | None = None):
        self.package, self.root, self.known = package.name, package.parent, known
        self._sources: dict[str, tuple[str, set[str]]] = {}
        self._is_new = False  # whether anything was parsed that is not in the cache
        self._digests: dict[tuple[tuple[str, ...], ...], str] = {}

    def of(self, *entries: str, rooms: tuple[str, ...] = MEASURING, files: tuple[str, ...] = ()) -> str:
        """Return the digest of what `closure` returns for the entries; 12 hex digits.

        files: patterns of other files of the package, hashed byte by byte.
        """
        asked = (entries, rooms, files)
        if asked not in self._digests:
            parts = [(file, self._source(file)[0]) for file in sorted(self.closure(*entries, rooms=rooms))]
            parts += [(files, digest(*files, package=self.root / self.package))]
            self._digests[asked] = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        return self._digests[asked]

    def closure(self, *entries: str, rooms: tuple[str, ...] = MEASURING) -> set[str]:
        """Return the files of the entries, and of all that they import within the rooms.

        entries: modules and files, such as "package.loaders.base", "workflow/scripts/gate.py". rooms: folders
        and modules of the package, such as "loaders", "core/repeats". File names are relative to the
        package's parent. Raises ValueError for an unknown module, since a renamed one must not go unwatched.
        """
        inside = tuple(f"{self.package}/{room}{end}" for room in rooms for end in ("/", ".py"))
        ahead = [entry if entry.endswith(".py") else self._file_of(entry) for entry in entries]
        if None in ahead:
            raise ValueError(f"no module {entries[ahead.index(None)]} in {self.root}")
        found = set(ahead)
        with no_garbage_collection():
            while ahead:
                new = {file for file in self._source(ahead.pop())[1] if file.startswith(inside)} - found
                found |= new
                ahead += new
        if self.known and self._is_new:
            self._keep(self.known)
        return found

    def _source(self, file: str) -> tuple[str, set[str]]:
        """Return the digest of a file's code, and the files that it imports."""
        if file not in self._sources:
            text = (self.root / file).read_bytes()
            key = hashlib.sha256(repr(sys.version_info[:2]).encode() + text).hexdigest()
            if self._parsed.get(file, [""])[0] != key:
                self._parsed[file], self._is_new = [key, *self._parse(file, text)], True
            _, code, modules = self._parsed[file]
            self._sources[file] = code, {self._file_of(module) for module in modules} - {None}
        return self._sources[file]

    def _parse(self, file: str, text: bytes) -> tuple[str, list[str]]:
        """Return the digest of a file's code, and the modules of the package that it may import."""
        tree = ast.parse(text)
        within = file.split("/")[:-1]
        names = {name for node in statements(tree) for name in imported(node, within)}
        code = ast.dump(tree)
        if not file.startswith(f"{self.package}/core/"):
            names |= set(re.findall(rf"value='({self.package}(?:\.\w+)+)[:']", code))
            names |= {".".join([*within, name]) for name in re.findall(r"value='(\w+)\.py'", code)}
        parts = (name.split(".") for name in names if name.startswith(f"{self.package}."))
        # importing a module imports its packages too
        modules = {".".join(part[:count]) for part in parts for count in range(1, len(part) + 1)}
        return hashlib.sha256(code.encode()).hexdigest(), sorted(modules)

    def _file_of(self, module: str) -> str | None:
        """Return the file of a module; None if there is none."""
        path = module.replace(".", "/")
        found = (file for file in (f"{path}.py", f"{path}/__init__.py") if (self.root / file).is_file())
        return next(found, None)

    @cached_property
    def _parsed(self) -> dict[str, list]:
        """The cache: file -> digest of its text, digest of its code, and modules that it may import."""
        with suppress(OSError, ValueError):
            return json.loads(self.known.read_text(encoding="utf-8")) if self.known else {}
        return {}

    def _keep(self, path: Path) -> None:
        """Write the cache if the folder is writable; jobs may do so at the same time."""
        with suppress(OSError, GpufeedError):
            write_whole(path, json.dumps(self._parsed), shared=True)
        self._is_new = False


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Remove the docstrings in a node, and yield its statements except those under TYPE_CHECKING."""
    documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    if documented and ast.get_docstring(node, clean=False) is not None:
        del node.body[0]
    checking = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for one in getattr(node, name, []) if not (checking and name == "body") else []:
            yield one
            yield from statements(one)


def imported(node: ast.stmt, within: list[str]) -> Iterable[str]:
    """Return the modules that a statement may import; `from a import b` may import a.b.

    within: the folders of the file, for relative imports.
    """
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        above = within[: len(within) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        return [f"{module}.{name.name}" for name in node.names]
    return []


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector: syntax trees are many objects without cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
