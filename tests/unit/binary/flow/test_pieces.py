"""Parts of functions that lie elsewhere, told by unwind entries and by the code, whatever they are called."""

import pytest

from anyprobe.binary.flow.pieces import Pieces
from anyprobe.core.refusal import Reason
from support.module_under_test import Module, function

FRAME = ".cfi_startproc\n .cfi_def_cfa_offset 16\n {}\n .cfi_endproc"
WHOLE = ".cfi_startproc\n push rbx\n .cfi_def_cfa_offset 16\n {}\n .cfi_endproc"
TAIL = "add rax, rbx\n pop rbx\n ret"


def local(name, body):
    return function(name, body).replace(f".globl {name}\n", "")


def owner(module, name):
    return module.map.analyses.get(Pieces).owner_of(module[name])


def parts(module, name):
    return {part.start for part in module[name].parts}


def reason(module, name):
    refusal = module[name].exits.complete
    return refusal and refusal.reason


CHAIN = (
    function("whole", WHOLE.format("test edi, edi\n js first\n jmp second")),
    local("first", FRAME.format("inc edi\n jmp second")),
    local("second", FRAME.format("mov eax, edi\n pop rbx\n ret")),
)


def test_parts_belong_to_the_function_that_reaches_them_by_other_parts_or_directly(build):
    module = Module.assembled(build, *CHAIN)
    whole = module["whole"]
    assert parts(module, "whole") == {module.start(name) for name in ("whole", "first", "second")}
    assert [(each.address, each.kind.value) for each in whole.exits.found] == [(module["second"].end - 1, "ret")]
    assert whole.exits.complete is None
    for name in ("first", "second"):
        assert owner(module, name) == whole.start
        assert reason(module, name) is Reason.PART_OF_FUNCTION
    assert owner(module, "whole") is None


def test_parts_that_control_runs_on_into(build):
    first = local("first", FRAME.format("inc edi")).replace(".p2align 4", "")
    last = local("last", FRAME.format("mov eax, edi\n pop rbx\n ret")).replace(".p2align 4", "")
    begin = function("whole", WHOLE.format("test edi, edi\n js last"))
    module = Module.assembled(build, begin, first, last)
    assert parts(module, "whole") == {module.start(name) for name in ("whole", "first", "last")}
    assert module["whole"].exits.complete is None
    assert owner(module, "first") == owner(module, "last") == module.start("whole")


def test_parts_that_jump_tables_lead_to_from_a_part_behind_the_check_of_the_index(build):
    switch = FRAME.format("lea rdx, [rip+table]\n movsxd rcx, [rdx+rcx*4]\n add rcx, rdx\n jmp rcx")
    module = Module.assembled(
        build,
        function("whole", WHOLE.format("mov ecx, edi\n cmp ecx, 1\n ja .Lout\n jmp switch\n.Lout: pop rbx\n ret")),
        local("switch", switch),
        local("zero", FRAME.format("mov eax, 7\n pop rbx\n ret")),
        local("one", FRAME.format("mov eax, 9\n pop rbx\n ret")),
        ".section .rodata\ntable: .long zero-table, one-table\n.text\n",
    )
    whole = module["whole"]
    assert parts(module, "whole") == {module.start(name) for name in ("whole", "switch", "zero", "one")}
    assert whole.exits.complete is None
    assert [each.kind.value for each in whole.exits.found] == ["ret"] * 3
    assert reason(module, "zero") is Reason.PART_OF_FUNCTION


def test_what_is_called_or_seen_by_others_is_a_function_whatever_it_is_called(build):
    called = function("caller", "call works.cold\n call works.part.0\n ret")
    module = Module.assembled(
        build,
        function("works", "test edi, edi\n js works.cold\n jne works.part.0\n ret"),
        local("works.cold", "mov eax, 1\n ret"),
        local("works.part.0", "mov eax, 2\n ret"),
        called,
    )
    for name in ("works.cold", "works.part.0"):
        assert owner(module, name) is None
        assert module[name].exits.complete is None
        assert len(module[name].exits.found) == 1
    assert [each.kind.value for each in module["works"].exits.found] == ["tail", "tail", "ret"]


