"""What is known of a function whose parameters expressions use: what debug information says, or positions alone."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlertext import OF_RETURNS, PARAMETERS
from anyprobe.cli.programs.targets import KERNEL, in_the_kernel, kernel_spec, on_process, process_spec
from anyprobe.core.errors import SpecError, UnsupportedTarget, UsageError

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.handlers.types.calling_convention import Prototype
    from anyprobe.probes.providers.kernel.places.sites import KernelSite
    from anyprobe.probes.providers.kernel.places.specs import KernelSpec
    from anyprobe.probes.providers.kernel.session import KernelSession

FUNCTIONS_LIMIT = 8
"""Functions whose prototypes are compared for one spec; where it means more, nothing is known of them."""
REGISTERS = 6
"""Parameters that are in registers."""
_KEPT = "kept_"
_MINUS_ONE = (-1, 0xFFFFFFFF, (1 << 64) - 1)
"""As an int, too, whose register may have anything above it."""
_NO_ADDRESS = (0, -1, (1 << 64) - 1)
_ALLOCATORS = ("malloc", "calloc", "realloc", "aligned_alloc", "memalign", "mmap", "mmap64", "mremap", "shmat")
_OPENERS = ("fopen", "fopen64", "fdopen", "freopen", "popen", "tmpfile", "opendir", "fdopendir", "sem_open", "dlopen")
_LOOKUPS = ("readdir", "readdir64", "realpath", "getcwd", "fgets", "getpwnam", "getpwuid", "getgrnam", "getgrgid")
_GIVING_ADDRESSES = frozenset((*_ALLOCATORS, *_OPENERS, *_LOOKUPS))
"""Functions of the C library that return 0 where they fail: for those without debug information."""


class Knowledge(NamedTuple):
    """What is known of the functions of a spec, or why nothing is."""

    prototype: "Prototype | None" = None
    reason: str = ""
    otherwise: bool = False
    """Whether it is known that parameters are not where positions say."""
    most: int | None = None
    """How many parameters there are, where that is known of what has no names."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of parameters."""
        return () if self.prototype is None else tuple(name for name, _ in self.prototype.parameters)

    @property
    def is_go(self) -> bool:
        """Whether the function is one of Go, whose calls have room for little data."""
        known = self.prototype
        return known is not None and known.located is not None and known.located.language == "Go"

    @property
    def has_result(self) -> bool:
        """Whether there is a result that one field can hold; unless something else is known, there is."""
        known = self.prototype
        if known is None or known.result is None:
            return known is None
        return _is_word(known.result)

    @property
    def hides_result(self) -> bool:
        """Whether there is a result that cannot be shown."""
        return self.prototype is not None and self.prototype.result is not None and not self.has_result

    @property
    def has_parts(self) -> bool:
        """Whether there is a result of several parts: a struct, a string, an interface."""
        from anyprobe.handlers.types.layouts import StructType

        return self.prototype is not None and isinstance(self.prototype.result, StructType)

    def reads_result(self, expressions: Sequence[Expression]) -> bool:
        """Return whether a handler with some expressions reads the result: to show it, or because they use it."""
        return self.has_result or (self.hides_result and any(each.uses("retval") for each in expressions))

    def failure(self, spec: "AnySpec") -> "Callable[[Any], bool]":
        """Return what tells of a result whether the call has failed: -1, and where it is an address, also 0."""
        from anyprobe.handlers.types.annotations import IntegerType, PointerType

        kind = None if self.prototype is None else self.prototype.result
        if isinstance(kind, IntegerType):
            return lambda result: result is not None and (result < 0 or (not kind.signed and result == kind.high))
        if isinstance(kind, PointerType) or (kind is None and spec.function.text in _GIVING_ADDRESSES):
            return lambda result: result in _NO_ADDRESS
        return lambda result: result in _MINUS_ONE

    def check_result(self, expressions: Sequence[Expression]) -> None:
        """Complain about an expression that uses a result that there is none of."""
        for each, name, line, column in _uses(expressions):
            if name == "retval" and self.prototype is not None and self.prototype.result is None:
                raise each.error(line, column, f"{self.prototype.function} returns nothing", "latency_ns")


