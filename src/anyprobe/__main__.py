"""``python -m anyprobe``."""

import sys

from anyprobe.cli import main

if __name__ == "__main__":
    sys.exit(main())
