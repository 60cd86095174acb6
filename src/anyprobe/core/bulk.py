"""Values that are made by the thousand while a program waits."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as bulk_dataclass
else:
    _Made = TypeVar("_Made")

    def bulk_dataclass(
        *,
        frozen: bool,
        slots: bool,
        eq: bool = True,
        repr: bool = True,  # noqa: A002 - as dataclasses call it
    ) -> Callable[[type[_Made]], type[_Made]]:
        """Make a dataclass, frozen and with slots, that takes less than half the time of others to make values.

        Dataclasses set the fields of frozen values by name; these are set by their slots. Fields have no factories.
        """

        def decorate(cls: type[_Made]) -> type[_Made]:
            made = dataclass(frozen=frozen, slots=slots, eq=eq, repr=repr)(cls)
            own = fields(made)
            if any(each.default_factory is not MISSING for each in own):
                raise TypeError(f"{cls.__name__} has a field with a factory")
            scope = {f"_set_{each.name}": made.__dict__[each.name].__set__ for each in own}
            scope |= {f"_default_{each.name}": each.default for each in own if each.default is not MISSING}
            given = [each.name + (f"=_default_{each.name}" if each.default is not MISSING else "") for each in own]
            body = "\n".join(f"    _set_{each.name}(self, {each.name})" for each in own)
            exec(f"def __init__(self, {', '.join(given)}):\n{body}", scope)  # noqa: S102 - as dataclasses do
            before = made.__init__
            made.__init__ = scope["__init__"]
            made.__init__.__qualname__, made.__init__.__annotations__ = before.__qualname__, before.__annotations__
            return made

        return decorate


__all__ = ["bulk_dataclass"]
