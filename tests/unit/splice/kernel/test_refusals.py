"""Each reason in the table of refused splices happens, and says what it says: by plans here, others in guests."""

import re
from pathlib import Path

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.splices.wanted import exits_of
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.patches import PatchMaker, count
from anyprobe.splice.kernel.places import entry_of
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from support import splice_refusals
from support.small_kernel import BODY, NEXT, PATCH, TRACED, SmallKernel, alternative, key, static_call

DOCUMENT = Path(__file__).parents[4] / "docs/kernel.md"


def at(kernel, offset=0, *, claims=None, live=None, **more):
    """Return why the instruction at an offset of the function cannot be spliced."""
    want = Want(kernel["it"].start + offset, **{"kind": WantKind.OFFSET} | more)
    splices, refused = planning.plan(kernel.map, [want], claims or Claims(), kernel.image.padding)
    if refused:
        return refused[0][1]
    read = live or (lambda low, high: kernel.source.memory.read(low, high - low))
    maker = PatchMaker(read, (), lambda _: Clobbers(flags=True))
    return maker.make(splices[0], PATCH, lambda _: (count(0x1F000),))


def made(build, code, *more, **tables):
    return SmallKernel.made(build, ("it", code), *more, NEXT, **tables)


def traced(build):
    return at(made(build, f"{TRACED}\n{BODY}"))


def switched(build):
    return at(made(build, f"place: {TRACED}\n{BODY}\n aside: ret", keys=key("place", "aside")))


def called(build):
    return at(made(build, f"place: call next\n{BODY}", calls=static_call("place")))


def replaced(build):
    code = f"place: {TRACED}\n{BODY}"
    return at(made(build, code, ("other", "mov eax, 1\n ret"), alternatives=alternative("place", 5, "other", 5)))


def looped(build):
    kernel = made(build, f"inner: dec edi\n jnz inner\n{BODY}")
    return entry_of(kernel.map, kernel["it"], kernel.image.settled)


def entered_inside(build):
    return at(made(build, f"mov eax, edi\n 1: dec ecx\n jnz 1b\n{BODY}"))


def cramped(build):
    return at(made(build, "mov eax, eax\n ret", ("__pfx_next", "nop\n" * 16)))


def landed_on(build):
    return at(made(build, f"endbr64\n{BODY}"))


def taken(build):
    kernel, claims = made(build, BODY), Claims()
    planning.plan(kernel.map, [Want(kernel["it"].start, WantKind.OFFSET)], claims)
    return at(kernel, 1, claims=claims)


def between(build):
    return at(made(build, BODY), 2)


def endless(build):
    return exits_of(made(build, "1: pause\n jmp 1b")["it"], 0)


def unknown(build):
    kernel = made(build, f"test edi, edi\n jz 1f + 1\n 1: mov ecx, 0xc3\n{BODY}")
    return entry_of(kernel.map, kernel["it"], kernel.image.settled)


def a_part(build):
    kernel = SmallKernel.made(
        build, ("it", f"test edi, edi\n jz it.cold\n{BODY}"), ("it.cold", "mov eax, 1\n pop rbx\n ret"), NEXT
    )
    return exits_of(kernel["it.cold"], 0)


def returned_to(build):
    # what the analysis has seen with a retpoline is a short call without one
    kernel = made(build, f"call __x86_indirect_thunk_rax\n{BODY}")
    return at(kernel, live=lambda low, high: b"\xff\xd0\x0f\x1f\x00".ljust(high - low, b"\x90"))


def without_a_copy(build):
    return at(made(build, f"jrcxz next\n{BODY}"), conditional=True, kind=WantKind.EXIT)


def changed(build):
    return at(made(build, BODY), live=lambda low, high: b"\x48\xb8" + bytes(high - low - 2))


def nowhere(build):
    kernel = made(build, f"{BODY}\n int3\n int3\n .balign 32, 0xcc")
    return at(kernel, len(kernel["it"].whole) + 1)


CASES = {
    Reason.FTRACE_SITE: (traced, "the kernel changes these bytes itself: an ftrace site"),
    Reason.STATIC_KEY: (switched, "the kernel changes these bytes itself: a static key"),
    Reason.STATIC_CALL: (called, "the kernel changes these bytes itself: a static call"),
    Reason.ALTERNATIVE: (replaced, "the kernel changes these bytes itself: an alternative"),
    Reason.ENTRY_IS_LOOP_HEAD: (looped, "not each arrival there is a call"),
    Reason.JUMP_TARGET_IN_JTPR: (entered_inside, "branched to from"),
    Reason.TOO_SHORT: (cramped, "padding"),
    Reason.LANDING_PAD: (landed_on, "endbr64"),
    Reason.OVERLAP: (taken, ""),
    Reason.NOT_A_BOUNDARY: (between, ""),
    Reason.NO_EXIT: (endless, "never returns"),
    Reason.CONTROL_FLOW_UNKNOWN: (unknown, "overlaps the one before"),
    Reason.PART_OF_FUNCTION: (a_part, "part of the function"),
    Reason.RETURN_ADDRESS: (returned_to, "would return into the bytes of the jump"),
    Reason.NO_DISPLACED_FORM: (without_a_copy, "jrcxz"),
    Reason.FOREIGN_BYTES: (changed, "than the analysis has seen"),
    Reason.NOT_CODE: (nowhere, "no function"),
}


@pytest.mark.parametrize("reason", CASES)
def test_what_a_plan_refuses_is_told_by_name(build, reason):
    case, said = CASES[reason]
    found = case(build)
    assert isinstance(found, Refusal), found
    assert found.reason is reason, found
    assert said in found.detail
    assert found.detail


def test_each_reason_in_the_document_is_shown_to_happen_and_each_that_happens_is_there():
    table = DOCUMENT.read_text().partition("What is refused, and by which name:")[2].partition("\n\n")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(reason.value for reason in {*CASES, *splice_refusals.IN_GUESTS})
