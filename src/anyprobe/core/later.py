"""NumPy, loaded when it is first used: most commands on the kernel set their probes without it.

What annotations need is imported for type checkers alone.
"""

from typing import Any


class _Later:
    """Stands for a module; its attributes are taken from there when they are first asked for."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - anything that the module has
        """Return an attribute of the module, and keep it."""
        import numpy as np

        found = self.__dict__[name] = getattr(np, name)
        return found


np = _Later()
