"""Print what a lock file is made from, one requirement a line: pyproject.toml without docs and dist, or one group.

``lock.py`` is for requirements.lock, ``lock.py docs`` for requirements-docs.lock, ``lock.py dist`` likewise.
"""

import sys
import tomllib
from pathlib import Path

SEPARATE = {"dist", "docs"}
"""Groups with a lock file of their own, so that ``make setup`` does not install them."""

LOCKED = ("handlers", "hosts", "otlp", "serve", "top")
"""Extras that tests need; the others are as large as everything else together."""

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = project["dependency-groups"]
wanted = sys.argv[1:]
optional = project["project"]["optional-dependencies"]
lines = [] if wanted else sum((optional[each] for each in LOCKED), project["project"]["dependencies"])
lines += [line for name, group in groups.items() if name in (wanted or groups.keys() - SEPARATE) for line in group]
print("\n".join(lines))
