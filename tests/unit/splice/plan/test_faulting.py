"""What must not be displaced where the program handles faults."""

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.isa.decode import decode_range
from anyprobe.splice.plan.faulting import fault_refusal

LOAD, LONG_LOAD, MOVE, JUMP, RET = "48 8b 07", "48 8b 87 00 01 00 00", "48 89 f3", "ff 20", "c3"
UD2, INT3, PUSH = "0f 0b", "cc", "53"
BASE = 0x1000


@pytest.mark.parametrize(
    ("code", "written", "refused"),
    [
        (f"{PUSH} {MOVE} {RET}", 5, None),
        (LONG_LOAD, 5, None),
        (LOAD, 3, None),  # a pun that leaves what follows as it is
        (LOAD, 5, 0),  # a handler may have the program go on there
        (f"{LOAD} {MOVE}", 5, 0),
        (f"{LONG_LOAD} {MOVE}", 5, 0),  # it would go on uncounted
        (f"{PUSH} {LOAD} {MOVE}", 5, 1),
        (JUMP, 5, None),  # no handler goes on behind a jump
        (UD2, 5, 0),
        (f"{INT3} {MOVE} {RET}", 5, 0),  # its handler is told what follows
        (f"{PUSH} {INT3} {MOVE}", 5, 1),
    ],
)
def test_what_may_fault_is_displaced_alone(code, written, refused):
    why = fault_refusal(decode_range(bytes.fromhex(code), BASE), BASE + written)
    assert (None if why is None else (why.reason, why.address - BASE)) == (
        None if refused is None else (Reason.MAY_FAULT, refused)
    )


@pytest.mark.parametrize(("code", "refused"), [(LONG_LOAD, True), (JUMP, True), (f"{PUSH} {MOVE} {RET}", False)])
def test_it_stays_where_handlers_would_see_another_pc(code, refused):
    insns = decode_range(bytes.fromhex(code), BASE)
    assert (fault_refusal(insns, BASE + 5, shown=False) is not None) == refused
