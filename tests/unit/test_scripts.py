"""What the jobs of the workflow import before they begin. Each is a fresh process."""

import os
import re
import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY

from gpufeed import orphan

SCRIPTS = sorted(path.stem for path in (REPOSITORY / "workflow/scripts").glob("*.py"))
HEAVY = {"matplotlib", "numpy", "pandas", "PIL", "pyarrow", "torch"}


@pytest.mark.parametrize(
    ("script", "module"), [("build_cache", "torch"), ("assemble_report", "scipy"), ("plot", "scipy")]
)
def test_a_job_does_not_wait_for_modules_that_it_may_not_need(script, module):
    lines = (REPOSITORY / f"workflow/scripts/{script}.py").read_text().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports
    code = "\n".join([*imports, "import sys", f"print({module!r} in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_whose_snakemake_is_gone_ends_before_it_imports_what_takes_seconds(script, tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    handed = {orphan.VARIABLE: f"{gone.pid}:{orphan.pid_namespace()}", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-X", "importtime", str(REPOSITORY / f"workflow/scripts/{script}.py")]
    job = subprocess.run(command, env=os.environ | handed, cwd=tmp_path, capture_output=True, text=True)
    imported = set(re.findall(r"\| +(\w+)\n", job.stderr))
    assert (job.returncode, job.stdout) == (1, "")
    assert "psutil" in imported
    assert not imported & HEAVY
