"""python -m gpufeed.preflight --site SITE [SNAKEMAKE ARGUMENTS]: print what a run would ask Slurm for.

This module needs the standard library only and runs on Python 3.8, so that it can refuse an old Python.
"""

import sys
from importlib.util import find_spec

LEAST = (3, 11)
NEEDED = ("requests", "snakemake", "snakemake_executor_plugin_slurm", "yaml")


def lacking():
    """Return what this Python lacks to run preflight, as one sentence; "" where it lacks nothing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if sys.version_info < LEAST:
        found = "Python " + ".".join(map(str, sys.version_info[:2]))
    elif missing:
        found = "a Python without {}, {}".format(", ".join(missing), sys.executable)
    else:
        return ""
    remedy = "in the checkout, `make setup PYTHON=python3.12` once, then `. .venv/bin/activate`"
    return f"found {found}; expected the environment of gpufeed, Python 3.11 or newer: {remedy}"


def main(arguments=None):
    """Run the command line and return its exit code."""
    if found := lacking():
        print(found, file=sys.stderr)
        return 2
    from gpufeed.cluster.preflight.command import main  # imports the NEEDED packages

    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())
