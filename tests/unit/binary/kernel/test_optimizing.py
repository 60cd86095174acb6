"""What the kernel's optimiser of kprobes would do, by its own rules, in a small kernel."""

import pytest

from anyprobe.binary.kernel.optimizing import Optimized, Optimizer, Rules
from anyprobe.core.refusal import Reason
from support.small_kernel import SmallKernel, bug, exception, key, static_call

TAIL = "mov ecx, 1\n mov edx, 2\n ret"
ENTRY = ".byte 0x0f, 0x1f, 0x44, 0, 0"
NEXT = ("next", "ret\n .balign 32")


def verdict(kernel, name, offset=0, rules=None):
    optimizer = Optimizer(kernel.source, [kernel.image], rules or Rules())
    return optimizer.look_at(kernel.source.names.address(name) + offset)


def reason(*arguments, **named):
    return verdict(*arguments, **named).reason


def test_whole_instructions_of_five_bytes_and_more_are_displaced(build):
    kernel = SmallKernel.made(build, ("plain", f"push rbx\n mov rbx, rdi\n push rbp\n {TAIL}"), NEXT)
    found = verdict(kernel, "plain")
    assert isinstance(found, Optimized)
    assert [insn.length for insn in found.insns] == [1, 3, 1]
    assert found.insns[0].address == kernel["plain"].start


def test_a_jump_anywhere_in_the_function_to_what_would_be_displaced_forbids_it(build):
    code = f"push rbx\n inner: mov rbx, rdi\n push rbp\n {TAIL}\n jmp inner"
    kernel = SmallKernel.made(build, ("loops", code), NEXT)
    assert reason(kernel, "loops") is Reason.JUMP_TARGET_IN_JTPR
    assert isinstance(verdict(kernel, "loops", 5), Optimized)


def test_a_jump_right_behind_the_displaced_bytes_counts_for_the_kernel(build):
    kernel = SmallKernel.made(build, ("loops", f"mov eax, 1\n inner: {TAIL}\n jmp inner"), NEXT)
    assert reason(kernel, "loops") is Reason.JUMP_TARGET_IN_JTPR, "though by the control flow it could be displaced"


def test_an_instruction_that_may_fault_anywhere_in_the_function_forbids_it(build):
    code = f"mov eax, 1\n {TAIL}\n fault_at: mov rax, [rdi]\n ret"
    kernel = SmallKernel.made(
        build, ("copies", code), ("other", f"fix: {TAIL}"), NEXT, exceptions=exception("fault_at", "fix")
    )
    assert reason(kernel, "copies") is Reason.MAY_FAULT
    assert isinstance(verdict(kernel, "other"), Optimized)


@pytest.mark.parametrize(
    ("instruction", "boosted"),
    [
        ("call next", False), ("je next", False), ("nop; lock add [rdi], eax", True),
        ("rep movsb; nop; nop; nop", True),
        ("cs mov eax, [rdi]; nop", False), ("mov eax, [edi]; nop; nop", False), ("cmpxchg [rdi], rax; nop", True),
        ("ud2; nop; nop; nop", False), ("imul rax, rdi; nop", True), ("syscall; nop; nop; nop", False),
        ("sete al; nop; nop", True), ("jmp rax; nop; nop; nop", True), ("call rax; nop; nop; nop", False),
        ("sti; cli; nop; nop; nop", True), ("in al, dx; nop; nop; nop; nop", True),
        ("push [rdi]; nop; nop; nop", False),
    ],
)  # fmt: skip
def test_which_instructions_the_kernel_displaces(build, instruction, boosted):
    code = instruction.replace("; ", "\n") + f"\n {TAIL}"
    found = verdict(SmallKernel.made(build, ("it", code), NEXT), "it")
    assert isinstance(found, Optimized) == boosted, found


@pytest.mark.parametrize(
    "instruction", ["shl rax, 3\n nop", "neg rax\n nop\n nop", "inc byte ptr [rdi]\n push rax\n push rax"]
)
def test_groups_are_displaced_by_newer_kernels_only(build, instruction):
    kernel = SmallKernel.made(build, ("it", f"{instruction}\n {TAIL}"), NEXT)
    assert isinstance(verdict(kernel, "it"), Optimized)
    assert reason(kernel, "it", rules=Rules(is_new=False)) is Reason.NO_DISPLACED_FORM


