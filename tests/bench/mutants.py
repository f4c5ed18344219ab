"""Mutation check of the unit tests, with mutants that survive moved and renamed modules.

    python tests/bench/mutants.py choose --seed 32       write mutants.json beside this file
    python tests/bench/mutants.py find                   print the place of each mutant in today's tree
    python tests/bench/mutants.py run before.jsonl       write one line a mutant; skip those that have one
    python tests/bench/mutants.py compare before.jsonl after.jsonl

**Choose.** HOW_MANY functions, shared out over the packages of gpufeed (the root's modules count as one) by
code lines, and one small change in each. Left out are functions under MIN_STATEMENTS statements, those that
no unit test reaches by the rule below, and code that needs a GPU: it names `torch.cuda`, or the function or
the top of its module imports one of GPU_PACKAGES. The same seed over the same tree gives the same mutants.

**Find.** A mutant is a function's text without comments and docstrings, and a line of it before and after.
The function is looked for by its qualified name, then by its text in the whole package; the line by its
words, then by likeness. A missing or ambiguous mutant is an error and gets no line: mend its `function` in
mutants.json.

**Run.** The change is made in the real source, in a copy of the tree. The tests are the files below
tests/unit that import the function's module; if none does, those that import a module which imports it (one
level up; imports inside functions count). Files with the fewest imports come first. Slow tests run if the
others have not killed it, tests marked `alone` never. A test that fails must fail again by itself, and pass
without the change; else it is left out (`left_out`).

**Limit.** CPU_LIMIT_S of CPU time for pytest, and as much for each process that it starts, so that other
load on the machine does not count; WALL_LIMIT_S for what waits without computing. A run over a limit kills
the mutant only if the same tests without the change need less than half of CPU_LIMIT_S.
"""

import argparse
import ast
import copy
import difflib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = Path(__file__).with_suffix(".json")
HOW_MANY, MIN_STATEMENTS = 100, 3
CPU_LIMIT_S, WALL_LIMIT_S = 120, 600
ALIKE, LEAD = 0.75, 0.05  # least likeness of a moved function, and its least lead over the next one
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
GPU_PACKAGES = {"cupy", "triton", "nvidia", "cuda", "pynvml"}
OPPOSITE = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
EDGE = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPERATOR = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}
NO_NUMBER = (str, bytes, ast.JoinedStr, ast.List, ast.Tuple)
CALL = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Lost(Exception):
    """A mutant whose function or line is missing or ambiguous in today's tree."""


@dataclass(frozen=True)
class Function:
    name: str  # qualified, without the module
    file: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    text: str
    needs_gpu: bool


@dataclass(frozen=True)
class Change:
    kind: str
    before: str  # the one line of the function's text that changes
    after: str
    node: ast.AST
    new: ast.AST
    text: str  # of the whole function, changed


def normalised(function: ast.AST) -> str:
    """Return the function's text without comments and docstrings."""
    function = copy.deepcopy(function)
    for node in ast.walk(function):
        if isinstance(node, (*FUNCTION, ast.ClassDef)) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(function)


