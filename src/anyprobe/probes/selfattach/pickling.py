"""Handlers on their way to another process of the same Python: the source, the code, and what its names mean outside.

Nothing is imported or run there but what belongs to anyprobe: of modules and classes those attributes go along that
the handler writes, by value. An aggregation or a map is named by a number, and has a twin at the other end.
"""

import ast
import copy
import enum
import io
import linecache
import marshal
import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from anyprobe.core.errors import HandlerError, UsageError
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.frontend.source import Source, source_of

if TYPE_CHECKING:
    from anyprobe.handlers.csource import CHandler

_OURS = "anyprobe"
_PLAIN = (int, float, str, bytes, bool, type(None))


class _Form(enum.Enum):
    """How a value is packed."""

    PLAIN = enum.auto()
    TUPLE = enum.auto()
    FUNCTION = enum.auto()
    STORAGE = enum.auto()
    OWN = enum.auto()
    SPACE = enum.auto()
    OPAQUE = enum.auto()


Packed = tuple[_Form, Any]


@dataclass(slots=True)
class Function:
    """One function as it is sent."""

    file: str
    lines: list[str]
    name: str
    code: bytes
    names: dict[str, Packed] = field(default_factory=dict)


@dataclass(slots=True)
class Parcel:
    """A function, the functions that it calls, and the storages that are seen for the first time."""

    functions: list[Function]
    storages: "dict[int, Aggregation | Map | CHandler]"
    c_handler: int = 0
    """Which of the storages is a handler in C, instead of functions: its state is its own."""


class Sender:
    """Packs functions; remembers the storages that have been sent."""

    def __init__(self) -> None:
        """Start with nothing sent."""
        self.storages: dict[int, Aggregation | Map | CHandler] = {}
        """What was sent, by number."""
        self.types: dict[int, tuple[object, str, str]] = {}
        """Types that stand for those which the other end knows by name and module, by identity."""
        self._numbers: dict[int, int] = {}

    def pack(self, function: Callable[..., Any]) -> Parcel:
        """Return a function as a parcel; raise ``HandlerError`` if it has no source."""
        if isinstance(function, types.FunctionType):
            return _Packing(self).pack(function)
        from anyprobe.handlers.csource import CHandler

        if not isinstance(function, CHandler):
            return _Packing(self).pack(function)
        number = self.number_of(function)
        if number is not None:
            return Parcel([], {}, number)
        number = self.add(function)
        return Parcel([], {number: function.without_state()}, number)

    def number_of(self, storage: "Aggregation | Map | CHandler") -> int | None:
        """Return a storage's number, ``None`` if it has not been sent."""
        return self._numbers.get(id(storage))

    def add(self, storage: "Aggregation | Map | CHandler") -> int:
        """Give a storage a number and keep it, so that its identity is not used again."""
        number = self._numbers[id(storage)] = len(self._numbers) + 1
        self.storages[number] = storage
        return number


