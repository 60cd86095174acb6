"""``functools.cached_property`` without the lock that Python 3.11 takes for every value: analysis finds a million."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

__all__ = ["Lazy", "cached_property"]

_T = TypeVar("_T")

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(Generic[_T]):  # noqa: N801 - as in functools
        """What a method returns, worked out when it is first asked for."""

        def __init__(self, find: Callable[[Any], _T]) -> None:
            """Take the method."""
            self._find, self.__doc__ = find, find.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Keep the name under which the value is found afterwards, without asking here."""
            self._name = name

        def __get__(self, instance: object, owner: type | None = None) -> object:
            """Work it out, and keep it."""
            if instance is None:
                return self
            found = instance.__dict__[self._name] = self._find(instance)
            return found


class Lazy(cached_property[_T]):
    """A ``cached_property`` that tells what it has made: ``Collection.maps.made(collection)``."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Keep the name under which the value is found afterwards."""
        super().__set_name__(owner, name)
        self._kept_as = name

    def made(self, instance: object) -> _T | None:
        """Return the attribute of an instance, None if nothing has read it yet."""
        return cast("_T | None", vars(instance).get(self._kept_as))

    def forget(self, instance: object) -> _T | None:
        """Have the attribute made anew when it is next read; return what it was, None if nothing had read it."""
        return cast("_T | None", vars(instance).pop(self._kept_as, None))
