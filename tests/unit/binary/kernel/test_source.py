"""A small kernel, analysed: everything that its tables say, and addresses in the upper half."""

import pytest

from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.binary.kernel.source import KernelSource
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.refusal import Reason
from support.small_kernel import SmallKernel, alternative, bug, exception, key, static_call

ENTRY = ".byte 0x0f, 0x1f, 0x44, 0, 0"
"""What ftrace uses: a nop of five bytes."""


def far(target):
    """Return a jump of five bytes, as kernels have where they rewrite it."""
    return f".byte 0xe9; .long {target} - . - 4"


def leaders(kernel, name):
    function = kernel[name]
    return sorted(at - function.start for at in function.leaders)


def test_functions_end_before_their_padding(build):
    kernel = SmallKernel.made(
        build,
        ("returns", "mov eax, 1\n ret\n int3\n int3\n .balign 16"),
        ("jumps", "jmp returns\n .balign 16, 0x90"),
        ("ends", "mov edi, 2\n ret"),
    )
    assert kernel.texts("returns") == ["mov eax, 0x1", "ret"]
    assert len(kernel["jumps"].addresses) == 1
    assert all(kernel[name].complete is None for name in ("returns", "jumps", "ends"))


def test_a_displacement_that_looks_like_padding_is_code(build):
    far = "1: " + "nop\n" * 50 + "jmp 1b\n"
    kernel = SmallKernel.made(build, ("loops", far), ("next", "ret"))
    assert kernel["loops"].insns[-1].raw == b"\xeb\xcc"


@pytest.mark.parametrize("state", [ENTRY, ".byte 0xe9; .long on - key_at - 5"])
def test_a_static_key_is_a_nop_whose_target_is_entered_whichever_way_it_stands(build, state):
    code = f"key_at: {state}\n ret\n on: mov eax, 5\n ret"
    kernel = SmallKernel.made(build, ("switched", code), keys=key("key_at", "on"))
    function = kernel["switched"]
    assert [insn.length for insn in function.insns] == [5, 1, 5, 1]
    assert leaders(kernel, "switched") == [0, 5, 6]
    assert function.complete is None
    assert not function.never_runs(function.insns[2])
    assert Reason.STATIC_KEY.value in kernel.map.text.forbidden_areas.overlapping(function.start, function.start + 1)


def test_short_keys_stay_two_bytes(build):
    kernel = SmallKernel.made(
        build, ("switched", "key_at: jmp short on\n ret\n on: mov eax, 5\n ret"), keys=key("key_at", "on")
    )
    assert [insn.length for insn in kernel["switched"].insns] == [2, 1, 5, 1]


def test_fixups_of_faults_are_entered(build):
    kernel = SmallKernel.made(
        build,
        ("copies", "fault_at: mov rax, [rdi]\n ret\n fix: mov eax, -14\n ret"),
        exceptions=exception("fault_at", "fix"),
    )
    assert leaders(kernel, "copies") == [0, 4]
    assert kernel["copies"].complete is None


def test_a_warning_is_come_back_from(build):
    kernel = SmallKernel.made(
        build,
        ("warns", "warn_at: ud2\n mov eax, 1\n ret"),
        ("dies", "bug_at: ud2\n mov eax, 1\n ret"),
        bugs=bug("warn_at", warns=True) + bug("bug_at", warns=False),
    )
    assert leaders(kernel, "warns") == [0, 2]
    assert leaders(kernel, "dies") == [0]
    warned = kernel["warns"]
    assert warned.is_site(warned.start + 2)
    assert not warned.never_runs(warned.insns[1])


def test_calls_of_thunks_go_where_the_register_says_and_jumps_to_the_return_thunk_return(build):
    kernel = SmallKernel.made(
        build,
        ("calls", f"call __x86_indirect_thunk_rax\n {far('__x86_return_thunk')}"),
        ("tail", far("__x86_indirect_thunk_r10")),
    )
    assert kernel.texts("calls") == ["call rax", "ret"]
    assert kernel.texts("tail") == ["jmp r10"]
    assert [insn.length for name in ("calls", "tail") for insn in kernel[name].insns] == [5, 5, 5]
    assert [each.kind.value for name in ("calls", "tail") for each in kernel[name].exits.found] == ["ret", "tail"]
    assert kernel["tail"].complete is None


def test_static_calls_lead_anywhere(build):
    kernel = SmallKernel.made(
        build,
        ("called", "ret"),
        ("caller", f"call_at: call called\n jmp_at: {far('called')}"),
        calls=static_call("call_at") + static_call("jmp_at", tail=True),
    )
    assert kernel.texts("caller") == ["call rax", "jmp rax"]


def test_what_ftrace_calls_is_a_nop(build):
    kernel = SmallKernel.made(
        build, ("__fentry__", "ret"), ("traced", "endbr64\n call __fentry__\n ret"), ("quiet", f"{ENTRY}\n ret")
    )
    assert [kernel[name].insns[number].raw[:3] for name, number in (("traced", 1), ("quiet", 0))] == [
        b"\x0f\x1f\x44"
    ] * 2
    assert len(kernel.image.settled.traced) == 2