def test_what_the_kernel_rewrites_is_not_displaced(build):
    kernel = SmallKernel.made(
        build,
        ("switched", f"push rax\n key_at: .byte 0x0f, 0x1f, 0x44, 0, 0\n {TAIL}\n on: ret"),
        ("calling", f"push rax\n call_at: call switched\n {TAIL}"),
        NEXT,
        keys=key("key_at", "on"),
        calls=static_call("call_at"),
    )
    assert reason(kernel, "switched") is Reason.STATIC_KEY
    assert reason(kernel, "calling") in (Reason.STATIC_CALL, Reason.NO_DISPLACED_FORM)


def test_kprobes_are_refused_on_what_the_kernel_rewrites_and_on_traps(build):
    code = f"{ENTRY}\n key_at: {ENTRY}\n call_at: call switched\n bug_at: ud2\n on: ret\n int3\n ud2\n .balign 32"
    kernel = SmallKernel.made(
        build, ("switched", code),
        keys=key("key_at", "on"), calls=static_call("call_at"), bugs=bug("bug_at", warns=True),
    )  # fmt: skip

    def refused(offset, **rules):
        found = Optimizer(kernel.source, [kernel.image], Rules(**rules)).forbids(kernel["switched"].start + offset)
        return found and found.reason

    assert [refused(offset) for offset in (5, 10, 15, 17, 18, 19)] == [
        Reason.STATIC_KEY, Reason.STATIC_CALL, Reason.KERNEL_REFUSES, None, Reason.NOT_CODE, Reason.NOT_CODE,
    ]  # fmt: skip
    assert refused(18, is_new=False) is Reason.NOT_CODE
    assert refused(19, is_new=False) is None


def test_kprobes_are_refused_in_functions_that_cannot_be_traced(build):
    kernel = SmallKernel.made(
        build,
        ("traced", f"{ENTRY}\n {TAIL}"), ("quiet", TAIL), ("traced.isra.0", TAIL), ("quiet.isra.0", TAIL), NEXT,
    )  # fmt: skip
    optimizer = Optimizer(kernel.source, [kernel.image], Rules())
    refused = {
        name: optimizer.forbids(kernel[name].start + 5) for name in ("traced", "quiet", "traced.isra.0", "quiet.isra.0")
    }
    assert [name for name, why in refused.items() if why is None] == ["traced", "traced.isra.0"]
    assert "ftrace" in refused["quiet"].detail


def test_a_kprobe_at_the_entry_is_the_tracer_s(build):
    kernel = SmallKernel.made(build, ("traced", f"endbr64\n {ENTRY}\n {TAIL}"), NEXT)
    assert [reason(kernel, "traced", offset) for offset in (0, 4)] == [Reason.FTRACE_SITE] * 2
    assert isinstance(verdict(kernel, "traced", 9), Optimized)


def test_too_near_to_the_next_symbol(build):
    kernel = SmallKernel.made(build, ("short", "mov eax, 1\n nop\n ret"), ("next", "ret"))
    assert reason(kernel, "short", 5) is Reason.TOO_SHORT


def test_jumps_to_thunks_forbid_it_in_kernels_that_mark_where_these_are(build):
    code = f"mov eax, 1\n {TAIL}\n .byte 0xe9; .long thunk - . - 4"
    plain = SmallKernel.made(build, ("tail", code), ("thunk", "nop\n nop"), NEXT)
    assert isinstance(verdict(plain, "tail"), Optimized)
    marks = ("__indirect_thunk_start", ""), ("thunk", "nop\n nop"), ("__indirect_thunk_end", "ret")
    assert reason(SmallKernel.made(build, ("tail", code), *marks), "tail") is Reason.CONTROL_FLOW_UNKNOWN


def test_entry_code_is_left_alone(build):
    kernel = SmallKernel.made(
        build, ("__entry_text_start", ""), ("entry", f"mov eax, 1\n {TAIL}"), ("__entry_text_end", "ret")
    )
    assert reason(kernel, "entry") is Reason.KERNEL_REFUSES
