"""Where handlers made of expressions run: at an entry, at a return, at both ends of a call, or at an instruction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from anyprobe.cli.expressions import Expression
from anyprobe.cli.handlertext import OF_RETURNS, PARAMETERS, HandlerText, context_lines, parameters_used
from anyprobe.core.errors import UsageError

if TYPE_CHECKING:
    from anyprobe.probes.session import Session

CALL_PARAMETERS = 7
"""Parameters that can be kept from a call's entry to its return, beside the time."""
Write = Callable[[HandlerText, int, bool], None]
"""Writes what a handler does, given how many parameters it knows as ``arg0``, …, and whether it has ``retval``."""


class Ends(StrEnum):
    """Which ends of a call a handler has, or that it is inside of the function."""

    ENTRY = "entry"
    RETURN = "return"
    CALL = "call"
    INSIDE = "inside"


@dataclass(frozen=True, slots=True)
class HandlerPlace:
    """A spec, and what a handler for it needs."""

    spec: str
    ends: Ends

    @property
    def returns(self) -> bool:
        """Whether the handler runs where there is a result."""
        return self.ends in {Ends.RETURN, Ends.CALL}

    @property
    def has_parameters(self) -> bool:
        """Whether the handler knows the function's parameters."""
        return self.ends in {Ends.ENTRY, Ends.CALL}


def place_for(text: str, expressions: Sequence[Expression]) -> HandlerPlace:
    """Return where a handler has to run to know what expressions need."""
    from anyprobe.probes.spec import parse

    spec = parse(text)
    of_return = any(each.uses(name) for each in expressions for name in OF_RETURNS)
    of_entry = any(each.uses(name) for each in expressions for name in (*PARAMETERS, "latency_ns"))
    plain = f"pid{spec.pid or ''}:{spec.module.text}:{spec.function.text}:entry"
    is_line = any(character.isspace() for character in text.strip())  # of kprobe_events; nothing can be appended to it
    match spec.name:
        case "entry":
            return HandlerPlace(plain if is_line and of_return else text, Ends.CALL if of_return else Ends.ENTRY)
        case "return" if of_entry:
            return HandlerPlace(plain, Ends.CALL)
        case "return":
            return HandlerPlace(plain.removesuffix("entry") + "return" if is_line else text, Ends.RETURN)
    for each in expressions:
        for name, line, column in each.names:
            if name in (*PARAMETERS, *OF_RETURNS):
                message = f"{name} is not known at an instruction ({text})"
                raise each.error(line, column, message, "ctx.regs.rdi or another register")
    return HandlerPlace(text, Ends.INSIDE)


def put(
    session: "Session",
    place: HandlerPlace,
    expressions: Sequence[Expression],
    write: Write,
    things: dict[str, Any],
    parameters: int = 0,
) -> None:
    """Make the handler of one spec and place it; ``parameters`` are wanted even if no expression uses them."""
    wanted = parameters_used(expressions, parameters if place.has_parameters else 0)
    text = HandlerText()
    known = ", ".join(f"{name}: u64" for name in PARAMETERS[:wanted])
    if place.ends is Ends.CALL:
        _put_call(session, place, expressions, write, things, wanted)
        return
    text.add(f"def handler(ctx, {known}):" if place.ends is Ends.ENTRY else "def handler(ctx):")
    text.add(*context_lines(expressions))
    if place.ends is Ends.RETURN:
        text.add("    retval = ctx.retval")
    write(text, wanted if place.ends is Ends.ENTRY else 0, place.returns)
    given = {Ends.ENTRY: session.entry, Ends.RETURN: session.ret, Ends.INSIDE: session.at}[place.ends]
    with text.pointing():
        given(place.spec)(text.function("handler", things))


def _put_call(
    session: "Session",
    place: HandlerPlace,
    expressions: Sequence[Expression],
    write: Write,
    things: dict[str, Any],
    wanted: int,
) -> None:
    """Place a pair of handlers: the entry's keeps what the return's uses."""
    if wanted > CALL_PARAMETERS:
        raise UsageError(f"{PARAMETERS[wanted - 1]} is not kept until the return; arg0 to arg{CALL_PARAMETERS - 1} are")
    timed = any(each.uses("latency_ns") for each in expressions)
    kept = PARAMETERS[:wanted]
    entry, leaving = HandlerText(), HandlerText()
    entry.add(f"def handler(ctx, {', '.join(f'{name}: u64' for name in kept)}):", "    pass")
    entry.add(*(f"    ctx.data.{name} = {name}" for name in kept), *["    ctx.data.began = ctx.now"] * timed)
    leaving.add("def handler(ctx):", "    retval = ctx.retval")
    leaving.add(*["    latency_ns = ctx.now - ctx.data.began"] * timed)
    leaving.add(*(f"    {name} = ctx.data.{name}" for name in kept), *context_lines(expressions))
    write(leaving, wanted, True)
    call = session.call(place.spec)(entry.function("handler"))
    with leaving.pointing():
        call.ret(leaving.function("handler", things))