def test_an_address_that_is_noted_is_no_function_that_may_be_called(build):
    """``_THIS_IP_``: the address of a label goes to whoever keeps books, and a pointer is called besides."""
    kernel = SmallKernel.made(build, ("notes", "here: mov rdi, offset here_2\n call rax\n here_2: mov eax, 1\n ret"))
    assert kernel["notes"].complete is None
    assert len(kernel["notes"].exits.found) == 1


def test_code_that_will_be_replaced_is_left_where_its_replacement_jumps(build):
    kernel = SmallKernel.made(
        build,
        ("chooses", "old: jmp short no\n .byte 0x0f, 0x1f, 0\n ret\n no: xor eax, eax\n ret\n yes: mov eax, 1\n ret"),
        ("replacement", "new: .byte 0xe9; .long yes - new - 5"),
        alternatives=alternative("old", 5, "new", 5),
    )
    assert {5, 9} <= set(leaders(kernel, "chooses"))
    assert kernel.map.text.forbidden_areas.overlapping(kernel["chooses"].start, kernel["chooses"].start + 5)


def test_labels_in_constant_data_are_entered(build):
    kernel = SmallKernel.made(
        build,
        ("interprets", "jmp rax\n first: mov eax, 1\n ret\n second: mov eax, 2\n ret"),
        constants=".quad first, second",
    )
    assert {2, 8} <= set(leaders(kernel, "interprets"))
    assert kernel["interprets"].complete is None


def test_padding_with_a_name_is_no_function(build):
    kernel = SmallKernel.made(build, ("before", "ret"), ("__pfx_it", "nop\n" * 16), ("it", "ret"))
    assert [each.names[0] for each in kernel.image.functions.all()][:2] == ["before", "it"]
    assert len(kernel["before"].addresses) == 1


def test_the_same_kernel_is_recognised_and_what_was_found_is_kept(build):
    functions = [(f"f{number}", "test edi, edi\n je 1f\n call f0\n 1: ret") for number in range(20)]
    kernel = SmallKernel.made(build, *functions)
    kernel.map.survey()
    again = KernelSource.of_file(kernel.path).kernel
    assert again.build_id == kernel.image.build_id
    assert again.text().store.references() is not None


def test_a_key_that_flips_changes_nothing_about_the_kernel_s_identity(build):
    on = SmallKernel.made(build, ("f", "k: .byte 0xe9; .long t - k - 5\n ret\n t: ret"), keys=key("k", "t"))
    off = SmallKernel.made(build, ("f", "k: .byte 0x0f, 0x1f, 0x44, 0, 0\n ret\n t: ret"), keys=key("k", "t"))
    assert on.image.build_id == off.image.build_id


def test_a_live_kernel_is_read_from_its_listing_and_its_memory(build):
    kernel = SmallKernel.made(build, ("first", "call second\n ret"), ("second", "ret"))
    names = ("_stext", "first", "second", "_etext")
    listing = "".join(f"{kernel.at(name):016x} T {name}\n" for name in names)
    listing += f"{0xFFFFFFFFC0000000:016x} t in_module\t[nfs]\n{0x1234:016x} A per_processor\n"
    live = KernelSource.live(listing.encode(), kernel.memory)
    assert [each.names[0] for each in live.kernel.functions.all()] == ["first", "second"]
    assert live.names.address("in_module") == 0xC000_0000
    assert live.names.address("per_processor") is None
    assert live.kernel.functions.all()[0].start + BIAS == kernel.at("first")


def test_a_file_without_symbols_says_what_is_missing(build):
    kernel = SmallKernel.made(build, ("first", "ret"))
    stripped = build.copy(kernel.path, "stripped")
    build.run("strip", stripped)
    with pytest.raises(UnsupportedTarget, match=r"System\.map"):
        KernelSource.of_file(str(stripped))


def test_memory_that_cannot_be_read_is_said(build):
    listing = b"ffffffff81000000 T _stext\nffffffff81900000 T _etext\n"
    kernel = SmallKernel.made(build, ("first", "ret"))
    with pytest.raises(UnsupportedTarget, match="cannot be read"):
        _ = KernelSource.live(listing, kernel.memory).kernel
    with pytest.raises(UnsupportedTarget, match="_stext"):
        _ = KernelSource.live(b"ffffffff81000000 T first\n", kernel.memory).kernel


def test_modules_that_come_and_go_leave_the_kernel_s_identity_alone(build):
    kernel = SmallKernel.made(build, ("first", "call second\n ret"), ("second", "ret"))
    more = f"{0xFFFFFFFFC0000000:016x} t in_module\t[nfs]\n{0xFFFFFFFFC0000040:016x} t other\t[nfs]\n".encode()
    alone, together = (KernelSource.live(kernel.listing + each, kernel.memory).kernel for each in (b"", more))
    assert alone.build_id == together.build_id
    assert [len(each.symbol_tables[0].symbols) for each in (alone, together)] == [
        len(alone.symbol_tables[0].symbols)
    ] * 2
    assert [each.names for each in together.functions.all()] == [each.names for each in alone.functions.all()]
    renamed = KernelSource.live(kernel.listing.replace(b" second", b" 2nd...."), kernel.memory).kernel
    assert renamed.build_id != alone.build_id
