"""Print what a lock file is made from, one requirement a line: pyproject.toml without docs and dist, or one group.

``lock.py`` is for requirements.lock, ``lock.py docs`` for requirements-docs.lock, ``lock.py dist`` likewise.
"""

import sys
import tomllib
from pathlib import Path

SEPARATE = {"dist", "docs"}
"""Groups with a lock file of their own, so that ``make setup`` does not install them."""

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = project["dependency-groups"]
wanted = sys.argv[1:]
lines = [] if wanted else project["project"]["dependencies"] + project["project"]["optional-dependencies"]["handlers"]
lines += [line for name, group in groups.items() if name in (wanted or groups.keys() - SEPARATE) for line in group]
print("\n".join(lines))
