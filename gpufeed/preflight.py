"""python -m gpufeed.preflight --site SITE [SNAKEMAKE ARGUMENTS]: what a run would ask Slurm for."""

import sys

from gpufeed.cluster.preflight.python_check import lacking

if LACKING := lacking():  # before the imports that would fail
    print(LACKING, file=sys.stderr)
    sys.exit(2)

from gpufeed.cluster.preflight.command import main

if __name__ == "__main__":
    sys.exit(main())
