"""Where handlers made of expressions run: at an entry, at a return, at both ends of a call, or at an instruction."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.cli.atentry import split, words_of
from anyprobe.cli.expressions import Expression
from anyprobe.cli.handlertext import OF_RETURNS, PARAMETERS, HandlerText, context_lines
from anyprobe.cli.knownfunctions import Knowledge, Received, received
from anyprobe.cli.targets import KERNEL, in_the_kernel, on_process

if TYPE_CHECKING:
    from anyprobe.cli.targets import Measured
    from anyprobe.probes.session import Session

CALL_WORDS = 8
"""Words that can be kept from a call's entry to its return."""
LATENCY = (
    # a call that ends by a jump to another function goes on there
    "    latency_ns = ctx.now - ctx.data.began",
    "    if ctx.retval is None:",
    "        latency_ns = None",
)
"""Lines for how long a call took: missing where that is not known."""
KERNEL_LATENCY = (
    "    began = ctx.data.began",
    "    if began is None:",  # its beginning was not seen
    "        return",
    "    latency_ns = ctx.now - began",
)
Write = Callable[[HandlerText, Sequence[str], bool], None]
"""Writes what a handler does, given the names of parameters to show, and whether it has ``retval``."""


class Ends(StrEnum):
    """Which ends of a call a handler has, or that it is inside of the function."""

    ENTRY = "entry"
    RETURN = "return"
    CALL = "call"
    INSIDE = "inside"


class HandlerPlace(NamedTuple):
    """A spec, and what a handler for it needs."""

    spec: str
    ends: Ends
    in_kernel: bool = False
    has_address: bool = True

    @property
    def address(self) -> str:
        """The expression for where it is: of calls, the function; 0 where that is not known."""
        if not self.has_address:
            return "0"
        at_function = self.ends is Ends.CALL or (self.in_kernel and self.ends is Ends.RETURN)
        return "ctx.func" if at_function else "ctx.ip"

    @property
    def function(self) -> str:
        """The expression for the function of a call; 0 where that is not known, as of system calls."""
        return "ctx.func" if self.has_address else "0"

    @property
    def returns(self) -> bool:
        """Whether the handler runs where a function returns."""
        return self.ends in {Ends.RETURN, Ends.CALL}

    @property
    def has_parameters(self) -> bool:
        """Whether the handler knows the function's parameters."""
        return self.ends in {Ends.ENTRY, Ends.CALL}


def place_in(session: "Measured", text: str, expressions: Sequence[Expression], known: Sequence[str]) -> HandlerPlace:
    """Return where a handler has to run to know what expressions need; ``known`` are the names of parameters."""
    of_entry = (*PARAMETERS, *known)
    if session.pid == KERNEL:
        return _place_in_kernel(text, expressions, of_entry)
    return place_for(text, expressions, of_entry)


def once_each(session: "Measured", *, each_mechanism: bool = False) -> AbstractContextManager[None]:
    """Have a place that several specs mean looked at once, within a ``with`` block.

    ``each_mechanism``: in the kernel specs of different mechanisms are looked at apart from each other.
    """
    if session.pid == KERNEL:
        return in_the_kernel(session).placing_once(each_mechanism=each_mechanism)
    return on_process(session).placing_once()


def one_by_one(session: "Measured", specs: Sequence[str], *, markers: bool = False) -> list[str]:
    """Return specs, in the kernel those of what is no function one by one: of its hits no address is known.

    ``markers``: those of programs' markers, too, each of which has arguments of its own.
    """
    if session.pid != KERNEL:
        return [each for text in specs for each in _each_marker(on_process(session), text)] if markers else list(specs)
    from anyprobe.probes.providers.kernel.places.specs import parse

    found: list[str] = []
    for text in specs:
        spec = parse(text)
        found += [text] if spec.tells_address else [site.spec for site in in_the_kernel(session).resolve(spec)]
    return list(dict.fromkeys(found))


def _each_marker(session: "Session", text: str) -> list[str]:
    """Return a spec for each of several markers that one means, unless it is to mean what is loaded later, too."""
    from anyprobe.core.errors import SpecError
    from anyprobe.probes.specs.spec import parse

    if not parse(text).is_marker or session.options.pending == "always" or parse(text).within is not None:
        return [text]
    try:
        markers = dict.fromkeys(site.canonical for site in session.resolve(text)[0])
    except SpecError:  # of a library that is not there yet
        return [text]
    return list(markers) if len(markers) > 1 else [text]


