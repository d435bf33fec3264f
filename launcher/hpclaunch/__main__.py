"""Entry point of `python -m hpclaunch`, which is the same as `hpclaunch`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
