"""What a test file covers, and one digest of that code.

Covered is what the file imports and what those modules import, inside functions too; modules that a string
names (`python -m gpufeed.train`); what the tests name of the registry. Comments and docstrings do not count.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

REGISTRY = "gpufeed/core/registry.py"
NATIVE = "gpufeed/native/csrc"
MODULE = re.compile(r"\bgpufeed(?:\.\w+)+|\b\w+_fixtures\b")
STRING = r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
LONG_STRING = r'''"""(?:\\.|[^\\])*?"""'''
PYTHON_COMMENT = re.compile(rf"({LONG_STRING}|{STRING})|#[^\n]*", re.DOTALL)
NATIVE_COMMENT = re.compile(rf"({STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)


class Tree:
    """The code of a checkout; reads each file once."""

    def __init__(self, root: Path):
        self.root = root
        self.tests = root / "tests/cuda"
        unit = sorted({path.parent for path in (root / "tests/unit").rglob("test_*.py")})
        self._places = (root, root / "tests/fixtures", self.tests, *unit)
        self._files: dict[Path, tuple[bytes, set[Path]]] = {}
        self._modules: dict[str, list[Path]] = {}
        self._registered = self._read_registry()

    def test_files(self) -> list[Path]:
        return sorted(self.tests.glob("test_*.py"))

    def digest(self, test_file: Path) -> str:
        """12 hex digits over the code that a test file covers."""
        whole = hashlib.sha256()
        for path in sorted(self.covered(test_file)):
            whole.update(path.relative_to(self.root).as_posix().encode())
            whole.update(self._file(path)[0])
        return whole.hexdigest()[:12]

    def covered(self, test_file: Path) -> set[Path]:
        """The file itself among them, and the conftests without what those import for other tests."""
        seen, todo = set(), {test_file}
        while todo:
            path = todo.pop()
            seen.add(path)
            todo |= self._file(path)[1] - seen
        if any(path.parent == self.root / "gpufeed/native" for path in seen):
            seen |= {path for path in (self.root / NATIVE).rglob("*") if path.is_file()}
        conftests = self.root / "tests/conftest.py", self.tests / "conftest.py"
        return seen | {path for path in conftests if path.is_file()}

    def _file(self, path: Path) -> tuple[bytes, set[Path]]:
        """The digest of a file's code, and the files that it names."""
        if path not in self._files:
            text = path.read_text()
            if path.suffix == ".py":
                tree = ast.parse(text)
                code, named = python_code(text, tree), set(self._named(path, tree))
            else:
                code, named = without_blanks(NATIVE_COMMENT.sub(r"\1", text)), set()
            self._files[path] = hashlib.sha256(code.encode()).digest(), named
        return self._files[path]

    def _named(self, path: Path, tree: ast.Module) -> Iterator[Path]:
        of_tests = self.root / "tests" in path.parents
        prose = {expression.value for expression in docstrings(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._module(f"{node.module}.{alias.name}")
                    if of_tests and node.module == "gpufeed.core.registry":
                        yield from self._registered.get(alias.name, ())
            elif isinstance(node, ast.Attribute) and of_tests:
                if isinstance(node.value, ast.Name) and node.value.id == "registry":
                    yield from self._registered.get(node.attr, ())
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
                if of_tests:
                    yield from self._registered.get(node.value, ())
                    for name in MODULE.findall(node.value):
                        yield from self._module(name)
                elif path != self.root / REGISTRY and MODULE.fullmatch(node.value.partition(":")[0]):
                    yield from self._module(node.value.partition(":")[0])

    def _module(self, name: str) -> list[Path]:
        """The files that run when `name` is imported; none outside the checkout. Its end may be no module."""
        if name not in self._modules:
            parts, found = name.split("."), []
            for end in range(1, len(parts) + 1):
                paths = [place.joinpath(*parts[:end]) for place in self._places]
                files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
                found += [file for file in files if file.is_file()][:1]
            self._modules[name] = found
        return self._modules[name]

    def _read_registry(self) -> dict[str, list[Path]]:
        """The modules behind each registered name, such as `resident`, and each list, such as LOADERS."""
        found: dict[str, list[Path]] = {}
        path = self.root / REGISTRY
        for node in ast.parse(path.read_bytes()).body if path.is_file() else ():
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)):
                continue
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                target = next(iter(value.args), None) if isinstance(value, ast.Call) else None
                if isinstance(key, ast.Constant) and isinstance(target, ast.Constant):
                    files = self._module(target.value.partition(":")[0])
                    for name in (key.value, node.targets[0].id):
                        found.setdefault(name, []).extend(files)
        return found


def docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield first


def python_code(text: str, tree: ast.Module) -> str:
    """The source without comments, docstrings and blank lines, the same by every version of Python."""
    lines = text.split("\n")
    for first in docstrings(tree):
        if not lines[first.lineno - 1][: first.col_offset].strip():  # else code stands before it
            lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    return without_blanks(PYTHON_COMMENT.sub(r"\1", "\n".join(lines)))


def without_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())
