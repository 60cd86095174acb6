"""Patches of a small kernel: where entries are, what is counted how, and the writes that lead there."""

import pytest

from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import decode_range
from anyprobe.splice.codegen.processes import Processes
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.patches import PatchMaker, count, nop
from anyprobe.splice.kernel.places import entry_of
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from support.small_kernel import BODY, NEXT, PATCH, TRACED, SmallKernel, exception, key

FLAGS_DEAD, ALL_LIVE = Clobbers(flags=True), Clobbers()
SEALED = ".byte 0x66, 0x0f, 0x1f, 0"


def entry(kernel, name="it"):
    return entry_of(kernel.map, kernel[name], kernel.image.settled)


def patch(kernel, address, *, counter=0x1F000, clobbers=FLAGS_DEAD, live=None, processes=None):
    """Return the patch of a counter at an address, or why there is none."""
    splices, refused = planning.plan(kernel.map, [Want(address, WantKind.OFFSET)], Claims())
    if refused:
        return refused[0][1]
    read = live or (lambda low, high: kernel.source.memory.read(low, high - low))
    maker = PatchMaker(read, set(kernel.image.tables.fixups[:, 0].tolist()), lambda _: clobbers)
    return maker.make(splices[0], PATCH, lambda _: (count(counter, processes),))


def texts(made):
    return [insn.text for insn in decode_range(made.code, made.address)]


@pytest.mark.parametrize(
    ("front", "after"), [("", 0), (TRACED, 5), ("endbr64", 4), (f"endbr64\n{TRACED}", 9), (f"{SEALED}\n{TRACED}", 9)]
)
def test_an_entry_is_behind_what_the_kernel_needs_there(build, front, after):
    kernel = SmallKernel.made(build, ("it", f"{front}\n{BODY}"), NEXT)
    assert entry(kernel) == kernel["it"].start + after


def test_a_loop_to_the_entry_is_no_call(build):
    kernel = SmallKernel.made(build, ("it", f"{TRACED}\n inner: dec edi\n jnz inner\n {BODY}"), NEXT)
    assert entry(kernel).reason is Reason.ENTRY_IS_LOOP_HEAD


def test_no_jump_reaches_into_padding_that_the_kernel_may_use(build):
    body = f"test edi, edi\n jz 2f\n{BODY}\n.balign 16, 0xcc\n2: mov eax, 5\n jmp it\n"
    kernel = SmallKernel.made(build, ("it", body), ("__pfx_next", "nop\n" * 16), NEXT)
    last = kernel.image.padding[0] - 2
    ((without,), _), ((splice,), _) = (
        planning.plan(kernel.map, [Want(last, WantKind.OFFSET)], Claims(), padding)
        for padding in ((), kernel.image.padding)
    )
    assert (without.head, splice.head) == (last, last - 5)


def test_an_end_without_room_before_padding_is_too_short(build):
    kernel = SmallKernel.made(build, ("it", "mov eax, eax\n ret"), ("__pfx_next", "nop\n" * 16), NEXT)
    wants = [Want(kernel["it"].start, WantKind.OFFSET)]
    _, refused = planning.plan(kernel.map, wants, Claims(), kernel.image.padding)
    assert [why.reason for _, why in refused] == [Reason.TOO_SHORT]


def test_a_jump_counts_in_one_instruction_and_fills_what_is_left(build):
    kernel = SmallKernel.made(build, ("it", f"{TRACED}\n push rbx\n mov rbx, rdi\n mov r8d, 1\n{BODY}"), NEXT)
    at = entry(kernel)
    made = patch(kernel, at)
    assert texts(made)[:4] == ["inc qword ptr gs:[0x1f000]", "push rbx", "mov rbx, rdi", "mov r8d, 0x1"]
    assert (made.site, len(made.old), made.boundaries) == (at + BIAS, 10, (1, 4))
    head, filling = decode_range(made.new, made.site)
    assert (head.target, filling.length) == (PATCH, 5)
    assert decode_range(made.code, PATCH)[-1].target == made.site + 10


