"""The controller of controller.py, whose sessions change the program while it runs."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import controller

import anyprobe

if __name__ == "__main__":
    anyprobe.attach = functools.partial(anyprobe.attach, live=True)
    controller.SPECS = ("a.out:one_byte", "a.out:loaded", "a.out:loaded%return", "a.out:scaled", "libc:getenv")
    controller.TIMED = "a.out:loaded"
    controller.main()
