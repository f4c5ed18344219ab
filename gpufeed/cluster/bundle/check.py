"""python -m gpufeed.cluster.bundle.check FOLDER 12|13: can `make setup OFFLINE=FOLDER` install from it?

Runs in a Python into which nothing was installed.
"""

import sys
from pathlib import Path

from gpufeed.cluster.bundle.contents import check
from gpufeed.core.errors import GpufeedError

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(f"{sys.argv[1]}: {check(Path(sys.argv[1]), sys.argv[2])} files, all whole")
    except GpufeedError as error:
        sys.exit(str(error))
