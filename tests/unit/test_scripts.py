"""What the jobs of the workflow import before they begin. Each is a fresh process."""

import os
import re
import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY

from gpufeed.system import parent_watchdog

SCRIPTS = sorted(path.stem for path in (REPOSITORY / "workflow/scripts").glob("*.py"))
MOST_LINES = 15  # the rest is gpufeed.job's, or of what the job runs
HEAVY = {"matplotlib", "numpy", "pandas", "PIL", "pyarrow", "torch"}


@pytest.mark.parametrize(
    ("script", "imported", "module"),
    [
        ("build_cache", "gpufeed.stores.decoded_cache", "torch"),
        ("assemble_report", "gpufeed.report.publish", "scipy"),
        ("plot", "gpufeed.report.publish", "scipy"),
    ],
)
def test_a_job_does_not_wait_for_modules_that_it_may_not_need(script, imported, module):
    assert f"from {imported} import" in (REPOSITORY / f"workflow/scripts/{script}.py").read_text()
    code = f"import sys, {imported}; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_whose_snakemake_is_gone_ends_before_it_imports_what_takes_seconds(script, tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    handed = {
        parent_watchdog.VARIABLE: f"{gone.pid}:{parent_watchdog.pid_namespace()}",
        "PYTHONPATH": str(REPOSITORY),
    }
    path = str(REPOSITORY / f"workflow/scripts/{script}.py")
    code = f"import runpy; runpy.run_path({path!r}, {{'snakemake': None}}, run_name='__main__')"
    command = [sys.executable, "-X", "importtime", "-c", code]
    job = subprocess.run(command, env=os.environ | handed, cwd=tmp_path, capture_output=True, text=True)
    imported = set(re.findall(r"\| +(\w+)\n", job.stderr))
    assert (job.returncode, job.stdout) == (1, "")
    assert "psutil" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_thin(script):
    lines = (REPOSITORY / f"workflow/scripts/{script}.py").read_text().splitlines()
    assert len(lines) <= MOST_LINES