def knowledge_of(session: "Measured", spec: "AnySpec", expressions: Sequence[Expression] = ()) -> Knowledge:
    """Return what debug information, or the kernel, says of the functions of a spec.

    At a tracepoint ``expressions`` decide what is wanted: fields of its record, or what it passes.
    """
    if session.pid == KERNEL:
        return _known_in_kernel(in_the_kernel(session), kernel_spec(spec), expressions)
    from anyprobe.handlers.types.calling_convention import PassedOtherwise

    process, wanted = on_process(session), process_spec(spec)
    try:
        sites, _ = process.resolve(wanted)
        if len({site.function.start for site in sites if site.marker is None}) > FUNCTIONS_LIMIT:
            return Knowledge(None, f"{spec.text} means many functions")
        prototype = process.handling.prototypes.known((wanted,))()
        if prototype.is_marker:
            return Knowledge(prototype)
        _ = prototype.places
    except SpecError as error:
        return Knowledge(
            None, f"{spec.text}: {error.message}"
        )  # if that is for lack of libraries only, they come later
    except UnsupportedTarget as error:
        return Knowledge(None, str(error), otherwise=isinstance(error, PassedOtherwise))
    return _usable(Knowledge(prototype))


def _usable(known: Knowledge) -> Knowledge:
    """Return what is known if the names can be those of a handler's parameters."""
    names = known.names
    odd = {"ctx", *PARAMETERS, *OF_RETURNS} & set(names)
    if odd or len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
        return Knowledge(None, f"the names of its parameters are not usable: {', '.join(names)}")
    return known


def _known_in_kernel(session: "KernelSession", spec: "KernelSpec", expressions: Sequence[Expression]) -> Knowledge:
    from anyprobe.probes.providers.kernel.places.specs import Provider

    sites = session.resolve(spec)
    if spec.is_event:
        return Knowledge(None, "timers and events pass nothing", most=0)
    if spec.provider is Provider.USDT:
        return Knowledge(session.marked(sites))
    if not spec.has_return:
        return _known_of_tracepoints(session, spec, sites, expressions)
    if len({site.address for site in sites}) > FUNCTIONS_LIMIT:
        return Knowledge(None, f"{spec.text} means many functions")
    try:
        found = _types(session.system_call if spec.provider is Provider.SYSCALL else session.prototype, sites)
    except UnsupportedTarget as error:
        return Knowledge(None, str(error), otherwise=spec.provider is Provider.SYSCALL)
    if len(found) > 1:
        return Knowledge(
            None, f"{spec.text} means functions of several types", otherwise=spec.provider is Provider.SYSCALL
        )
    (prototype,) = found.values()
    return _usable(Knowledge(prototype))


def _types(ask: "Callable[[KernelSite], Prototype]", sites: "Sequence[KernelSite]") -> "dict[object, Prototype]":
    """Return the different types of some sites, without the names of what has them."""
    return {(each.parameters, each.result): each for each in map(ask, sites)}


def _known_of_tracepoints(
    session: "KernelSession", spec: "KernelSpec", sites: "Sequence[KernelSite]", expressions: Sequence[Expression]
) -> Knowledge:
    """Return the names that expressions use: of the record's fields, or else of what is passed; without, positions."""
    counts = {session.passed_by(site) for site in sites}
    most = min((each for each in counts if each is not None), default=None)
    if not sites[0].has_tracepoint:
        return Knowledge(None, "there are no names here, positions alone: arg0, arg1, ...", most=most)
    if _used(expressions, PARAMETERS):
        return Knowledge(None, "beside arg0, arg1, ... what a tracepoint passes has no names", most=most)
    if len(sites) > FUNCTIONS_LIMIT:
        return Knowledge(None, f"{spec.text.strip()} means many tracepoints", most=most)
    reasons, known = [], []
    for ask in (session.recorded, session.passed) if sites[0].tracepoint is not None else (session.passed,):
        try:
            found = _types(ask, sites)
        except UnsupportedTarget as error:
            reasons.append(str(error))
            continue
        if len(found) == 1:
            known += [_usable(Knowledge(each, most=most)) for each in found.values()]
        else:
            reasons.append(f"{spec.text.strip()} means tracepoints of several types")
    of_names = [each for each in known if each.prototype is not None]
    wanted = {name for _, name, _, _ in _uses(expressions)}
    for each in of_names[1:]:
        if wanted & (set(each.names) - set(of_names[0].names)):
            return each
    return next(iter((*of_names, *known)), Knowledge(None, "; ".join(reasons), most=most))


