"""`python -m toolkit` is the command `toolkit`."""

import sys

from toolkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
