"""Where handlers made of expressions run: at an entry, at a return, at both ends of a call, or at an instruction."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.cli.handlers.atentry import split, words_of
from anyprobe.cli.handlers.expressions import Expression
from anyprobe.cli.handlers.handlertext import OF_RETURNS, PARAMETERS, HandlerText, context_lines
from anyprobe.cli.handlers.knownfunctions import Knowledge, Received, received
from anyprobe.cli.programs.targets import KERNEL, in_the_kernel, kernel_spec, on_process, process_spec, read

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.probes.providers.kernel.places.specs import KernelSpec
    from anyprobe.probes.session import Session
    from anyprobe.probes.specs.parts import Spec

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

    wanted: "AnySpec"
    ends: Ends
    in_kernel: bool = False
    has_address: bool = True

    @property
    def spec(self) -> str:
        """The spec as it is shown."""
        return self.wanted.text

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


def place_in(
    session: "Measured", spec: "AnySpec", expressions: Sequence[Expression], known: Sequence[str]
) -> HandlerPlace:
    """Return where a handler has to run to know what expressions need; ``known`` are the names of parameters."""
    of_entry = (*PARAMETERS, *known)
    if session.pid == KERNEL:
        return _place_in_kernel(kernel_spec(spec), expressions, of_entry)
    return place_for(process_spec(spec), expressions, of_entry)


def once_each(session: "Measured", *, each_mechanism: bool = False) -> AbstractContextManager[None]:
    """Have a place that several specs mean looked at once, within a ``with`` block.

    ``each_mechanism``: in the kernel specs of different mechanisms are looked at apart from each other.
    """
    if session.pid == KERNEL:
        return in_the_kernel(session).placing_once(each_mechanism=each_mechanism)
    return on_process(session).host.arming.placing_once()


def one_by_one(session: "Measured", specs: "Sequence[AnySpec]", *, markers: bool = False) -> "list[AnySpec]":
    """Return specs, in the kernel those of what is no function one by one: of its hits no address is known.

    ``markers``: those of programs' markers, too, each of which has arguments of its own.
    """
    if session.pid != KERNEL:
        if not markers:
            return list(specs)
        return [each for spec in map(process_spec, specs) for each in _each_marker(on_process(session), spec)]
    found: dict[str, AnySpec] = {}
    for spec in map(kernel_spec, specs):
        if spec.tells_address:
            found.setdefault(spec.text, spec)
            continue
        texts = [site.spec for site in in_the_kernel(session).resolve(spec) if site.spec not in found]
        found |= {each.text: each for each in read(texts, in_kernel=True)}
    return list(found.values())


def _each_marker(session: "Session", spec: "Spec") -> "Sequence[Spec]":
    """Return a spec for each of several markers that one means, unless it is to mean what is loaded later, too."""
    from anyprobe.core.errors import SpecError
    from anyprobe.probes.specs.spec import parsed

    if not spec.is_marker or session.options.pending == "always" or spec.within is not None:
        return [spec]
    try:
        markers = dict.fromkeys(site.canonical for site in session.resolve(spec)[0])
    except SpecError:  # of a library that is not there yet
        return [spec]
    return parsed(markers) if len(markers) > 1 else [spec]


def _place_in_kernel(spec: "KernelSpec", expressions: Sequence[Expression], of_entry: Sequence[str]) -> HandlerPlace:
    of_both = [name for name in of_entry if any(each.uses(name) for each in expressions)]
    of_returns = [name for name in OF_RETURNS if any(each.uses(name) for each in expressions)]
    if not spec.has_return and of_returns:
        instead = "syscall::NAME:return, kernel::NAME:return"
        _refuse(expressions, of_returns, f"there is no return ({spec.text})", instead)
    if spec.name not in {"entry", "return"}:
        message = f"{{}} is not known at an instruction ({spec.text})"
        _refuse(expressions, [*of_both, *of_returns], message, "ctx.regs.rdi")
        return HandlerPlace(spec, Ends.INSIDE, in_kernel=True)
    if "latency_ns" in of_returns or (of_both and (of_returns or spec.name == "return")):
        return HandlerPlace(spec.end("entry"), Ends.CALL, in_kernel=True, has_address=spec.tells_address)
    if of_returns or spec.name == "return":
        return HandlerPlace(spec.end("return"), Ends.RETURN, in_kernel=True, has_address=spec.tells_address)
    return HandlerPlace(spec, Ends.ENTRY, in_kernel=True, has_address=spec.tells_address)


def _refuse(expressions: Sequence[Expression], names: Sequence[str], message: str, instead: str) -> None:
    """Complain about the first use of one of some names."""
    for each in expressions:
        for name, line, column in each.names:
            if name in names:
                raise each.error(line, column, message.format(name), instead)


def place_for(spec: "Spec", expressions: Sequence[Expression], of_entry: Sequence[str] = PARAMETERS) -> HandlerPlace:
    """Return where a handler in a program has to run; ``of_entry`` are the names of parameters."""
    if spec.is_marker:
        return _at_marker(spec, expressions)
    needs_return = any(each.uses(name) for each in expressions for name in OF_RETURNS)
    needs_entry = any(each.uses(name) for each in expressions for name in (*of_entry, "latency_ns"))
    match spec.name:
        case "entry":
            needs_return = needs_return or any(each.uses("errno") for each in expressions)  # before, it is of others
            return HandlerPlace(_in_one_word(spec), Ends.CALL) if needs_return else HandlerPlace(spec, Ends.ENTRY)
        case "return" if needs_entry:
            return HandlerPlace(spec.end("entry"), Ends.CALL)
        case "return":
            return HandlerPlace(_in_one_word(spec), Ends.RETURN)
    unknown, message = (*of_entry, *OF_RETURNS), f"{{}} is not known at an instruction ({spec.text})"
    _refuse(expressions, unknown, message, "ctx.regs.rdi or another register")
    return HandlerPlace(spec, Ends.INSIDE)


def _in_one_word(spec: "Spec") -> "Spec":
    """Return the same spec, as results show it: in full, where it is a line of ``kprobe_events``."""
    if not any(character.isspace() for character in spec.text.strip()):
        return spec
    from anyprobe.probes.specs.parts import in_full

    return in_full(spec.module, spec.function, spec.name, pid=spec.pid)


def _at_marker(spec: "Spec", expressions: Sequence[Expression]) -> HandlerPlace:
    """Return the place at a marker: its arguments are parameters, and it has no return."""
    for each in expressions:
        for name, line, column in each.names:
            if name in OF_RETURNS:
                raise each.error(line, column, f"{name} is not known at a marker ({spec.text})", "arg0, ctx.regs.rdi")
    return HandlerPlace(spec, Ends.ENTRY)


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
    placed: "Callable[[AnySpec], Callable[[Callable[..., Any]], object]] | None" = None
    """How it is placed, where that is not as handlers are."""
    begins: "Callable[[HandlerText], None] | None" = None
    """Writes what the beginning of a call does, besides keeping what its end uses."""

    def put(self, session: "Measured") -> Received:
        """Compile and place it; return which parameters it shows."""
        place = self.place
        self.knowledge.check_result(self.expressions if place.returns else ())
        wanted = received(self.knowledge, self.expressions, self.shown if place.has_parameters else 0)
        if place.ends is Ends.CALL:
            return self._put_call(session, wanted)
        if place.ends is Ends.RETURN and self._is_result_in_memory:
            return self._replace(place=HandlerPlace(process_spec(place.wanted).end("entry"), Ends.CALL)).put(session)
        text = HandlerText(place.in_kernel, left=split(self.expressions, (), keeps=False).left)
        at_entry = place.ends is Ends.ENTRY
        text.add(f"def handler({', '.join(['ctx', *(wanted.declared if at_entry else ())])}):")
        text.add(*(wanted.lines if at_entry else ()))
        text.add(*context_lines(self.expressions, self.knowledge.names))
        text.add(*["    retval = ctx.retval"] * (place.returns and self.knowledge.reads_result(self.expressions)))
        self.write(text, wanted.shown if at_entry else (), place.returns and self.knowledge.has_result)
        ways = {Ends.ENTRY: session.entry, Ends.RETURN: session.ret, Ends.INSIDE: session.at}
        given: Callable[..., Any] = self.placed or ways[place.ends]
        with text.pointing():
            given(place.wanted)(text.function("handler", self.things))
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
        if self.begins is not None:
            self.begins(entry)
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
                entry.function("handler", {**self.things, "shown": intrinsics.shown}),
                leaving.function("handler", {**self.things, **kept.kinds}),
            )
            if in_kernel:
                wanted_calls = kernel_spec(self.place.wanted)
                in_the_kernel(session).call(wanted_calls, retval=self.retval)(ends[0]).ret(ends[1])
                return kept
            retval = self.retval or (None if reads_result else u64)  # tells at least whether it returns
            on_process(session).handling.place_call([process_spec(self.place.wanted)], *ends, retval=retval)
        return kept