class Received(NamedTuple):
    """What a handler receives: declarations, and names for what it shows."""

    names: tuple[str, ...]
    """The names of its parameters."""
    declared: tuple[str, ...]
    shown: tuple[str, ...]
    labels: tuple[str, ...] | None
    """The names of all parameters that are to be seen; None where only positions are known."""
    fields: tuple[int | None, ...] = ()
    """For each of them: which of ``shown`` it is, None for what cannot be shown."""
    lines: tuple[str, ...] = ()
    """Lines that give parameters the names of their positions."""
    used: frozenset[str] = frozenset()
    """Names that expressions use."""
    kinds: "dict[str, Any]" = None  # type: ignore[assignment] # given wherever one is made

    def kept(self, words: int, expressions: Sequence[Expression]) -> "Received":
        """Return what a call keeps until its return: what is used, and as many other numbers as there is room for.

        That are whole numbers and pointers, and texts and slices, of which the memory is read at the return.
        """
        typed = {name: self.kinds.get(_KEPT + name) for name in self.names}
        for each, name, line, column in _uses(expressions):
            if name in self.used and not _is_whole(typed[name]) and not _has_extent(typed[name]):
                raise each.error(line, column, f"{name}, of type {typed[name]}, is not kept until the return")
        first = [name for name in self.names if name in self.used]
        more = [name for name in self.names if name not in self.used and _is_whole(typed[name])]
        taken = sum(_words(typed[name]) for name in first)
        if taken > words:
            raise UsageError(f"{len(first)} parameters are too many to be kept until the return; {words} words are")
        names = tuple(name for name in self.names if name in {*first, *more[: words - taken]})
        indexes = [index for index, name in enumerate(self.shown) if name in names]
        places: dict[int | None, int] = {old: new for new, old in enumerate(indexes)}
        return self._replace(
            names=names,
            declared=self.declarations(names),
            shown=tuple(self.shown[index] for index in indexes),
            labels=self.labels,
            fields=tuple(places.get(each) for each in self.fields),
        )

    def declarations(self, names: "Collection[str]") -> tuple[str, ...]:
        """Return the declarations of some parameters."""
        return tuple(each for each in self.declared if each.partition(":")[0] in names)

    @property
    def loads(self) -> list[str]:
        """The lines that load what was kept: as it is where it is only shown, by its type where it is used."""
        found = [f"    {_KEPT}{name} = ctx.data.{name}" for name in self.names]
        for name in self.names:
            if name in self.used:
                typed = self.kinds.get(_KEPT + name) is not None and not _has_extent(self.kinds[_KEPT + name])
                found.append(
                    f"    {name} = of_{_KEPT}{name}({_KEPT}{name})" if typed else f"    {name} = {_KEPT}{name}"
                )
        return found

    @property
    def loaded(self) -> tuple[str, ...]:
        """The names of the shown values, which come after ``loads``."""
        return tuple(_KEPT + name for name in self.shown)


