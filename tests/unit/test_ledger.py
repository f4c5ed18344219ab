"""The ledger of tests/cuda: no outcome is lost when a test or the run dies, and old outcomes are named."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from data_fixtures import REPOSITORY
from process_fixtures import wait_until

sys.path.append(str(REPOSITORY / "tests/cuda"))

import ledger
import ledger_run
from ledger_digest import Tree
from ledger_part import read

CARD = {"commit": "c0ffee", "dirty": False, "card": "NVIDIA H100", "cards": 1}

ORDINARY = """
    import pytest

    def test_good(): pass

    @pytest.mark.parametrize("count", [1, 2])
    def test_bad(count):
        print("said before")
        assert count == 1, "two"

    @pytest.mark.skip(reason="needs 2 GPUs")
    def test_of_two(): pass

    @pytest.fixture
    def broken(): raise OSError("no room")

    def test_without_its_fixture(broken): pass
"""
DEADLY = """
    import os, signal

    def test_before(): pass

    def test_killed(): os.kill(os.getpid(), signal.SIGKILL)

    def test_between(): pass

    def test_exits(): os._exit(0)

    def test_after(): pass
"""
HANGING = """
    import signal, time

    def test_out_of_reach():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(60)

    def test_after(): pass
"""
PATIENT = """
    import pytest, time

    @pytest.mark.timeout(60)
    def test_with_a_limit_of_its_own(): time.sleep(5)
"""
ALONE = """
    import time
    import pytest

    @pytest.mark.alone
    def test_by_itself(): time.sleep(0.3)

    def test_beside(): pass
"""
BROKEN = "import nothing_of_this_name"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Writes the files of a checkout and returns its root; it seems to be on a host with a GPU."""
    monkeypatch.setattr(ledger_run, "host", lambda root: CARD)
    (tmp_path / "tests/cuda").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone: by itself\n")

    def write(**files: str) -> Path:
        for name, text in files.items():
            folder = tmp_path / ("tests/cuda" if name.startswith("test_") else "gpufeed")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        return tmp_path

    return write


def rows(root: Path) -> dict:
    return json.loads((root / ledger.LEDGER).read_text())


def counts(row: dict) -> tuple[int, int, int]:
    return row["passed"], row["skipped"], row["failed"]


@pytest.mark.slow
def test_every_outcome_is_in_the_ledger_whatever_dies(checkout, monkeypatch, capsys):
    monkeypatch.setattr(ledger_run, "GRACE_S", 1)
    root = checkout(
        test_alone=ALONE,
        test_broken=BROKEN,
        test_deadly=DEADLY,
        test_hanging=HANGING,
        test_ordinary=ORDINARY,
        test_patient=PATIENT,
    )
    part = root / "part.jsonl"
    assert ledger.main(["run", str(part), "--timeout", "3"], root) == 1
    assert ledger.main(["merge", str(part)], root) == 0
    found = rows(root)
    assert {name: counts(row) for name, row in found.items()} == {
        "test_alone.py": (2, 0, 0),
        "test_broken.py": (0, 0, 1),
        "test_deadly.py": (3, 0, 2),
        "test_hanging.py": (1, 0, 1),
        "test_ordinary.py": (2, 1, 2),
        "test_patient.py": (1, 0, 0),
    }
    ordinary = found["test_ordinary.py"]
    assert {name: ordinary[name] for name in CARD} == CARD
    assert ordinary["reasons"] == {"needs 2 GPUs": 1}
    assert set(ordinary["failures"]) == {"test_bad[2]", "test_without_its_fixture"}
    assert "two" in ordinary["failures"]["test_bad[2]"]
    assert "SIGKILL" in found["test_deadly.py"]["failures"]["test_killed"]
    assert "exit code 0" in found["test_deadly.py"]["failures"]["test_exits"]
    assert "silent" in found["test_hanging.py"]["failures"]["test_out_of_reach"]
    assert "nothing_of_this_name" in next(iter(found["test_broken.py"]["failures"].values()))

    events = list(read(part))
    detail = next(
        event["detail"] for event in events if event.get("test") == "test_bad[2]" and "detail" in event
    )
    assert "assert 2 == 1" in detail
    assert "said before" in detail
    by_itself = [number for number, event in enumerate(events) if event.get("test") == "test_by_itself"]
    assert by_itself[1] == by_itself[0] + 1
    assert not any(event["event"] == "start" for event in events[by_itself[1] + 1 :])


