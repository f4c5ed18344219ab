"""Whether this Python can run preflight at all. Standard library only, and readable by Python 3.8."""

import sys
from importlib.util import find_spec

LEAST = (3, 11)
NEEDED = ("requests", "snakemake", "snakemake_executor_plugin_slurm", "yaml")
REMEDY = "in the checkout, `make setup PYTHON=python3.12` once, then `. .venv/bin/activate`"


def lacking():
    """What is wrong, as one sentence; "" where nothing is."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if sys.version_info < LEAST:
        found = "Python " + ".".join(map(str, sys.version_info[:2]))
    elif missing:
        found = "a Python without {}, {}".format(", ".join(missing), sys.executable)
    else:
        return ""
    return f"found {found}; expected the environment of gpufeed, Python 3.11 or newer: {REMEDY}"