def test_flags_are_saved_where_they_are_read_and_far_counters_need_a_register(build):
    kernel = SmallKernel.made(build, ("it", BODY), NEXT)
    made = patch(kernel, kernel["it"].start, clobbers=ALL_LIVE, counter=0x4980_8000_0000)
    assert texts(made)[:6] == [
        "pushfq", "push rax", "mov rax, 0x498080000000", "inc qword ptr gs:[rax]", "pop rax", "popfq",
    ]  # fmt: skip


@pytest.mark.parametrize("numbers", [(42,), (42, 4_000_000), tuple(range(1000, 1100))])
def test_hits_in_other_processes_are_passed_by(build, numbers):
    kernel = SmallKernel.made(build, ("it", BODY), NEXT)
    chosen = Processes(numbers, task=0x1FC40, member=0x5C4)
    made, plain = (patch(kernel, kernel["it"].start, processes=each) for each in (chosen, None))
    assert len(made.code) <= len(plain.code) + chosen.estimate
    code = decode_range(made.code, PATCH)
    said = [insn.text for insn in code]
    assert said[:4] == [
        "pushfq", "push rax", "mov rax, gs:[0x1fc40]", "mov eax, [rax+0x5c4]",
    ]  # fmt: skip
    counted = said.index("inc qword ptr gs:[0x1f000]")
    assert said[counted - 2 : counted] == said[-3:-1] == ["pop rax", "popfq"]
    compared = [insn for insn in code[4 : counted - 2] if insn.text.startswith("cmp")]
    assert [int(insn.text.split(", ")[1], 16) for insn in compared] == [*numbers]
    *equal, other = [insn.target for insn in code[4 : counted - 2] if insn.target is not None]
    assert set(equal) <= {code[counted - 2].address}
    assert other == code[-3].address
    assert code[-1].target == code[counted + 1].address


def test_hits_in_processes_that_are_left_out_are_passed_by(build):
    kernel = SmallKernel.made(build, ("it", BODY), NEXT)
    left_out = Processes((42, 43), task=0x1FC40, member=0x5C4, are_left_out=True)
    made, plain = (patch(kernel, kernel["it"].start, processes=each) for each in (left_out, None))
    assert len(made.code) <= len(plain.code) + left_out.estimate
    code = decode_range(made.code, PATCH)
    counted = [insn.text for insn in code].index("inc qword ptr gs:[0x1f000]")
    assert [insn.text.split()[0] for insn in code[4:counted]] == ["cmp", "je", "cmp", "je", "pop", "popfq"]
    assert {code[5].target, code[7].target} == {code[-3].address}
    assert [insn.text for insn in code[-3:-1]] == ["pop rax", "popfq"]
    assert code[-1].target == code[counted + 1].address


def test_a_displaced_call_returns_to_the_text(build):
    kernel = SmallKernel.made(build, ("it", f"push rbx\n mov rbx, rdi\n push rbp\n call next\n {BODY}"), NEXT)
    call = kernel.at("it") + 5
    made = patch(kernel, call - BIAS - 1)
    assert made.site + len(made.old) == call + 5
    push, jump = decode_range(made.code, PATCH)[2:4]
    assert push.iced.immediate(0) & (1 << 64) - 1 == call + 5
    assert jump.target == kernel.at("next")


def test_what_may_fault_is_told_with_its_copy(build):
    functions = ("it", f"nop\n fault_at: mov rax, [rdi]\n mov ecx, 1\n{BODY}"), ("fix", "mov eax, 1\n ret"), NEXT
    kernel = SmallKernel.made(build, *functions, exceptions=exception("fault_at", "fix"))
    made = patch(kernel, kernel["it"].start)
    ((copy, original),) = made.faulting
    assert original == kernel.at("it") + 1
    assert made.code[copy - PATCH :].startswith(bytes.fromhex("488b07"))


