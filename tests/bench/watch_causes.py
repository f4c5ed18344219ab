"""Whether gpufeed.watch names planted causes: python tests/bench/watch_causes.py RESULT.json

Every case of tests/fixtures/watch_cases.py (kinds x frameworks that are installed) runs once in a process of
its own, with deep=True, and then as many clean runs as asked for: compute-bound loops of other workers and
steps. The cause that is named first counts. Writes each run and how many were right, wrong, unsure (none
named) or false alarms. `--traceml` runs plain loops under TraceML (traceml-ai 0.5.0), too, where that is
installed: it tells whether the input is the limit, and no stage of it. Exit status 1 where one was wrong.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parents[1] / "fixtures"
sys.path.insert(0, str(FOLDER))

import watch_cases as planted  # noqa: E402

import gpufeed.watch  # noqa: E402
from gpufeed.system.environment import environment  # noqa: E402

NEEDS = {
    "plain": (),
    "lightning": ("pytorch_lightning",),
    "fastai": ("fastai",),
    "accelerate": ("accelerate",),
}
LIMIT_S = 120  # of a run


def clean(number: int) -> planted.Case:
    """Return a compute-bound loop; every other one has workers, and steps are of many lengths."""
    workers, step_s = number % 3, (0.01, 0.02, 0.04, 0.08)[number % 4]
    made = {"read_s": 2e-4, "decode_s": 1e-4} if workers else {}
    return replace(
        planted.Case(
            f"clean {number}", planted.NOTHING, workers=workers, step_s=step_s, epochs=1 + number % 2
        ),
        batches=int(4 / step_s / (1 + number % 2)),
        framework=list(planted.FRAMEWORKS)[number // 4 % 2],
        **made,
    )


def run(case: planted.Case) -> dict:
    """Train one case in this process, and return what watch says of it."""
    torch.set_num_threads(1)
    watched = gpufeed.watch(planted.made_loader(case), out=None, quiet=True, burst=planted.BURST, deep=True)
    planted.train(case, watched)
    found = watched.result()
    kept = (
        "au",
        "data_stall_share",
        "causes",
        "stages",
        "growth",
        "verdict",
        "not_measured",
        "steps",
        "method",
    )
    return {name: found[name] for name in kept}


def by_traceml(case: planted.Case) -> str:
    """Return TraceML's main diagnosis of a plain loop over a case."""
    with tempfile.TemporaryDirectory() as folder:
        call = ["--mode", "summary", "--logs-dir", folder, "--run-name", "case", __file__, "--args", "-"]
        start = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
        whole = [sys.executable, "-c", start, "run", *call, "--traced", "--case", json.dumps(asdict(case))]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=LIMIT_S)
        try:
            found = json.loads((Path(folder) / "case/final_summary.json").read_text())
        except OSError:
            return f"failed: {done.stderr[-200:]}"
    return found["primary_diagnosis"]["kind"]


def traced(case: planted.Case) -> None:
    """Train one case in a plain loop under TraceML."""
    import traceml_ai as traceml

    traceml.init(mode="auto")
    torch.set_num_threads(1)
    model = planted.PacedModel(case)
    optimiser, loader = model.optimiser(), planted.made_loader(case)
    for _ in range(case.epochs):
        for samples, _ in loader:
            with traceml.trace_step(model):
                optimiser.zero_grad()
                model(samples).backward()
                optimiser.step()


def apart(case: planted.Case) -> dict:
    """Run a case in a process of its own; a run that fails says why."""
    began = time.perf_counter()
    call = [sys.executable, __file__, "-", "--case", json.dumps(asdict(case))]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT_S)
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        found = {"failed": f"{error}"[:200], "causes": []}
    first = found["causes"][0]["name"] if found["causes"] else None
    return {
        "case": case.name,
        "framework": case.framework,
        "expected": case.cause,
        "first": first,
        "seconds": time.perf_counter() - began,
        **found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--frameworks", nargs="+", choices=list(NEEDS), default=list(NEEDS))
    parser.add_argument("--kinds", nargs="+", help="names of cases; default: all")
    parser.add_argument("--clean", type=int, default=20, help="runs of loops that no loader holds up")
    parser.add_argument("--traceml", action="store_true", help="run TraceML beside it, plain loops alone")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.traced:
        traced(planted.Case(**json.loads(given.case)))
        return 0
    if given.case:
        print(json.dumps(run(planted.Case(**json.loads(given.case)))))
        return 0
    there = [name for name in given.frameworks if all(find_spec(one) for one in NEEDS[name])]
    for name in set(given.frameworks) - set(there):
        print(f"{name} is not installed: its cases are left out", flush=True)
    beside = given.traceml and find_spec("traceml_ai")
    if given.traceml and not beside:
        print("traceml-ai is not installed: nothing is run beside", flush=True)
    cases = [case for case in planted.CASES if case.framework in there]
    cases = [case for case in cases if not given.kinds or case.name in given.kinds]
    rows = []
    for case in [*cases, *map(clean, range(given.clean))]:
        rows.append(row := apart(case))
        told = "right" if row["first"] == row["expected"] else "unsure" if row["first"] is None else "WRONG"
        row["verdict_on_it"] = told
        au = (row.get("au") or {}).get("value") or float("nan")
        named = ", ".join(one["name"] for one in row["causes"]) or row.get("failed", "-")
        about = f"AU {au:.3f}, truth {case.truth():.3f}, {row['seconds']:.0f} s"
        if beside and case.framework == "plain":
            row["traceml"] = by_traceml(case)
            about += f"; TraceML: {row['traceml']}"
        print(f"{told:6} {case.name} ({case.framework}): {named}; {about}", flush=True)
        tally = {
            of: {
                name: sum(
                    one["verdict_on_it"] == name for one in rows if one["case"].startswith("clean") is alone
                )
                for name in ("right", "unsure", "WRONG")
            }
            for of, alone in (("planted", False), ("clean", True))
        }
        about = {"tally": tally, "environment": environment(torch.device("cpu")), "runs": rows}
        given.result.write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(tally))
    return int(any(one["verdict_on_it"] == "WRONG" for one in rows))


if __name__ == "__main__":
    raise SystemExit(main())
