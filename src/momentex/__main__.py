"""`python -m momentex` is the command `momentex`."""

import sys

from momentex.cli import main

if __name__ == "__main__":
    sys.exit(main())
