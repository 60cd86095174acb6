"""Attributes that are made when they are first read, and that can be asked whether they have been."""

from typing import TypeVar, cast

from anyprobe.core.cachedproperty import cached_property

T = TypeVar("T")


class Lazy(cached_property[T]):
    """A ``cached_property`` that tells what it has made: ``Collection.maps.made(collection)``."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Keep the name under which the value is found afterwards."""
        super().__set_name__(owner, name)
        self._kept_as = name

    def made(self, instance: object) -> T | None:
        """Return the attribute of an instance, None if nothing has read it yet."""
        return cast("T | None", vars(instance).get(self._kept_as))

    def forget(self, instance: object) -> T | None:
        """Have the attribute made anew when it is next read; return what it was, None if nothing had read it."""
        return cast("T | None", vars(instance).pop(self._kept_as, None))
