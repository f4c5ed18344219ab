"""What the jobs of the workflow import before they begin. Each is a fresh process."""

import os
import re
import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY

from gpufeed.system import parent_watchdog

SCRIPTS = REPOSITORY / "workflow/scripts"
FILES = sorted(SCRIPTS.glob("*.py"))
MOST_LINES = 15  # the rest is gpufeed.job's, or of what the job runs
HEAVY = {"matplotlib", "numpy", "pandas", "PIL", "pyarrow", "torch"}


@pytest.mark.parametrize(
    ("scripts", "imported", "module"),
    [
        (["build_cache"], "gpufeed.stores.decoded_cache", "torch"),
        (["assemble_report", "plot"], "gpufeed.report.publish", "scipy"),
    ],
)
def test_a_job_does_not_wait_for_modules_that_it_may_not_need(scripts, imported, module):
    for script in scripts:
        assert f"from {imported} import" in (SCRIPTS / f"{script}.py").read_text()
    code = f"import sys, {imported}; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


EACH = """
import os, runpy, sys
for script in sys.argv[1:]:
    print("script", script, file=sys.stderr, flush=True)
    if os.fork() == 0:
        runpy.run_path(script, {"snakemake": None}, run_name="__main__")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_a_job_whose_snakemake_is_gone_ends_before_it_imports_what_takes_seconds(tmp_path):
    """Run each script in a fork of one process that has imported nothing yet."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    handed = {
        parent_watchdog.VARIABLE: f"{gone.pid}:{parent_watchdog.pid_namespace()}",
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-X", "importtime", "-c", EACH, *FILES]
    jobs = subprocess.run(command, env=os.environ | handed, cwd=tmp_path, capture_output=True, text=True)
    assert jobs.stdout.splitlines() == ["1"] * len(FILES)
    said = jobs.stderr.split("script /")[1:]
    assert len(said) == len(FILES)
    for lines in said:
        imported = set(re.findall(r"\| +(\w+)\n", lines))
        assert "psutil" in imported
        assert not imported & HEAVY, lines.splitlines()[0]


def test_scripts_are_thin():
    lines = {path.stem: len(path.read_text().splitlines()) for path in FILES}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}