def _place_in_kernel(text: str, expressions: Sequence[Expression], of_entry: Sequence[str]) -> HandlerPlace:
    from anyprobe.probes.providers.kernel.places.specs import parse

    spec = parse(text)
    of_both = [name for name in of_entry if any(each.uses(name) for each in expressions)]
    of_returns = [name for name in OF_RETURNS if any(each.uses(name) for each in expressions)]
    if not spec.has_return and of_returns:
        instead = "syscall::NAME:return, kernel::NAME:return"
        _refuse(expressions, of_returns, f"there is no return ({text})", instead)
    if spec.name not in {"entry", "return"}:
        _refuse(expressions, [*of_both, *of_returns], f"{{}} is not known at an instruction ({text})", "ctx.regs.rdi")
        return HandlerPlace(text, Ends.INSIDE, in_kernel=True)
    if "latency_ns" in of_returns or (of_both and (of_returns or spec.name == "return")):
        return HandlerPlace(spec.end("entry"), Ends.CALL, in_kernel=True, has_address=spec.tells_address)
    if of_returns or spec.name == "return":
        return HandlerPlace(spec.end("return"), Ends.RETURN, in_kernel=True, has_address=spec.tells_address)
    return HandlerPlace(text, Ends.ENTRY, in_kernel=True, has_address=spec.tells_address)


def _refuse(expressions: Sequence[Expression], names: Sequence[str], message: str, instead: str) -> None:
    """Complain about the first use of one of some names."""
    for each in expressions:
        for name, line, column in each.names:
            if name in names:
                raise each.error(line, column, message.format(name), instead)


def place_for(text: str, expressions: Sequence[Expression], of_entry: Sequence[str] = PARAMETERS) -> HandlerPlace:
    """Return where a handler in a program has to run; ``of_entry`` are the names of parameters."""
    from anyprobe.probes.specs.spec import parse

    spec = parse(text)
    if spec.provider == "usdt":
        return _at_marker(text, expressions)
    needs_return = any(each.uses(name) for each in expressions for name in OF_RETURNS)
    needs_entry = any(each.uses(name) for each in expressions for name in (*of_entry, "latency_ns"))
    plain = _entry_spec(text)
    is_line = any(character.isspace() for character in text.strip())  # of kprobe_events; nothing can be appended to it
    match spec.name:
        case "entry":
            needs_return = needs_return or any(each.uses("errno") for each in expressions)  # before, it is of others
            return HandlerPlace(plain if is_line and needs_return else text, Ends.CALL if needs_return else Ends.ENTRY)
        case "return" if needs_entry:
            return HandlerPlace(plain, Ends.CALL)
        case "return":
            return HandlerPlace(plain.removesuffix("entry") + "return" if is_line else text, Ends.RETURN)
    unknown = (*of_entry, *OF_RETURNS)
    _refuse(expressions, unknown, f"{{}} is not known at an instruction ({text})", "ctx.regs.rdi or another register")
    return HandlerPlace(text, Ends.INSIDE)


def _entry_spec(text: str) -> str:
    """Return a spec of the entries of the functions that a spec means."""
    from anyprobe.probes.specs.spec import parse

    spec = parse(text)
    return f"pid{spec.pid or ''}:{spec.module.text}:{spec.function.text}:entry"


def _at_marker(text: str, expressions: Sequence[Expression]) -> HandlerPlace:
    """Return the place at a marker: its arguments are parameters, and it has no return."""
    for each in expressions:
        for name, line, column in each.names:
            if name in OF_RETURNS:
                raise each.error(line, column, f"{name} is not known at a marker ({text})", "arg0, ctx.regs.rdi")
    return HandlerPlace(text, Ends.ENTRY)


