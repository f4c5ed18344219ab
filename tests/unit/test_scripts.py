"""What the jobs of the workflow import before they begin. Each is a fresh process."""

import subprocess
import sys

import pytest
from data_fixtures import REPOSITORY


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
