"""What ran on a GPU, when and how: `results/reference/gpu_tests.json`, a row for each file of tests/cuda.

    python tests/cuda/ledger.py run PART [FILES] [--after PARTS]    on the GPU host, in parts of a few minutes
    python tests/cuda/ledger.py merge PARTS                         writes the ledger
    python tests/cuda/ledger.py stale                               names the files whose code changed since

Files run beside each other, each in a process of its own; then the tests marked `alone`, one file at a time.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ledger_digest import Tree
from ledger_part import entry, noted
from ledger_run import Run

ROOT = Path(__file__).resolve().parents[2]
LEDGER = "results/reference/gpu_tests.json"
OUTCOMES = ("passed", "skipped", "failed")


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="ledger.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run tests/cuda, or FILES of it, on this GPU host")
    run.add_argument("part", type=Path, help="new file that takes each outcome as soon as it is known")
    run.add_argument("files", nargs="*", help="which of tests/cuda, in order (default: longest first)")
    run.add_argument("--after", nargs="+", type=Path, default=[], help="leave out what ended in these parts")
    run.add_argument("--minutes", type=float, default=9.0, help="stop what runs then (default: 9)")
    run.add_argument("--beside", type=int, default=6, help="files beside each other (default: 6)")
    run.add_argument("--timeout", type=float, default=300.0, help="seconds for a test (default: 300)")
    merge = commands.add_parser("merge", help="write the ledger from parts")
    merge.add_argument("parts", nargs="+", type=Path)
    merge.add_argument("--dirty", action="store_true", help="also parts of a changed or unknown checkout")
    commands.add_parser("stale", help="name the files whose code changed since they ran, or that never ran")
    asked = parser.parse_args(arguments)
    if asked.command == "run":
        return run_part(root, asked)
    if asked.command == "merge":
        return merge_parts(root, asked.parts, asked.dirty)
    return warn_of_stale(root)


def run_part(root: Path, asked: argparse.Namespace) -> int:
    """1 if a test failed, 2 if something is left to run, else 0."""
    there = [path.name for path in Tree(root).test_files()]
    if asked.part.exists():
        sys.exit(f"found {asked.part}; expected the name of a new file")
    if unknown := set(asked.files) - set(there):
        sys.exit(f"found {', '.join(sorted(unknown))}; expected names of files in tests/cuda")
    before = rows(root)
    longest_first = sorted(there, key=lambda name: -before.get(name, {}).get("seconds", 0.0))
    files = asked.files or longest_first
    run = Run(root, asked.part, asked.after, before, asked.beside, asked.timeout, asked.minutes)
    left = run.all(files)
    failed = [name for name in files if entry(run.found[name])["failed"]]
    print(f"{len(files) - len(left)} of {len(files)} files are finished")
    print(f"with failures: {', '.join(failed) or 'none'}")
    print(f"left for a part with --after: {', '.join(left) or 'none'}")
    return 2 if left else int(bool(failed))


def merge_parts(root: Path, parts: list[Path], dirty: bool) -> int:
    """Put what the parts say into the ledger; files that they do not hold whole keep their rows.

    Where this checkout is clean, what covered the code that is here counts as of its commit: a host may have
    another .git beside the code than the one that it came from.
    """
    from gpufeed.system.commit import checkout

    ledger, tree, (commit, changed) = rows(root), Tree(root), checkout(root)
    there = {path.name: path for path in tree.test_files()}
    left = []
    for name, tests in noted(parts).items():
        if changed is False and name in there and tests.about["digest"] == tree.digest(there[name]):
            tests.about |= {"commit": commit, "dirty": False}
        if not tests.complete:
            left.append(f"{name}: it is not finished")
        elif not tests.about["card"]:
            left.append(f"{name}: it ran on a machine without a GPU")
        elif tests.about["dirty"] is not False and not dirty:
            left.append(f"{name}: its checkout was changed or is unknown (--dirty takes it)")
        else:
            ledger[name] = entry(tests)
    ledger = {name: row for name, row in sorted(ledger.items()) if name in there}
    (root / LEDGER).parent.mkdir(parents=True, exist_ok=True)
    (root / LEDGER).write_text(json.dumps(ledger, indent=1) + "\n")
    for line in left:
        print(f"left out {line}")
    for name, row in ledger.items():
        for test, message in row["failures"].items():
            print(f"failed: {name}::{test}: {message}")
    print(f"{LEDGER}: " + ", ".join(f"{sum(row[key] for row in ledger.values())} {key}" for key in OUTCOMES))
    return int(bool(left))


def warn_of_stale(root: Path) -> int:
    """Never fails: who changes code may have no GPU."""
    ledger, tree = rows(root), Tree(root)
    changed, missing = [], []
    for path in tree.test_files():
        if path.name not in ledger:
            missing.append(path.name)
        elif ledger[path.name]["digest"] != tree.digest(path):
            changed.append(path.name)
    for what, names in (("covers code that changed since", changed), ("is not in it", missing)):
        if names:
            print(f"warning: {LEDGER} says what ran on a GPU; {what}: {', '.join(names)}")
    return 0


def rows(root: Path) -> dict[str, Any]:
    """The ledger; empty where there is none."""
    path = root / LEDGER
    return json.loads(path.read_text()) if path.is_file() else {}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # gpufeed, where it is not installed
    sys.exit(main(sys.argv[1:]))