def imported(nodes: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import in these nodes; the name of a plain `import` is empty."""
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def on_gpu(nodes: list[ast.stmt]) -> bool:
    return any(module.split(".")[0] in GPU_PACKAGES for module, _ in imported(nodes))


def functions(root: Path) -> list[Function]:
    """Return the functions and methods of gpufeed in the order of files and lines."""

    def of(body: list[ast.stmt], prefix: str) -> Iterator[Function]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from of(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, FUNCTION):
                text = normalised(node)
                gpu = top_needs_gpu or on_gpu(node.body) or "torch.cuda" in text
                yield Function(prefix + node.name, file, node, text, gpu)

    found = []
    for path in sorted((root / "gpufeed").rglob("*.py")):
        file, tree = path.relative_to(root).as_posix(), ast.parse(path.read_text())
        top_needs_gpu = on_gpu([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)])
        found += of(tree.body, "")
    return found


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield (kind, node to replace, new node) of each change that can be made at this node."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            for kind, table in (("comparison turned", OPPOSITE), ("boundary", EDGE)):
                if type(op) in table:
                    yield kind, node, ast.Compare(left, [table[type(op)]()], right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATOR:
            if not any(isinstance(getattr(side, "value", side), NO_NUMBER) for side in (left, right)):
                yield "operator", node, ast.BinOp(left, OPERATOR[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", node, ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.Constant(value=bool(value)):
            yield "flag", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, ast.Constant(value + 1)
        case ast.Return(value=value) if value and ast.unparse(value) != "None":
            yield "return", node, ast.Return(ast.Constant(None))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield "not", test, ast.UnaryOp(ast.Not(), test)
        case ast.Break():
            yield "break/continue", node, ast.Continue()
        case ast.Continue():
            yield "break/continue", node, ast.Break()
        case ast.Call(func=ast.Name(id="sorted"), args=[first, *_]):
            yield "sorted", node, ast.Call(ast.Name("list"), [first], [])
        case ast.Call(func=ast.Name(id=name) as called) if name in CALL:
            yield "call", called, ast.Name(CALL[name])


def changes(function: Function) -> list[Change]:
    """Return every change that can be made in the function.

    Left out are log lines, f-strings (Python 3.11 has no columns for them) and the `strict` of zip.
    """

    def reached(node: ast.AST) -> Iterator[ast.AST]:
        logs = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log.")
        if not (logs or isinstance(node, ast.JoinedStr) or getattr(node, "arg", "") == "strict"):
            yield node
            for inner in ast.iter_child_nodes(node):
                yield from reached(inner)

    found = []
    nodes = [node for statement in function.node.body for node in reached(statement)]
    for kind, old, new in (each for node in nodes for each in replacements(node)):
        text = normalised(replaced(function.node, old, new))
        pairs = zip(function.text.splitlines(), text.splitlines(), strict=False)
        if len(lines := [(a.strip(), b.strip()) for a, b in pairs if a != b]) == 1:
            found.append(Change(kind, *lines[0], old, new, text))
    return found


def replaced(function: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return copy.deepcopy(new) if node is twin else super().generic_visit(node)

    twins = copy.deepcopy(function)
    twin = next(b for a, b in zip(ast.walk(function), ast.walk(twins), strict=True) if a is old)
    return Replace().visit(twins)


def written(source: str, function: Function, change: Change) -> str:
    """Return the module's source with the change made in place."""
    lines, node = source.encode().splitlines(keepends=True), change.node
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    new = ast.unparse(change.new)
    new = f"({new})" if isinstance(change.new, ast.expr) else new
    whole = b"".join(lines)
    changed = (whole[:start] + new.encode() + whole[end:]).decode()
    found = [each for each in ast.walk(ast.parse(changed)) if isinstance(each, FUNCTION)]
    assert change.text in map(normalised, found), change
    return changed


def likeness(a: str, b: str) -> float:
    """Return how alike two texts are, word by word, 0 to 1."""
    words = (re.findall(r"\w+|\S", text) for text in (a, b))
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    return matcher.ratio() if min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= ALIKE else 0.0


def likest(wanted: str, choices: list[tuple[str, object]], what: str) -> object | None:
    """Return the choice whose text is most like the wanted one, None if none is like it."""
    ranked = sorted(((likeness(wanted, text), n) for n, (text, _) in enumerate(choices)), reverse=True)
    if not ranked or ranked[0][0] < ALIKE:
        return None
    if len(ranked) > 1 and ranked[0][0] - ranked[1][0] < LEAD and not ranked[0][0] == 1 > ranked[1][0]:
        raise Lost(f"{what} is ambiguous: two places are {ranked[0][0]:.2f} and {ranked[1][0]:.2f} like it")
    return choices[ranked[0][1]][1]


def locate(mutant: dict, candidates: list[Function]) -> tuple[Function, Change]:
    """Return the mutant's function and change in today's tree."""
    what = f"{mutant['name']} of {mutant['file']}"
    named = [(each.text, each) for each in candidates if each.name == mutant["function"]]
    function = likest(mutant["text"], named, what)
    function = function or likest(mutant["text"], [(each.text, each) for each in candidates], what)
    if function is None:
        raise Lost(f"{what}: no function of today's tree is like it")
    possible = [each for each in changes(function) if each.kind == mutant["kind"]]
    exact = [each for each in possible if (each.before, each.after) == (mutant["before"], mutant["after"])]
    if len(exact) > 1:
        raise Lost(f"{what}: its line occurs more than once in {function.file}")
    wanted = f"{mutant['before']} -> {mutant['after']}"
    texts = [(f"{each.before} -> {each.after}", each) for each in possible]
    change = exact[0] if exact else likest(wanted, texts, f"the line of {what}")
    if change is None:
        raise Lost(f"{what}: its line is no longer in {function.name} of {function.file}")
    return function, change


class Tests:
    """Which unit tests belong to a module."""

    def __init__(self, root: Path):
        modules = {self.module(path.relative_to(root)): path for path in (root / "gpufeed").rglob("*.py")}

        def uses(path: Path) -> set[str]:
            pairs = imported(ast.parse(path.read_text()).body)
            return {full if (full := f"{m}.{name}") in modules else m for m, name in pairs} & set(modules)

        self.modules = {name: uses(path) for name, path in modules.items()}
        self.files = {
            path.relative_to(root).as_posix(): uses(path) for path in (root / "tests/unit").rglob("test_*.py")
        }

    @staticmethod
    def module(path: Path) -> str:
        return ".".join(path.with_suffix("").parts).removesuffix(".__init__")

    def of(self, file: str) -> tuple[str, ...]:
        module = self.module(Path(file))
        above = {name for name, used in self.modules.items() if module in used}
        found = [test for test, used in self.files.items() if module in used]
        found = found or [test for test, used in self.files.items() if above & used]
        return tuple(sorted(found, key=lambda test: (len(self.files[test]), test)))


def choose(root: Path, seed: int, count: int = HOW_MANY) -> list[dict]:
    """Return seeded mutants of the tree."""
    tests, draw, packages = Tests(root), random.Random(seed), defaultdict(list)
    everything = functions(root)
    same = Counter((each.name, each.text) for each in everything)
    for each in everything:
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(each.text))) - 1
        if statements < MIN_STATEMENTS or each.needs_gpu or same[each.name, each.text] > 1:
            continue
        if tests.of(each.file):
            packages[each.file.split("/")[1] if each.file.count("/") > 1 else ""].append(each)
    lines = {name: sum(each.text.count("\n") for each in found) for name, found in packages.items()}
    shares = {name: max(1, count * lines[name] // sum(lines.values())) for name in sorted(lines)}
    rest = {name: count * lines[name] / sum(lines.values()) - shares[name] for name in shares}
    for name in sorted(rest, key=rest.get, reverse=True)[: count - sum(shares.values())]:
        shares[name] += 1
    mutants = []
    for name in shares:
        chosen = 0
        for function in draw.sample(packages[name], len(packages[name])):
            kinds = defaultdict(list)
            every = changes(function)
            often = Counter((each.kind, each.before, each.after) for each in every)
            for each in every:
                if often[each.kind, each.before, each.after] == 1:
                    kinds[each.kind].append(each)
            if kinds and chosen < shares[name]:
                chosen += 1
                change = draw.choice(kinds[draw.choice(sorted(kinds))])
                title = f"{len(mutants) + 1:03} {function.name}"
                mutants.append(
                    {
                        "name": title,
                        "function": function.name,
                        "file": function.file,
                        "kind": change.kind,
                        "before": change.before,
                        "after": change.after,
                        "text": function.text,
                    }
                )
    return mutants


@dataclass(frozen=True)
class Outcome:
    code: int | None  # of pytest, None if it ran over a limit
    failed: list[str]
    cpu_s: float


def pytest(tree: Path, *arguments: str) -> Outcome:
    """Run pytest in the copy of the tree, within the limits."""
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    options += ["--hypothesis-seed=0", f"--basetemp={tree.parent / 'tmp'}"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    log = tree.parent / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=tree, env=environment, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5)),
        )  # fmt: skip
        try:
            code = process.wait(WALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    failed = re.findall(
        r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", log.read_text(errors="replace"), re.MULTILINE
    )
    code = None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
    return Outcome(code, failed, sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used)


def copied(root: Path, tree: Path) -> None:
    """Copy what git knows of the tree, as a repository of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split(
        "\0"
    ):
        if name and (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)
    for command in ("init -q", "add -A", "-c user.name=mutants -c user.email=mutants commit -qm tree"):
        subprocess.run(["git", *command.split()], cwd=tree, check=True)


def write(path: Path, source: str) -> None:
    """Write a module; its byte code goes, since Python takes it as current within the same second."""
    path.write_text(source)
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()


def judge(tree: Path, file: str, changed: str, tests: tuple[str, ...]) -> dict:
    """Return the verdict on the tree with one file changed, by the fast tests and then by the slow ones."""
    source, left_out = (tree / file).read_text(), []

    def outcome(text: str, *arguments: str) -> Outcome:
        write(tree / file, text)
        return pytest(tree, *arguments)

    def found(marks: str) -> dict | None:
        """Return the verdict by the tests with these marks; None if they pass."""
        again = False
        while True:
            known = [f"--deselect={test}" for test in left_out]
            run = outcome(changed, "-x", "-m", marks, *tests, *known)
            if run.failed and not again and outcome(changed, *run.failed).code == 0:
                again = True  # it fails at times
            elif run.failed and outcome(source, *run.failed).code != 0:
                left_out.extend(run.failed)
            elif run.failed:
                return {"verdict": "killed", "by": run.failed[0]}
            elif run.code is None:
                usual = outcome(source, "-m", marks, *tests)
                hangs = usual.code is not None and usual.cpu_s < CPU_LIMIT_S / 2
                return {"verdict": "killed" if hangs else "survived", "by": "time limit"}
            elif run.code not in (0, 5):
                ends = outcome(source, "--collect-only", *tests).code == 0
                return {"verdict": "killed" if ends else "unclear", "by": f"pytest ended with {run.code}"}
            else:
                return None

    try:
        verdict = found("not slow and not alone") or found("slow and not alone")
    finally:
        write(tree / file, source)
    return (verdict or {"verdict": "survived", "by": ""}) | {"left_out": left_out}


def judge_all(root: Path, mutants: list[dict], out: Path) -> None:
    """Judge the mutants one after the other, append a line each to `out`, and fail if one was lost."""
    tests, everything, lost = Tests(root), functions(root), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copied(root, tree)
        for mutant in mutants:
            try:
                function, change = locate(mutant, everything)
            except Lost as error:
                lost += 1
                print(f"lost: {error}", file=sys.stderr, flush=True)
                continue
            files = tests.of(function.file)
            changed = written((tree / function.file).read_text(), function, change)
            verdict = {"verdict": "survived", "by": "no unit test imports its module"}
            if files:
                verdict = judge(tree, function.file, changed, files)
            line = {"mutant": mutant["name"], **verdict, "tests": len(files)}
            print(f"{line['mutant']}: {line['verdict']} {line['by']}", flush=True)
            with out.open("a") as lines:
                lines.write(json.dumps(line) + "\n")
    sys.exit(lost > 0)


def verdicts(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["mutant"]: line["verdict"] for line in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("choose").add_argument("--seed", type=int, required=True)
    commands.add_parser("find")
    runner = commands.add_parser("run")
    runner.add_argument("--from", type=int, default=1, dest="first", metavar="K")
    runner.add_argument("--only", metavar="NAME")
    runner.add_argument("--jobs", type=int, default=1)
    runner.add_argument("out", type=Path)
    comparer = commands.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "choose":
        MUTANTS.write_text(json.dumps(choose(ROOT, arguments.seed), indent=1) + "\n")
    elif arguments.command == "find":
        everything, lost = functions(ROOT), 0
        for mutant in json.loads(MUTANTS.read_text()):
            try:
                print(f"{mutant['name']}: {(found := locate(mutant, everything))[0].file}: {found[1].after}")
            except Lost as error:
                lost += 1
                print(f"lost: {error}", file=sys.stderr)
        sys.exit(lost > 0)
    elif arguments.command == "run":
        done = verdicts(arguments.out)
        mutants = json.loads(MUTANTS.read_text())[arguments.first - 1 :]
        mutants = [
            m for m in mutants if m["name"] not in done and arguments.only in (None, m["name"], m["function"])
        ]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        parts = [mutants[n :: arguments.jobs] for n in range(arguments.jobs)]
        workers = [
            multiprocessing.Process(target=judge_all, args=(ROOT, part, arguments.out), daemon=True)
            for part in parts
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        sys.exit(any(worker.exitcode for worker in workers))
    else:
        before, after = verdicts(arguments.before), verdicts(arguments.after)
        missed = [
            name for name, verdict in before.items() if verdict == "killed" and after.get(name) != "killed"
        ]
        for name in missed:
            print(f"{name}: killed before, now {after.get(name, 'without a line')}")
        sys.exit(len(missed) > 0)


if __name__ == "__main__":
    main()
