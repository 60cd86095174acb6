"""The controller of controller.py, whose sessions demand traps."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import controller

import anyprobe

if __name__ == "__main__":
    anyprobe.attach = functools.partial(anyprobe.attach, strategy="trap")
    controller.main()
