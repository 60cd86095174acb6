"""The fixtures of the live tests serve here too."""

from live.conftest import compiled, run_target

__all__ = ["compiled", "run_target"]