@pytest.mark.parametrize("name", ["works.cold", "works.cold.3", "works.__part.2"])
def test_names_tell_of_parts_without_a_frame(build, name):
    module = Module.assembled(
        build, function("works", f"test edi, edi\n js {name}\n ret"), local(name, "mov eax, 1\n ret")
    )
    module.map = type(module.map)(module.text, module.image.cold_parts)
    assert [each.kind.value for each in module["works"].exits.found] == ["ret", "ret"]
    assert owner(module, name) == module.start("works")


def test_a_jump_with_something_on_the_stack_is_no_tail_call(build):
    """As outliners leave it, and without unwind entries."""
    module = Module.assembled(
        build,
        function("lone", "push rbx\n test edi, edi\n js lonely\n pop rbx\n ret"),
        local("lonely", "call first\n jmp lonelier"),
        local("lonelier", TAIL),
        function("first", f"push rbx\n test edi, edi\n js OUTLINED_FUNCTION_0\n {TAIL}"),
        function("second", "push rbx\n mov ebx, edi\n jmp OUTLINED_FUNCTION_0"),
        local("OUTLINED_FUNCTION_0", TAIL),
        function("plain", "push rbx\n call first\n pop rbx\n jmp behind"),
        local("behind", "mov eax, edi\n ret"),
    )
    assert parts(module, "lone") == {module.start(name) for name in ("lone", "lonely", "lonelier")}
    assert module["lone"].exits.complete is None
    for name in ("first", "second"):
        assert reason(module, name) is Reason.CONTROL_FLOW_UNKNOWN
        assert "with its frame in place" in module[name].exits.complete.detail
    assert reason(module, "OUTLINED_FUNCTION_0") is Reason.PART_OF_FUNCTION
    assert reason(module, "plain") is reason(module, "behind") is None
    assert [each.kind.value for each in module["plain"].exits.found] == ["tail"]


def test_a_part_of_several_functions_has_no_ends_of_its_own_nor_have_they(build):
    module = Module.assembled(
        build,
        function("one", WHOLE.format("jmp shared")),
        function("two", WHOLE.format("jmp shared")),
        local("shared", FRAME.format("pop rbx\n ret")),
    )
    assert owner(module, "shared") is None
    assert reason(module, "shared") is Reason.PART_OF_FUNCTION
    assert reason(module, "one") is reason(module, "two") is Reason.CONTROL_FLOW_UNKNOWN


def test_jumps_from_parts_back_to_the_entry_are_loops(build):
    module = Module.assembled(
        build,
        function("whole", ".cfi_startproc\n dec edi\n js away\n ret\n .cfi_endproc"),
        local("away", ".cfi_startproc\n .cfi_def_cfa rsp, 8\n neg edi\n jmp whole\n .cfi_endproc"),
    )
    whole = module["whole"]
    assert whole.back_to_entry == (module["away"].end - 5,) or len(whole.back_to_entry) == 1
    assert [each.kind.value for each in whole.exits.found] == ["ret"]


@pytest.mark.parametrize("bare", [True, False])
def test_a_branch_that_is_never_taken_has_no_frame(build, bare):
    """It leads to the end of its function's cold part, which is empty, where the cold part of another begins."""
    stray = "cmp edi, 5\n ja cold\n mov eax, edi\n ret"
    if not bare:
        stray = WHOLE.format(stray.replace("ret", "pop rbx\n ret"))
    code = (
        function("whole", WHOLE.format("test edi, edi\n js cold\n mov eax, edi\n pop rbx\n ret")),
        function("other", stray),
        local("cold", FRAME.format("xor eax, eax\n pop rbx\n ret")),
    )
    module = Module.assembled(build, *code)
    assert owner(module, "cold") == (module.start("whole") if bare else None)
    expected = None if bare else Reason.CONTROL_FLOW_UNKNOWN
    assert (reason(module, "whole"), reason(module, "other")) == (expected, expected)
    assert parts(module, "other") == {module.start("other")}
