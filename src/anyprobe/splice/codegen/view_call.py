"""The beginning of a signal handler's patch: only where the kernel calls it out of anyprobe's code, the view is called.

    lea rsp, [rsp+8]; cmp rsp, rdx; lea rsp, [rsp-8]; je called     the ucontext is above the return address
    others:  actions
    done:    displaced instructions
    called:  lea rdx, [rdx+304]; cmp rdx, rsi; lea rdx, [rdx-304]; jne others     and the siginfo above that
             lea r13, [rel checked]; jmp check
    checked: mov r13, its word in the frame; jne ours
    counted: counters, with registers that the frame has; jmp done
    ours:    call view; jmp counted

What the kernel calls writes nothing on the stack, but where a handler is called, a call is timed, or a thread has its
first hit. A function that is set for a signal is taken to want no flags: nothing else is free if the program calls it.
"""

from collections.abc import Callable, Sequence

from anyprobe.isa import signal_frame as uc
from anyprobe.splice.codegen.patch import BLIND, Action, ActionKind, PatchWriter
from anyprobe.splice.plan.splices import Clobbers

VIEW_ESTIMATE = 224
"""Upper bound of the bytes that it takes besides the actions."""
COUNTED_ESTIMATE = 80
"""Bytes at most of each counter that is written once more."""
_FREE = Clobbers(("rax",), flags=True)
_COUNTERS = frozenset({ActionKind.COUNT, ActionKind.COUNT_STACKLESS, ActionKind.FLAG})


def write_view(writer: PatchWriter, view: Action, others: Sequence[Action], write_others: Callable[[], None]) -> None:
    """Append the check of a handler's caller, the view, and what else is to be done at its first instruction."""
    from anyprobe.splice.translate.view_check import restored

    places: dict[str, int] = {}

    def called() -> None:
        writer.value("lea rdx, [rdx+siginfo]", uc.BYTES)
        writer.code("cmp rdx, rsi")
        writer.value("lea rdx, [rdx+siginfo]", -uc.BYTES)
        writer.relative("jne others", places["others"])
        writer.check_view(view)
        writer.code(restored("r13"))
        if not view.offset & BLIND:
            writer.cold("jne ours", ours)
        places["counted"] = writer.here
        if not all(action.kind in _COUNTERS and not action.bank.processes for action in others):
            writer.relative("jmp others", places["others"])
            return
        for action in others:
            writer.action(action, _FREE)
        writer.code(restored("rax"))
        writer.relative("jmp done", places["done"])

    def ours() -> None:
        writer.call_view(view)
        writer.relative("jmp counted", places["counted"])

    writer.code("lea rsp, [rsp+8]; cmp rsp, rdx; lea rsp, [rsp-8]")
    writer.cold("je called", called)
    places["others"] = writer.here
    write_others()
    places["done"] = writer.here