class _Packing:
    """Packs one function and what it needs."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._parcel = Parcel([], {})
        self._indices: dict[int, int] = {}
        self._attributes: set[str] = set()

    def pack(self, function: Callable[..., Any]) -> Parcel:
        self._function(source_of(function))
        return self._parcel

    def _function(self, source: Source) -> int:
        function = source.function
        if id(function) in self._indices:
            return self._indices[id(function)]
        lines = linecache.getlines(source.file, function.__globals__)
        sent = Function(source.file, list(lines), function.__name__, marshal.dumps(function.__code__))
        self._indices[id(function)] = index = len(self._parcel.functions)
        self._parcel.functions.append(sent)
        names, attributes = _names_in(source.tree)
        self._attributes |= attributes
        for name in sorted(names):
            try:
                value = source.captured(name)
            except KeyError:
                continue  # a local, or an error that the compiler explains
            sent.names[name] = self._value(value)
        return index

    def _value(self, value: object, depth: int = 0) -> Packed:
        if isinstance(value, int) and type(value) not in {int, bool}:
            value = int(value)  # members of enumerations
        if type(value) in _PLAIN:
            return _Form.PLAIN, value
        if isinstance(value, tuple):
            return _Form.TUPLE, [self._value(each, depth) for each in value]
        if isinstance(value, Aggregation | Map):
            return _Form.STORAGE, self._storage(value)
        if (own := _own(value, self._sender.types)) is not None:
            return _Form.OWN, own
        if isinstance(value, types.FunctionType):
            try:
                return _Form.FUNCTION, self._function(source_of(value))
            except HandlerError:
                return _Form.OPAQUE, value.__name__
        if isinstance(value, types.ModuleType | type) and depth < 8:
            found = {name: getattr(value, name) for name in self._attributes if hasattr(value, name)}
            return _Form.SPACE, (value.__name__, {name: self._value(each, depth + 1) for name, each in found.items()})
        return _Form.OPAQUE, type(value).__name__

    def _storage(self, storage: Aggregation | Map) -> int:
        number = self._sender.number_of(storage)
        if number is None:
            number = self._sender.add(storage)
            twin = copy.copy(storage)
            twin.views = []
            self._parcel.storages[number] = twin
        return number


class _Pickler(pickle.Pickler):
    """Packs types that the other end knows by their names."""

    def __init__(self, file: io.BytesIO, kinds: dict[int, tuple[object, str, str]]) -> None:
        super().__init__(file)
        self._kinds = kinds

    def persistent_id(self, thing: object) -> tuple[str, str] | None:
        known = self._kinds.get(id(thing))
        return None if known is None else known[1:]


class _Unpickler(pickle.Unpickler):
    """Unpacks them."""

    def __init__(self, content: bytes, named: Callable[[str, str], object]) -> None:
        super().__init__(io.BytesIO(content))
        self._named = named

    def persistent_load(self, name: tuple[str, str]) -> object:
        return self._named(*name)


def _own(value: object, kinds: dict[int, tuple[object, str, str]]) -> bytes | None:
    """Return what stands for an object of anyprobe itself, a builtin or a type that is known everywhere."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(type(value), "__module__", "")
    if isinstance(value, types.ModuleType):
        return ("module " + module).encode() if module.split(".")[0] == _OURS else None
    named = getattr(value, "__module__", None) if isinstance(value, type | types.FunctionType) else module
    builtin = isinstance(value, types.BuiltinFunctionType | type) and getattr(value, "__module__", "") == "builtins"
    if builtin or str(named).split(".")[0] == _OURS:
        file = io.BytesIO()
        try:
            _Pickler(file, kinds).dump(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            return None
        return file.getvalue()
    return None


def _names_in(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names and the attributes that a definition writes, in annotations that are texts, too."""
    names: set[str] = set()
    attributes: set[str] = set()
    decorators = {
        id(node)
        for each in ast.walk(tree)
        for decorator in getattr(each, "decorator_list", ())
        for node in ast.walk(decorator)
    }
    for node in ast.walk(tree):
        if id(node) in decorators:
            continue
        match node:
            case ast.Name(name):
                names.add(name)
            case ast.Attribute(_, attribute):
                attributes.add(attribute)
            case (
                ast.arg(annotation=ast.Constant(str() as text)) | ast.AnnAssign(annotation=ast.Constant(str() as text))
            ):
                try:
                    more = _names_in(ast.parse(text, mode="eval"))
                except SyntaxError:
                    continue
                names |= more[0]
                attributes |= more[1]
    return names, attributes


class Receiver:
    """Unpacks functions; keeps the twins of storages."""

    def __init__(self, named: Callable[[str, str], object] | None = None) -> None:
        """Start with nothing received; ``named`` returns the type of a name and a module."""
        self.storages: dict[int, Aggregation | Map | CHandler] = {}
        self._named = named or _nothing_named

    def unpack(self, parcel: Parcel) -> Callable[..., Any]:
        """Return the function that was packed."""
        self.storages.update(parcel.storages)
        if parcel.c_handler:
            handler: Any = self.storages[parcel.c_handler]
            return cast("Callable[..., Any]", handler)
        made = [self._made(each) for each in parcel.functions]
        for function, sent in zip(made, parcel.functions, strict=True):
            meanings = {name: self._value(packed, made) for name, packed in sent.names.items()}
            function.__globals__.update(meanings)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                if name in meanings:
                    cell.cell_contents = meanings[name]
        return made[0]

    def _made(self, sent: Function) -> types.FunctionType:
        code = marshal.loads(sent.code)  # noqa: S302 - from our own parent, of the same Python
        # without a time, the cache is never compared with a file
        linecache.cache[sent.file] = (sum(map(len, sent.lines)), None, sent.lines, sent.file)
        closure = tuple(types.CellType() for _ in code.co_freevars)
        return types.FunctionType(code, {}, sent.name, None, closure)

    def _value(self, packed: Packed, made: list[types.FunctionType]) -> object:
        form, content = packed
        match form:
            case _Form.TUPLE:
                return tuple(self._value(each, made) for each in content)
            case _Form.FUNCTION:
                return made[content]
            case _Form.STORAGE:
                return self.storages[content]
            case _Form.OWN:
                return _own_again(content, self._named)
            case _Form.SPACE:
                name, attributes = content
                space = types.ModuleType(name)
                vars(space).update({key: self._value(each, made) for key, each in attributes.items()})
                return space
            case _Form.OPAQUE:
                return type(content, (), {})()
        return content


def _nothing_named(name: str, module: str) -> object:
    raise UsageError(f"the type {name} of {module} is not known")


def _own_again(content: bytes, named: Callable[[str, str], object]) -> object:
    if content.startswith(b"module "):
        import importlib

        return importlib.import_module(content.decode().removeprefix("module "))
    return _Unpickler(content, named).load()