@pytest.mark.slow
def test_a_killed_run_keeps_what_ended_and_the_next_part_goes_on(checkout):
    slow = """
        from pathlib import Path
        import time

        def test_first(): Path("ran").open("a").write("first ")

        def test_long():
            Path("ran").open("a").write("long ")
            while not Path("go").exists(): time.sleep(0.05)

        def test_last(): Path("ran").open("a").write("last ")
    """
    root = checkout(test_slow=slow, test_alone=ALONE)
    first, second = root / "first.jsonl", root / "second.jsonl"
    code = f"import ledger, ledger_run; from pathlib import Path; ledger_run.host = lambda root: {CARD}; "
    code += f"ledger.main(['run', {str(first)!r}], Path({str(root)!r}))"
    run = subprocess.Popen([sys.executable, "-c", code], env={"PYTHONPATH": str(REPOSITORY / "tests/cuda")})
    wait_until(lambda: (root / "ran").exists() and "long" in (root / "ran").read_text())
    run.send_signal(signal.SIGKILL)
    run.wait()
    with first.open("a") as stream:
        stream.write('{"event": "st')  # as a cut line
    assert ledger.main(["merge", str(first)], root) == 1
    assert "test_slow.py" not in rows(root)

    (root / "go").touch()
    assert ledger.main(["run", str(second), "--after", str(first)], root) == 0
    assert ledger.main(["merge", str(first), str(second)], root) == 0
    assert counts(rows(root)["test_slow.py"]) == (3, 0, 0)
    assert counts(rows(root)["test_alone.py"]) == (2, 0, 0)
    assert (root / "ran").read_text() == "first long long last "


@pytest.mark.slow
def test_what_does_not_end_in_time_is_stopped_and_left(checkout, capsys):
    root = checkout(test_slow="import time\ndef test_quick(): pass\ndef test_long(): time.sleep(60)\n")
    part = root / "part.jsonl"
    assert ledger.main(["run", str(part), "--minutes", "0.05"], root) == 2
    assert "left for a part with --after: test_slow.py" in capsys.readouterr().out
    assert [event["event"] for event in read(part)][-1] in ("file", "collected", "start")