def received(knowledge: Knowledge, expressions: Sequence[Expression], shown: int | None) -> Received:
    """Return what a handler receives so that it knows what expressions use, and can show the first parameters.

    ``shown``: how many; None for all, and for those in registers where it is not known how many there are.
    """
    from anyprobe.handlers.types.annotations import PointerType

    prototype = knowledge.prototype
    if prototype is None:
        shown = REGISTERS if shown is None else shown
        if knowledge.most is not None:
            shown = min(shown, knowledge.most)
            for each, name, line, column in _uses(expressions):
                if name in PARAMETERS[knowledge.most :]:
                    raise each.error(line, column, f"{knowledge.most} parameters are passed", "arg0, arg1, ...")
        if knowledge.otherwise:
            for each, name, line, column in _uses(expressions):
                if name in PARAMETERS:
                    raise each.error(line, column, knowledge.reason, "ctx.regs")
            return Received((), (), (), None, (None,) * (shown > 0), (), frozenset(), kinds={})
        last = max([shown, *(PARAMETERS.index(name) + 1 for name in _used(expressions, PARAMETERS))])
        names = PARAMETERS[:last]
        declared = tuple(f"{name}: u64" for name in names)
        used = frozenset(_used(expressions, names))
        return Received(names, declared, names[:shown], None, tuple(range(shown)), (), used, kinds={})
    known = dict(prototype.parameters)
    labels = knowledge.names[:shown]
    places = () if prototype.located is None else prototype.located.parameters
    lost = {name for name, where in zip(knowledge.names, places, strict=bool(places)) if where is None}
    visible = [name for name in labels if _is_word(known[name]) and name not in lost]
    fields: tuple[int | None, ...] = tuple(visible.index(name) if name in visible else None for name in labels)
    needed = set(_used(expressions, knowledge.names))
    unreadable = _used(expressions, sorted(lost)) if prototype.is_marker else []
    if unreadable:
        raise _no_such(expressions, unreadable[0], prototype, lost)
    lines = []
    for name in _used(expressions, PARAMETERS):
        if prototype.is_marker:
            if name not in known:
                raise _no_such(expressions, name, prototype)
            continue
        at = PARAMETERS.index(name)
        if at >= len(knowledge.names) or not _is_whole(known[knowledge.names[at]]):
            raise _no_such(expressions, name, prototype)
        needed.add(knowledge.names[at])
        kind = known[knowledge.names[at]]  # an address of a program stays one: the kernel's are not read for it
        number = "ptr" if isinstance(kind, PointerType) and kind.user else "u64"
        lines.append(f"    {name} = {number}({knowledge.names[at]})")
    names = tuple(name for name in knowledge.names if name in needed or name in visible)
    kinds = {prefix + _KEPT + name: _as_kept(known[name]) for name in names for prefix in ("", "of_")}
    return Received(names, names, tuple(visible), labels, fields, tuple(lines), frozenset(needed), kinds=kinds)


def _uses(expressions: Iterable[Expression]) -> list[tuple[Expression, str, int, int]]:
    """Return each use of a name: the expression, the name, line and column."""
    return [(each, *use) for each in expressions for use in each.names]


def _used(expressions: Iterable[Expression], names: Sequence[str]) -> list[str]:
    found = {name for _, name, _, _ in _uses(expressions)}
    return [name for name in names if name in found]


def _no_such(
    expressions: Sequence[Expression], name: str, prototype: "Prototype", lost: "Collection[str]" = ()
) -> Exception:
    each, _, line, column = next(found for found in _uses(expressions) if found[1] == name)
    parameters = ", ".join(f"{label}: {kind}" for label, kind in prototype.parameters if label not in lost)
    lacks = f"no {name} that can be read" if prototype.is_marker else "no whole number there"
    return each.error(line, column, f"{prototype.function} has {lacks}", f"one of ({parameters})")


def _is_word(kind: Any) -> bool:  # noqa: ANN401 - a type of handlers, or None
    """Return whether values of a type can be fields of a record: words, and texts."""
    from anyprobe.handlers.types.annotations import FloatType, i8
    from anyprobe.handlers.types.layouts import ArrayType, StructType

    if isinstance(kind, StructType):
        return bool(kind.dynamic_type) or (kind.extent is not None and kind.extent.is_text)
    return _is_whole(kind) or isinstance(kind, FloatType) or (isinstance(kind, ArrayType) and kind.element == i8)


def _as_kept(kind: Any) -> Any:  # noqa: ANN401 - a type of handlers, or None where it is not known
    """Return the type that a parameter has until its call returns: an interface of Go is the type of its value."""
    from anyprobe.handlers.types.annotations import gotype
    from anyprobe.handlers.types.layouts import StructType

    return gotype if isinstance(kind, StructType) and kind.dynamic_type else kind


def _words(kind: Any) -> int:  # noqa: ANN401 - a type of handlers, or None where it is not known
    """Return how many words of a call's data a value takes."""
    return -(-int(kind.size) // 8) if _has_extent(kind) else 1


def _has_extent(kind: Any) -> bool:  # noqa: ANN401 - a type of handlers, or None where it is not known
    """Return whether values of a type tell where a text or items are, and how many: strings, slices, vectors."""
    from anyprobe.handlers.types.layouts import StructType

    return isinstance(kind, StructType) and kind.extent is not None and not kind.by_reference


def _is_whole(kind: Any) -> bool:  # noqa: ANN401 - a type of handlers, or None where it is not known
    from anyprobe.handlers.types.annotations import BoolType, IntegerType, PointerType

    return kind is None or isinstance(kind, BoolType | IntegerType | PointerType)
