"""Run python -m gpufeed.train under the name that many guides use."""

import sys

from gpufeed.train import main

if __name__ == "__main__":
    sys.exit(main())