def events(root: Path, name: str, outcomes: dict[str, str], digest: str = "d", **host) -> Path:
    """A part as it is written on a host with a GPU."""
    about = {"file": "test_x.py", "alone": False}
    lines = [{"event": "part", **CARD, **host}, {"event": "file", "file": "test_x.py", "digest": digest}]
    lines.append({"event": "collected", **about, "tests": len(outcomes), "of_them_alone": 0})
    for test, outcome in outcomes.items():
        message = "why" if outcome != "passed" else ""
        end = {"event": "end", "test": test, "outcome": outcome, "message": message, "seconds": 1.0}
        lines.append({**end, **about})
    lines.append({"event": "done", **about})
    (root / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root / name


def test_a_test_that_fails_at_times_is_named(checkout):
    root = checkout(test_x="")
    parts = [
        events(root, f"{n}", {"a": outcome, "b": "passed"}) for n, outcome in enumerate(["failed", "passed"])
    ]
    ledger.main(["merge", *map(str, parts)], root)
    assert counts(rows(root)["test_x.py"]) == (2, 0, 0)
    assert rows(root)["test_x.py"]["unsteady"] == {"a": "failed in 1 of 2 runs"}


def test_what_ran_before_its_code_changed_is_not_counted(checkout):
    root = checkout(test_x="")
    parts = [
        events(root, "1", {"a": "failed", "gone": "passed"}, "old"),
        events(root, "2", {"a": "passed"}, "new"),
    ]
    ledger.main(["merge", *map(str, parts)], root)
    assert counts(rows(root)["test_x.py"]) == (1, 0, 0)
    assert rows(root)["test_x.py"]["digest"] == "new"


@pytest.mark.parametrize("host", [{"dirty": True}, {"dirty": None}, {"card": None}])
def test_a_changed_checkout_and_a_machine_without_a_gpu_are_left_out(checkout, host):
    root = checkout(test_x="")
    good, bad = (
        events(root, "good", {"a": "passed"}),
        events(root, "bad", {"a": "passed", "b": "passed"}, **host),
    )
    assert ledger.main(["merge", str(good)], root) == 0
    assert ledger.main(["merge", str(bad)], root) == 1
    assert counts(rows(root)["test_x.py"]) == (1, 0, 0)
    if host != {"card": None}:
        assert ledger.main(["merge", "--dirty", str(bad)], root) == 0
        assert rows(root)["test_x.py"]["dirty"] is host["dirty"]


@pytest.mark.parametrize("same", [True, False])
def test_code_that_is_that_of_a_clean_checkout_is_of_its_commit(checkout, same):
    root = checkout(test_x="def test_a(): pass")
    git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@b"]
    digest = Tree(root).digest(root / "tests/cuda/test_x.py") if same else "d"
    part = events(root, "part", {"a": "passed"}, digest, commit="another", dirty=True)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    assert ledger.main(["merge", str(part)], root) == int(not same)
    if same:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        assert (rows(root)["test_x.py"]["commit"], rows(root)["test_x.py"]["dirty"]) == (head, False)


REGISTRY = """
    class Entry:
        pass

    LOADERS = {"near": Entry("gpufeed.near:Near"), "far": Entry("gpufeed.far:Far")}
"""
COVERS = {
    "imports": "from gpufeed import near",
    "imports an attribute": "from gpufeed.near import Near",
    "imports inside a function": "def test_it():\n    import gpufeed.near",
    "imports by another module": "from gpufeed.between import near",
    "names a module": "COMMAND = 'python -m gpufeed.near'",
    "names what is registered": "from gpufeed.core.registry import load\nload('loader', 'near')",
    "takes a list of the registry": "from gpufeed.core.registry import LOADERS",
    "takes it by the module": "from gpufeed.core import registry\nregistry.LOADERS",
}


@pytest.mark.parametrize("how", COVERS)
def test_a_digest_is_that_of_the_code_that_a_test_covers(checkout, how):
    root = checkout(
        __init__="",
        **{"core/registry": REGISTRY},
        between="from gpufeed import near",
        near="ONE = 1\n",
        test_x=COVERS[how],
    )
    checkout(far="", other="")
    test = root / "tests/cuda/test_x.py"
    before = Tree(root).digest(test)
    checkout(other="TWO = 2")
    assert Tree(root).digest(test) == before
    checkout(near='"""Says why."""\n\n# and how\nONE = 1  # so\n')
    assert Tree(root).digest(test) == before
    test.write_text(f'"""As gpufeed.other does."""\n{COVERS[how]}')
    assert Tree(root).digest(test) == before
    checkout(near="ONE = 2\n")
    assert Tree(root).digest(test) != before


def test_native_sources_count_where_the_ops_are_covered(checkout):
    root = checkout(test_x="import gpufeed.native.gelu", test_y="")
    source = root / "gpufeed/native/csrc/gelu.cu"
    source.parent.mkdir(parents=True)
    (root / "gpufeed/native/gelu.py").touch()
    found = []
    for text in ("int a = 1;\n", "/* one */ int a = 1; // say\n", "int a = 2;\n"):
        source.write_text(text)
        found.append([Tree(root).digest(root / f"tests/cuda/test_{name}.py") for name in "xy"])
    assert found[0][0] != found[2][0]
    assert found[0][1] == found[1][1] == found[2][1]


def test_stale_names_the_files_whose_code_changed_and_those_that_never_ran(checkout, capsys):
    root = checkout(near="ONE = 1\n", test_new="", test_old="", test_x="from gpufeed import near")
    tree = Tree(root)
    ran = {
        f"test_{name}.py": {"digest": tree.digest(root / f"tests/cuda/test_{name}.py")}
        for name in ("old", "x")
    }
    (root / ledger.LEDGER).parent.mkdir(parents=True)
    (root / ledger.LEDGER).write_text(json.dumps(ran))
    checkout(near="ONE = 2\n")
    assert ledger.main(["stale"], root) == 0
    changed, missing = capsys.readouterr().out.splitlines()
    assert changed.endswith(": test_x.py")
    assert missing.endswith(": test_new.py")
