"""The mutation check on a made-up tree: the same mutants for a seed, found after a move, killed by a test."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from data_fixtures import REPOSITORY

sys.path.append(str(REPOSITORY / "tests/bench"))

import mutants

sys.path.remove(str(REPOSITORY / "tests/bench"))  # its coverage.py is not what numba looks for

COUNTING = '''
def longest(lines, limit):
    """Return the longest line under the limit."""
    best = ""
    for line in lines:
        if len(line) < limit and len(line) > len(best):  # a tie keeps the first
            best = line
    return best


def on_card(images):
    import cupy

    first = images[0]
    return cupy.asarray(first)


def short(line):
    return line[1:]
'''
TEST = """
from gpufeed.text import counting

def test_longest():
    assert counting.longest(["a", "abc", "abcdef"], 5) == "abc"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one package, one module and its test."""
    root = tmp_path / "root"
    (root / "gpufeed/text").mkdir(parents=True)
    (root / "gpufeed/text/counting.py").write_text(COUNTING)
    (root / "gpufeed/user.py").write_text("from gpufeed.text.counting import short\n")
    (root / "tests/unit").mkdir(parents=True)
    (root / "tests/unit/test_counting.py").write_text(TEST)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def turned(root: Path) -> dict:
    """Return the mutant that turns `and` into `or`."""
    function = mutants.functions(root)[0]
    change = next(each for each in mutants.changes(function) if each.kind == "and/or")
    about = {"kind": change.kind, "before": change.before, "after": change.after, "text": function.text}
    return {"name": "001 longest", "function": function.name, "file": function.file, **about}


def test_mutant_is_found_after_its_function_moved_with_new_names(root):
    mutant = turned(root)
    renamed = COUNTING.replace("longest", "longest_line").replace("limit", "most")
    (root / "gpufeed/text/counting.py").unlink()
    (root / "gpufeed/words.py").write_text(renamed)
    function, change = mutants.locate(mutant, mutants.functions(root))
    assert (function.name, function.file) == ("longest_line", "gpufeed/words.py")
    written = mutants.written(renamed, function, change)
    assert "if (len(line) < most or len(line) > len(best)):  # a tie" in written
    assert written.replace("(len(line) < most or len(line) > len(best))", "X") == renamed.replace(
        "len(line) < most and len(line) > len(best)", "X"
    )


@pytest.mark.parametrize("copies", [0, 2])
def test_missing_or_ambiguous_function_is_an_error(root, copies):
    mutant = turned(root)
    shutil.rmtree(root / "gpufeed/text")
    for n in range(copies):
        (root / f"gpufeed/copy_{n}.py").write_text(COUNTING)
    with pytest.raises(mutants.Lost, match="ambiguous" if copies else "no function"):
        mutants.locate(mutant, mutants.functions(root))


@pytest.mark.slow
def test_run_kills_what_a_test_sees_and_leaves_the_tree_as_it_was(root, tmp_path):
    seen, unseen = turned(root), turned(root)
    changes = mutants.changes(mutants.functions(root)[0])
    boundary = next(each for each in changes if each.kind == "boundary")
    unseen |= {"name": "002 longest", "kind": "boundary", "before": boundary.before, "after": boundary.after}
    with pytest.raises(SystemExit) as end:
        mutants.judge_all(root, [seen, unseen], tmp_path / "out.jsonl")
    assert end.value.code == 0
    assert mutants.verdicts(tmp_path / "out.jsonl") == {"001 longest": "killed", "002 longest": "survived"}
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["by"].endswith("::test_longest")
    assert (root / "gpufeed/text/counting.py").read_text() == COUNTING