class HandlerMaker(NamedTuple):
    """Makes the handler of one spec."""

    place: HandlerPlace
    expressions: Sequence[Expression]
    knowledge: Knowledge
    write: Write
    things: dict[str, Any]
    shown: int | None = 0
    """How many parameters are shown, whether expressions use them or not; None for all that are known of."""
    retval: Any = None
    """The type of the result, if it is not to be what debug information says."""

    def put(self, session: "Measured") -> Received:
        """Compile and place it; return which parameters it shows."""
        place = self.place
        self.knowledge.check_result(self.expressions if place.returns else ())
        wanted = received(self.knowledge, self.expressions, self.shown if place.has_parameters else 0)
        if place.ends is Ends.CALL:
            return self._put_call(session, wanted)
        if place.ends is Ends.RETURN and self._is_result_in_memory:
            return self._replace(place=HandlerPlace(_entry_spec(place.spec), Ends.CALL)).put(session)
        text = HandlerText(place.in_kernel, left=split(self.expressions, (), keeps=False).left)
        at_entry = place.ends is Ends.ENTRY
        text.add(f"def handler({', '.join(['ctx', *(wanted.declared if at_entry else ())])}):")
        text.add(*(wanted.lines if at_entry else ()))
        text.add(*context_lines(self.expressions, self.knowledge.names))
        text.add(*["    retval = ctx.retval"] * (place.returns and self.knowledge.reads_result(self.expressions)))
        self.write(text, wanted.shown if at_entry else (), place.returns and self.knowledge.has_result)
        given = {Ends.ENTRY: session.entry, Ends.RETURN: session.ret, Ends.INSIDE: session.at}[place.ends]
        with text.pointing():
            given(place.spec)(text.function("handler", self.things))
        return wanted

    @property
    def _is_result_in_memory(self) -> bool:
        """Whether a result is read of which the function's entry alone says where it is."""
        prototype = self.knowledge.prototype
        wants = self.retval is None and self.knowledge.reads_result(self.expressions)
        return wants and prototype is not None and prototype.is_result_in_memory

    def _put_call(self, session: "Measured", wanted: Received) -> Received:
        """Place a pair of handlers: the entry's keeps what the return's uses."""
        from anyprobe.handlers import intrinsics
        from anyprobe.handlers.types.annotations import u64
        from anyprobe.probes.specs.spec import parsed

        timed = any(each.uses("latency_ns") for each in self.expressions)
        parts = split(self.expressions, (*PARAMETERS, *self.knowledge.names))
        words = CALL_WORDS - timed - self._is_result_in_memory - self.knowledge.is_go * words_of(parts.pieces)
        kept = received(self.knowledge, parts.later, self.shown).kept(words, parts.later)
        in_kernel = self.place.in_kernel
        entry, leaving = HandlerText(in_kernel), HandlerText(in_kernel, left=parts.left)
        entry.add(f"def handler({', '.join(['ctx', *wanted.declarations({*kept.names, *wanted.used})])}):", "    pass")
        entry.add(*(f"    ctx.data.{name} = {name}" for name in kept.names))
        entry.add(*["    ctx.data.began = ctx.now"] * (timed or in_kernel))
        entry.add(*wanted.lines)
        for piece in parts.pieces:  # last, since what is missing may end the handler
            is_shown = piece.is_whole and not self.knowledge.is_go
            entry.add_expression(f"    ctx.data.{piece.name} = {'shown' * is_shown}", piece.expression, "")
        reads_result = self.knowledge.reads_result(self.expressions)
        leaving.add("def handler(ctx):", *["    retval = ctx.retval"] * reads_result)
        # a handler has ended where there is no result of several parts
        latency = LATENCY[:1] if reads_result and self.knowledge.has_parts else LATENCY
        leaving.add(*(KERNEL_LATENCY if in_kernel else latency * timed))
        leaving.add(*(f"    {piece.name} = ctx.data.{piece.name}" for piece in parts.pieces))
        leaving.add(*kept.loads, *kept.lines, *context_lines(parts.later, self.knowledge.names))
        self.write(leaving, kept.loaded, self.knowledge.has_result)
        with leaving.pointing(), entry.pointing():
            ends = (
                entry.function("handler", {"shown": intrinsics.shown}),
                leaving.function("handler", {**self.things, **kept.kinds}),
            )
            if in_kernel:
                in_the_kernel(session).call(self.place.spec, retval=self.retval)(ends[0]).ret(ends[1])
                return kept
            retval = self.retval or (None if reads_result else u64)  # tells at least whether it returns
            on_process(session).handling.place_call(parsed([self.place.spec]), *ends, retval=retval)
        return kept
