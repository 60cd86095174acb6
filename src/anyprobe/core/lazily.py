"""Attributes that are made when they are first read, and that can be asked whether they have been."""

from functools import cached_property
from typing import TypeVar, cast

T = TypeVar("T")


class Lazy(cached_property[T]):
    """A ``cached_property`` that tells what it has made: ``Session.handling.made(session)``."""

    def made(self, instance: object) -> T | None:
        """Return the attribute of an instance, None if nothing has read it yet."""
        return cast("T | None", vars(instance).get(cast("str", self.attrname)))
