"""Where ``audit --kernel`` looks: at entries and returns of system calls in the kernel, by BPF.

A process cannot deceive it: its memory has no part in it, but for texts and structures that it passes, which it may
change between this look and the kernel's own. ``arg1`` of an expression is the call's second parameter, with the type
that the kernel says, and what it points at is read in the program only.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from anyprobe.cli.handlers.handlertext import HandlerText
from anyprobe.core.errors import HandlerError, SpecError, UnsupportedTarget, UsageError
from anyprobe.probes.providers.kernel.places.specs import parsed

if TYPE_CHECKING:
    from anyprobe.cli.events.auditing import Rule
    from anyprobe.cli.handlers.expressions import Expression
    from anyprobe.probes.providers.kernel.session import KernelSession

_FRAMES = 16


def place(session: "KernelSession", rules: "Sequence[Rule]") -> Iterator[tuple[str, str]]:
    """Place the handlers of all rules; yield the specs at which none could be, and why."""
    names: dict[str, list[str]] = {}
    for call in dict.fromkeys(rule.call for rule in rules):
        try:
            names[call] = _names(session, f"syscall::{call}:entry")
        except (SpecError, UnsupportedTarget) as error:
            yield f"syscall::{call}", str(error).splitlines()[0]
    for call in names:  # before the entries: no call is seen to begin and not to end
        _put_return(session, f"syscall::{call}:return")
    for index, rule in enumerate(rules):
        spec, wanted = f"syscall::{rule.call}:entry", len(rule.parameters)
        if rule.call in names and (count := _put(session, spec, index, rule, names[rule.call])) < wanted:
            yield spec, f"the kernel's verifier accepts {count} of {wanted} arguments of {rule.event}"
    yield from ((spec, refusal.reason.value) for spec, refusal in session.refused)


def _names(session: "KernelSession", spec: str) -> list[str]:
    """Return the names of a system call's parameters."""
    site = session.resolve(*parsed((spec,)))[0]
    return [name for name, *_ in session.system_call(site).parameters]


def _put(session: "KernelSession", spec: str, index: int, rule: "Rule", names: Sequence[str]) -> int:
    """Place a rule's handler; return with how many of its arguments: as many as the kernel's verifier accepts."""
    for count in range(len(rule.parameters), -1, -1):
        try:
            _put_some(session, spec, index, rule, rule.parameters[:count], names)
        except HandlerError as error:
            if not count:
                raise UsageError(f"rule {rule.event} is not possible in the kernel: {error}") from None
            continue
        break
    return count


def _put_some(
    session: "KernelSession",
    spec: str,
    index: int,
    rule: "Rule",
    parameters: "Sequence[Expression]",
    names: Sequence[str],
) -> None:
    from anyprobe.handlers.intrinsics import emit_partial

    used = {name for each in parameters for name, _, _ in each.names}
    given = {f"arg{at}": name for at, name in enumerate(names) if f"arg{at}" in used}
    missing = sorted(name for name in used if name.startswith("arg") and name not in given)
    if missing:
        raise UsageError(f"rule {rule.event}: {rule.call} has {len(names)} parameters, and no {missing[0]}")
    text = HandlerText()
    text.add(f"def handler(ctx{''.join(f', {name}' for name in given.values())}):")
    text.add(*(f"    {position} = {name}" for position, name in given.items()))
    text.add(
        f"    emit_partial('call {index}.{len(parameters)}', tid=ctx.tid, pid=ctx.pid, stack=ctx.ustack({_FRAMES}),"
    )
    for at, each in enumerate(parameters):
        text.add_expression(f"        parameter{at}=", each, ",")
    text.add("    )")
    with text.pointing():
        session.entry(spec)(text.function("handler", {"emit_partial": emit_partial}))


def _put_return(session: "KernelSession", spec: str) -> None:
    from anyprobe.handlers.intrinsics import emit

    text = HandlerText()
    text.add("def handler(ctx):", "    emit('returned, kernel', tid=ctx.tid, result=i64(ctx.retval))")
    session.ret(spec)(text.function("handler", {"emit": emit}))
