"""Dataclasses whose methods are made when they are first wanted.

``dataclasses`` compiles six functions for each class while its module is imported, which is most of what a short
command does. Here comparing, hashing and showing are common to all classes, and ``__init__`` is compiled for the first
object. Objects are the same; classes with what is rare (``InitVar``, ``KW_ONLY``) are made by the standard library.
"""

import dataclasses
from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import abc
    import inspect
    import operator
    from collections.abc import Callable, Iterator, Sequence
    from dataclasses import MISSING, Field, FrozenInstanceError, field
    from itertools import chain
    from reprlib import recursive_repr
    from types import MemberDescriptorType, SimpleNamespace
    from typing import Any, ClassVar, get_origin

    @dataclasses.dataclass
    class _Standard:
        """One field, as the standard library notes it."""

        only: int = 0

    _FIELDS, _PARAMETERS = "__dataclass_fields__", "__dataclass_params__"
    _IS_FIELD = _Standard.__dataclass_fields__["only"]._field_type  # noqa: SLF001 - what `fields` looks for

    class _Factory:
        """What stands for a default that is made anew for each object."""

        def __repr__(self) -> str:
            return "<factory>"

    _FACTORY = _Factory()

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:  # noqa: ANN401 - a decorator with or without options
        """Make a class as ``dataclasses.dataclass`` does."""
        return _made(cls, options) if cls is not None else lambda each: _made(each, options)

    def _made(cls: type, options: dict[str, bool]) -> type:
        own = None if options.keys() - _DEFAULTS.keys() else _own_fields(cls, options.get("kw_only", False))
        if own is None:
            return dataclasses.dataclass(**options)(cls)
        return _Maker(cls, own, SimpleNamespace(**{**_DEFAULTS, **options})).made()

    _DEFAULTS = {"order": False, "eq": True, "repr": True, "frozen": False, "slots": False, "kw_only": False}

    def _own_fields(cls: type, kw_only: bool) -> dict[str, Field] | None:
        """Return the fields that a class adds, None where any is one of the rare ones."""
        found = {}
        for name, annotation in inspect.get_annotations(cls).items():
            if annotation is ClassVar or get_origin(annotation) is ClassVar:
                continue
            if "Var" in annotation if isinstance(annotation, str) else _is_rare(annotation):
                return None
            default = getattr(cls, name, MISSING)
            if isinstance(default, MemberDescriptorType):
                default = MISSING
            each = default if isinstance(default, Field) else field(default=default)
            if each.default.__class__.__hash__ is None:
                raise ValueError(f"mutable default {type(each.default)} for field {name} is not allowed")
            each.name, each.type, each._field_type = name, annotation, _IS_FIELD  # noqa: SLF001 - as there
            if each.kw_only is MISSING:
                each.kw_only = kw_only
            found[name] = each
        return found

    def _is_rare(annotation: object) -> bool:
        special = {dataclasses.KW_ONLY, dataclasses.InitVar}
        return isinstance(annotation, dataclasses.InitVar) or any(annotation is each for each in special)

    class _Maker:
        """Makes one class."""

        def __init__(self, cls: type, own: dict[str, Field], options: SimpleNamespace) -> None:
            inherited = [getattr(base, _FIELDS, {}) for base in cls.__mro__[:0:-1]]
            self.fields = {name: each for part in (*inherited, own) for name, each in part.items()}
            self.options = options
            self.cls = cls
            for name, each in own.items():
                if isinstance(cls.__dict__.get(name), Field):
                    if each.default is MISSING:
                        delattr(cls, name)
                    else:
                        setattr(cls, name, each.default)

        def made(self) -> type:
            """Return the class."""
            with_hash = self._own("__hash__", MISSING)
            if with_hash is None and "__eq__" in self.cls.__dict__:
                with_hash = MISSING
            if self.options.slots:
                self.cls = self._with_slots()
            cls, options = self.cls, self.options
            setattr(cls, _FIELDS, self.fields)
            setattr(cls, _PARAMETERS, SimpleNamespace(init=True, unsafe_hash=False, **vars(options)))
            methods: dict[str, object] = {"__init__": _Init(cls, list(self.fields.values()), options)}
            if options.repr:
                methods["__repr__"] = _showing([each.name for each in self.fields.values() if each.repr])
            values = _values([each.name for each in self.fields.values() if each.compare])
            if options.eq:
                methods["__eq__"] = _comparing(operator.eq, values)
            if options.order:
                orders = operator.lt, operator.le, operator.gt, operator.ge
                methods |= {f"__{each.__name__}__": _comparing(each, values) for each in orders}
            methods["__match_args__"] = tuple(
                each.name for each in self.fields.values() if each.init and not each.kw_only
            )
            for name, method in methods.items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)
            if options.frozen:
                cls.__setattr__, cls.__delattr__ = _refusing(cls, frozenset(self.fields))
            if options.eq and with_hash is MISSING:
                cls.__hash__ = _hashing(self.fields.values()) if options.frozen else None
            if not cls.__doc__:
                cls.__doc__ = cls.__name__
            return abc.update_abstractmethods(cls)

        def _own(self, name: str, default: object) -> object:
            return self.cls.__dict__.get(name, default)

        def _with_slots(self) -> type:
            """Return the class again, with places for its fields; see ``dataclasses``."""
            cls, content = self.cls, dict(self.cls.__dict__)
            inherited = set(chain.from_iterable(map(_slots, cls.__mro__[1:-1])))
            content["__slots__"] = tuple(name for name in self.fields if name not in inherited)
            for name in (*self.fields, "__dict__", "__weakref__"):
                content.pop(name, None)
            made = type(cls)(cls.__name__, cls.__bases__, content)
            made.__qualname__ = cls.__qualname__
            if self.options.frozen and "__getstate__" not in content:
                made.__getstate__, made.__setstate__ = _state, _set_state
            return made

    def _slots(base: type) -> Iterator[str]:
        slots = base.__dict__.get("__slots__", ())
        return iter((slots,) if isinstance(slots, str) else slots)

    def _state(self: object) -> list[object]:
        return [getattr(self, name) for name in self.__dataclass_fields__]

    def _set_state(self: object, state: list[object]) -> None:
        for name, value in zip(self.__dataclass_fields__, state, strict=True):
            object.__setattr__(self, name, value)

    def _values(names: Sequence[str]) -> Callable[[object], tuple[object, ...]]:
        if len(names) > 1:
            return operator.attrgetter(*names)
        return lambda self: tuple(getattr(self, name) for name in names)

    def _comparing(
        test: Callable[..., bool], values: Callable[[object], tuple[object, ...]]
    ) -> Callable[[object, object], bool]:
        def compare(self: object, other: object) -> bool:
            return test(values(self), values(other)) if other.__class__ is self.__class__ else NotImplemented

        return compare

    def _hashing(fields: Sequence[Field]) -> Callable[[object], int]:
        values = _values([each.name for each in fields if (each.compare if each.hash is None else each.hash)])

        def __hash__(self: object) -> int:  # noqa: N807
            return hash(values(self))

        return __hash__

    def _showing(names: Sequence[str]) -> Callable[[object], str]:
        @recursive_repr("...")
        def __repr__(self: object) -> str:  # noqa: N807
            shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({shown})"

        return __repr__

    def _refusing(cls: type, names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
        def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def __delattr__(self: object, name: str) -> None:  # noqa: N807
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return __setattr__, __delattr__

    class _Init:
        """Stands for ``__init__`` until that is wanted: to make an object, or to look at it."""

        def __init__(self, cls: type, fields: list[Field], options: SimpleNamespace) -> None:
            self._cls, self._fields, self._options = cls, fields, options
            optional = False
            for each in self._parameters(kw_only=False):
                has_default = each.default is not MISSING or each.default_factory is not MISSING
                if optional and not has_default:
                    raise TypeError(f"non-default argument {each.name!r} follows default argument")
                optional = has_default

        def __get__(self, instance: object, owner: type | None = None) -> object:
            made = self._made()
            type.__setattr__(self._cls, "__init__", made)
            return made if instance is None else made.__get__(instance, owner)

        def _parameters(self, *, kw_only: bool) -> list[Field]:
            return [each for each in self._fields if each.init and each.kw_only == kw_only]

        def _made(self) -> Callable[..., None]:
            """Compile it."""
            known = {"_set": object.__setattr__, "_factory": _FACTORY}
            lines = [line for each in self._fields for line in self._lines(each, known)]
            if hasattr(self._cls, "__post_init__"):
                lines.append("self.__post_init__()")
            ordered, named = (self._parameters(kw_only=which) for which in (False, True))
            parameters = ["self", *map(_parameter, ordered), *(["*"] if named else []), *map(_parameter, named)]
            text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
            exec(text, known)  # noqa: S102 - as the standard library does
            made = known["__init__"]
            made.__qualname__, made.__module__ = f"{self._cls.__qualname__}.__init__", self._cls.__module__
            made.__annotations__ = {each.name: each.type for each in (*ordered, *named)} | {"return": None}
            return made

        def _lines(self, each: Field, known: dict[str, object]) -> Iterator[str]:
            """Yield what sets a field, and note the values that it needs."""
            name, value = each.name, each.name
            if each.default_factory is not MISSING:
                known[f"_make_{name}"] = each.default_factory
                value = f"_make_{name}() if {name} is _factory else {name}" if each.init else f"_make_{name}()"
            elif each.default is not MISSING:
                known[f"_default_{name}"] = each.default
                value = name if each.init else f"_default_{name}"
                if not each.init and not self._options.slots:
                    return
            elif not each.init:
                return
            yield f"_set(self, {name!r}, {value})" if self._options.frozen else f"self.{name} = {value}"

    def _parameter(each: Field) -> str:
        if each.default is not MISSING:
            return f"{each.name}=_default_{each.name}"
        return f"{each.name}=_factory" if each.default_factory is not MISSING else each.name
