"""The command python -m gpufeed.train, by the name that many guides have for it."""

import sys

from gpufeed.train import main

if __name__ == "__main__":
    sys.exit(main())
