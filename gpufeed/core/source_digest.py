"""Digests of the code behind a rule, so that an edit runs again what it could have changed, and no more.

Snakemake watches scripts, not the modules that they import. Standard library only: used while planning.
"""

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def digest(*patterns: str) -> str:
    """One digest over the files of the package that match, such as "training/*.py"; 12 hex digits.

    Raises ValueError for a pattern that matches nothing: a renamed module must not go unwatched.
    """
    whole = hashlib.sha256()
    for pattern in patterns:
        files = sorted(PACKAGE.glob(pattern))
        if not files:
            raise ValueError(f"no module matches gpufeed/{pattern}")
        for file in files:
            whole.update(file.relative_to(PACKAGE).as_posix().encode())
            whole.update(file.read_bytes())
    return whole.hexdigest()[:12]
