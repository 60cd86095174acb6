"""What handlers see of the probe that calls them: its fields, as constants."""

from collections.abc import Iterable
from typing import Any


class _Noticing(type):
    """A class that notices whether one of its attributes is asked for."""

    asked = False

    def __getattribute__(cls, name: str) -> Any:  # noqa: ANN401 - the attribute protocol
        if not name.startswith("__") and name != "asked":
            type.__setattr__(cls, "asked", True)
        return type.__getattribute__(cls, name)


def constants(name: str, fields: dict[str, object]) -> type:
    """Return a class with some fields; a handler that does not ask for any serves other probes, too."""
    return _Noticing(name, (), dict(fields))


def were_asked(classes: Iterable[type]) -> bool:
    """Return whether a handler has asked for a field of one of some classes."""
    return any(bool(type.__getattribute__(each, "asked")) for each in classes)
