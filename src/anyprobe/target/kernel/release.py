"""Which version of Linux runs, for what no trial can show; all else is found by trying."""

import os
import re

_VERSION = re.compile(r"(\d+)\.(\d+)")


def running(release: str | None = None) -> tuple[int, int]:
    """Return the first two numbers of the kernel's version; ``release``: as uname has it."""
    found = _VERSION.match(os.uname().release if release is None else release)
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)
