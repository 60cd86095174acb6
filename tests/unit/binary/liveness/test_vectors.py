"""Vector, mask and x87 registers that are dead in front of instructions. The assembly is what is assembled."""

import pytest

from anyprobe.binary.liveness.vectors import ALL, VectorLiveness, names_of
from support.module_under_test import Module, function


def dead_in(module, number=0, name="code"):
    """Return what is dead in front of an instruction of a function, by names."""
    code = module[name]
    return set(names_of(VectorLiveness(code._map, code).dead_at(code.insns[number].address)))


@pytest.fixture
def dead(build):
    return lambda body, number=0, *others: dead_in(Module.assembled(build, function("code", body), *others), number)


def test_what_is_overwritten_before_it_is_read_is_dead(dead):
    assert dead("vmovaps xmm3, xmm4\n vaddps xmm0, xmm3, xmm5\n ret") == {"zmm0", "zmm3"}


def test_older_instructions_leave_the_upper_part_as_it_was(dead):
    """A caller may have something there; with ``vzeroupper`` that is settled, for the first sixteen."""
    assert dead("movaps xmm3, xmm4\n ret") == {"xmm3"}
    assert dead("movaps xmm3, xmm4\n vzeroupper\n ret") >= {"zmm3", "zmm0[128:]", "zmm15[128:]"}


@pytest.mark.parametrize(
    "reading",
    [
        "movsd xmm3, xmm4",
        "cvtsi2sd xmm3, eax",
        "vaddps xmm3{k1}, xmm4, xmm5",
        "sqrtsd xmm3, [rsi]",
        "vfmadd231ps xmm3, xmm4, xmm5",
        "pxor xmm3, xmm4",
        "blendvps xmm3, xmm4",
        "fxsave [rsi]",
        "xsave [rsi]",
    ],
)
def test_what_keeps_a_part_reads(dead, reading):
    assert dead(f"{reading}\n vxorps xmm3, xmm3, xmm3\n ret") & {"zmm3", "xmm3"} == set()


@pytest.mark.parametrize("zeroing", ["xorps xmm3, xmm3", "pxor xmm3, xmm3", "movsd xmm3, [rsi]", "movd xmm3, esi"])
def test_what_depends_on_nothing_overwrites(dead, zeroing):
    assert "xmm3" in dead(f"{zeroing}\n ret")


def test_both_ways_of_a_branch_count(dead):
    body = "test edi, edi\n je 1f\n vmovaps zmm3, zmm0\n ret\n 1: vaddps zmm3, zmm3, zmm0\n ret"
    assert dead(body) == set()
    assert dead(body, 2) == {"zmm3"}


def test_a_loop_keeps_what_it_carries(dead):
    loop = "1: vaddps zmm3, zmm3, [rdi]\n add rdi, 16\n dec esi\n jne 1b"
    body = f"vpxorq zmm3, zmm3, zmm3\n {loop}\n vmovaps zmm0, zmm3\n ret"
    assert dead(body) == {"zmm0", "zmm3"}
    assert dead(body, 2) == {"zmm0"}


def test_a_return_leaves_results_and_what_the_function_does_not_overwrite(dead):
    """Callers may have agreed with the compiler on what a function keeps."""
    assert dead("vaddps zmm3, zmm4, zmm4\n vaddps zmm0, zmm3, zmm4\n vaddps zmm1, zmm3, zmm3\n ret", 3) == {"zmm3"}


def test_what_is_put_back_is_not_destroyed(dead):
    save, restore = "movaps [rsp-24], xmm6", "movaps xmm6, [rsp-24]"
    body = f"{save}\n movaps xmm6, xmm0\n addps xmm6, xmm6\n movaps xmm0, xmm6\n {restore}\n ret"
    assert "xmm6" in dead(body, 1)
    assert "xmm6" not in dead(body, 5)


def test_a_call_passes_arguments_and_comes_back_with_the_rest(dead):
    body = "vmovaps zmm9, zmm8\n vmovaps zmm2, zmm8\n call [rsi]\n vmovaps zmm8, zmm9\n vmovaps zmm2, zmm8\n ret"
    assert dead(body, 1) == {"zmm2"}
    assert dead(body, 2) == {"zmm8"}


def test_a_direct_call_is_looked_into(dead):
    called = ".hidden other\n" + function("other", "vmovaps zmm4, zmm5\n vmovaps zmm0, zmm4\n ret")
    assert dead("call other\n vmovaps zmm5, zmm0\n ret", 0, called) == {"zmm0", "zmm4"}


def test_the_stack_of_x87_and_masks(dead):
    assert "x87" not in dead("fadd st(0), st(1)\n ret")
    assert "x87" in dead("fninit\n fld1\n ret")
    assert "x87" not in dead("pxor mm0, mm0\n fninit\n ret")
    assert "k3" in dead("kmovw k3, eax\n kandw k4, k3, k5\n ret")
    assert "k5" not in dead("kmovw k3, eax\n kandw k4, k3, k5\n ret")


def test_where_stacks_are_switched_a_return_leaves_everything(dead):
    assert dead("mov rsp, rsi\n vmovaps zmm3, zmm4\n ret", 2) == set()
    assert dead("mov rdx, rsi\n vmovaps zmm3, zmm4\n ret", 2) == {"zmm3"}


def test_an_unknown_jump_leads_to_who_reads_everything(dead):
    assert dead("imul rdi, rsi\n jmp rdi\n vmovaps xmm3, xmm4\n ret") == set()


def test_every_instruction_of_a_library_has_known_effects(build):
    """What is dead is never read by the instruction itself."""
    from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
    from anyprobe.binary.images.image import Image
    from anyprobe.binary.liveness.vectors import vector_effects

    code_map = CodeMap(Image.open("/usr/lib/x86_64-linux-gnu/libm.so.6").text())
    functions = map(code_map.function_at, code_map.text.function_starts.tolist()[::40])
    seen = 0
    for each in functions:
        if isinstance(each, FunctionCode) and each.complete is None:
            liveness = VectorLiveness(code_map, each)
            for number, address in enumerate(each.addresses):
                dead = liveness.dead_at(address)
                assert dead & vector_effects(each.iced[number], each.raw_at(number)).reads == 0
                assert 0 <= dead <= ALL
                seen += dead != 0
    assert seen > 100