def test_what_runs_now_is_displaced_whatever_the_analysis_has_settled(build):
    kernel = SmallKernel.made(build, ("it", "mov eax, 1\n jmp __x86_return_thunk\n .balign 32"), NEXT)
    at = kernel["it"].start + 5
    assert texts(patch(kernel, at))[:2] == ["inc qword ptr gs:[0x1f000]", f"jmp {kernel.at('__x86_return_thunk'):#x}"]

    def replaced(low, high):
        content = bytearray(kernel.source.memory.read(low, high - low))
        content[at - low : at - low + 5] = b"\xc3\xcc\xcc\xcc\xcc"
        return bytes(content)

    made = patch(kernel, at, live=replaced)
    assert texts(made)[1] == "ret"
    assert (made.old, made.boundaries) == (b"\xc3\xcc\xcc\xcc\xcc", (1, 2, 3, 4))


def test_what_others_may_enter_behind_the_jump_stays(build):
    # the two instructions from ``cramped`` on have no room: they are counted where control comes from
    code = "test edi, edi\n je cramped\n mov eax, 1\n cramped: nop\n pop rbx\n other: mov edx, 2\n jmp other\n ret"
    kernel = SmallKernel.made(build, ("it", f"push rbx\n{code}"), NEXT)
    start = kernel["it"].start
    splices, refused = planning.plan(kernel.map, [Want(start + 10, WantKind.OFFSET)], Claims())
    assert ([len(splice.wants) for splice in splices], refused) == ([2], [])
    maker = PatchMaker(lambda low, high: kernel.source.memory.read(low, high - low), (), lambda _: FLAGS_DEAD)
    for splice in splices:
        made = maker.make(splice, PATCH, lambda _: (count(0x1F000),))
        assert start + BIAS <= made.site < made.site + len(made.old) <= start + BIAS + 10
        assert len(made.new) == len(made.old)


def test_other_instructions_than_were_analysed_are_left_alone(build):
    kernel = SmallKernel.made(build, ("it", BODY), NEXT)
    made = patch(kernel, kernel["it"].start, live=lambda low, high: b"\x48\xb8" + bytes(high - low - 2))
    assert isinstance(made, Refusal)
    assert made.reason is Reason.FOREIGN_BYTES


def test_what_the_kernel_rewrites_is_refused_by_name(build):
    code = f"{TRACED}\n switch: {TRACED}\n{BODY}\n aside: ret"
    kernel = SmallKernel.made(build, ("it", code), NEXT, keys=key("switch", "aside"))
    assert patch(kernel, kernel["it"].start).reason is Reason.FTRACE_SITE
    assert patch(kernel, kernel["it"].start + 5).reason is Reason.STATIC_KEY


def test_a_write_may_cross_pages_since_nothing_runs_meanwhile(build):
    kernel = SmallKernel.made(build, ("front", "ret\n .fill 4092, 1, 0xcc"), ("it", BODY), NEXT)
    made = patch(kernel, kernel["it"].start)
    assert made.site & 0xFFF == 0xFFD
    assert len(made.new) >= 5


def test_what_indirect_calls_land_on_stays(build):
    kernel = SmallKernel.made(build, ("it", f"endbr64\n push rbx\n jmp aside\n{BODY}\n aside: {BODY}"), NEXT)
    start = kernel["it"].start
    assert patch(kernel, start).reason is Reason.LANDING_PAD
    made = patch(kernel, start + 4)
    assert isinstance(made, Refusal) or made.site >= start + BIAS + 4
    bare = SmallKernel.made(build, ("it", f"nop\n nop\n nop\n nop\n nop\n{BODY}"), NEXT)
    code = b"\x90\xf3\x0f\x1e\xfa"
    made = patch(bare, bare["it"].start, live=lambda low, high: code.ljust(high - low, b"\x90"))
    assert made.reason is Reason.FOREIGN_BYTES


@pytest.mark.parametrize("size", range(1, 15))
def test_one_nop_of_any_length(size):
    (insn,) = decode_range(nop(size), 0)
    assert insn.length == size
    assert insn.text.startswith(("nop", "xchg"))


def test_nothing_is_filled_with_nothing():
    assert nop(0) == b""
