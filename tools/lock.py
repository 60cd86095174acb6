"""Print what the lock file is made from: every requirement of pyproject.toml, one a line."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
groups = project["dependency-groups"].values()
print("\n".join([*project["project"]["dependencies"], *(line for group in groups for line in group)]))
