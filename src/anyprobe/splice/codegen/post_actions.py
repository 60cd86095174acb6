"""Actions after an instruction: on whatever way control leaves it, with registers and stack as they are by then.

After a call they run with the return address pushed, before the callee's first instruction; after a return they
run with the stack pointer where the caller has it. What they are told of the place is where control goes from there.
"""

import struct
from collections.abc import Callable
from functools import partial

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Insn
from anyprobe.isa.encode import CONDITIONS, head
from anyprobe.isa.relocate import displace, push_address
from anyprobe.splice.codegen.patch import PatchWriter, UndisplaceableError
from anyprobe.splice.codegen.timing.exit_test import push_target
from anyprobe.splice.plan.post_actions import popped

_RED_ZONE = 128
Act = Callable[[int, Callable[[int], bytes] | None], None]
"""Appends actions: given where control goes, or 0 and code that pushes that."""


def act_after_return(writer: PatchWriter, insn: Insn, act: Act) -> None:
    """Append actions before a ``ret`` that find the stack as it will be; the address stays in the red zone."""
    size = popped(insn)
    writer.value("lea rsp, [rsp+popped]", size)
    # push qword [rsp+128-popped]
    act(0, lambda _: head("push qword [rsp+return_address]") + struct.pack("<i", _RED_ZONE - size))
    writer.value("lea rsp, [rsp+popped]", -size)


def act_after_jump(insn: Insn, act: Act) -> None:
    """Append actions before a jump; an indirect one reads its target once more."""
    if insn.target is not None:
        act(insn.target, None)
    else:
        act(0, partial(push_target, insn, moved=_RED_ZONE))


def call_with_actions(writer: PatchWriter, insn: Insn, act: Act) -> None:
    """Append the copy of a call with actions between its push and its jump."""
    push = push_address(insn.end)
    writer.raw(push)
    if insn.target is not None:
        act(insn.target, None)
    else:
        act(0, partial(push_target, insn, moved=_RED_ZONE + 8))
    copy = displace(insn, writer.here - len(push))
    if isinstance(copy, Refusal):
        raise UndisplaceableError(copy)
    writer.raw(copy[len(push) :])


def branch_with_actions(writer: PatchWriter, insn: Insn, act: Act, taken: Callable[[], None]) -> None:
    """Append the copy of a conditional jump; ``taken`` appends what else runs on its taken edge, and the jump."""

    def on_taken_edge() -> None:
        assert insn.target is not None
        act(insn.target, None)
        taken()

    jump: str | bytes
    if insn.condition is not None:
        jump = f"j{CONDITIONS[insn.condition]} taken"
    else:
        copy = displace(insn, writer.here)
        if isinstance(copy, Refusal):
            raise UndisplaceableError(copy)
        jump = copy[:-4]  # loop taken; jmp short past; taken: jmp rel32; past:
    writer.cold(jump, on_taken_edge)
    act(insn.end, None)
