"""What the kernel's verifier does not accept is shown with its place in the handler, and the kernel's words below."""

import pytest

import anyprobe
from anyprobe import Count, Quantize, u64
from anyprobe.core.errors import KernelRefused
from anyprobe.handlers.bpf.assembly import instruction
from anyprobe.handlers.bpf.layouts import AT_TRACEPOINT
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.kernel_programs import kernel_program, places_in
from anyprobe.probes.providers.kernel import handlers
from anyprobe.target.kernel import programs, switches
from support import bpf_running

REFUSED = bpf_running.refused_because()
CALL, ATOMIC = 0x85, 0xDB
WORDS = """func#0 @0
0: R1=ctx() R10=fp0
0: (bf) r6 = r1                       ; R1=ctx() R6_w=ctx()
12: (85) call unknown#999999
invalid func unknown#999999
processed 13 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
"""


def test_the_instruction_is_read_off_the_trace():
    refusal = programs.VerifierRefusal(KernelRefused("load a program", 22), WORDS, WORDS)
    assert (refusal.at, refusal.is_of_code) == (12, True)
    assert "invalid func unknown#999999" in str(refusal)
    about_place = "The function f() has more than 12 arguments\nprocessed 0 insns (limit 1000000)\n"
    other = programs.VerifierRefusal(KernelRefused("load a program", 22), about_place, "")
    assert (other.at, other.is_of_code) == (None, False)


@pytest.mark.parametrize("mode", ["none", "integrity", "confidentiality"])
@pytest.mark.parametrize("word", ["unknown func bpf_probe_read_kernel#113", "invalid func unknown#999999"])
def test_lockdown_is_the_reason_where_the_kernels_memory_is_not_read(monkeypatch, mode, word):
    monkeypatch.setattr(switches, "lockdown", lambda: mode)
    because = programs.VerifierRefusal(KernelRefused("load a program", 22), f"{word}\n", "").because
    assert bool(because) == (mode == "confidentiality" and "read" in word)
    assert not because or "programs may not read the kernel's memory: the kernel is locked down" in because


def places(handler):
    function = intermediate(handler, Setting(kernel=frozenset({"pid"}), marked=True))
    found = places_in(function, AT_TRACEPOINT)
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    return [each.source.strip() for _, each in found]


def test_instructions_of_a_simple_handler_have_their_lines():
    hits, other = Count("hits"), Count("other")

    def simple(ctx, a: u64):
        if a > 5:
            hits.add()
        other.add()

    found = places(simple)
    assert list(dict.fromkeys(found))[-3:] == ["if a > 5:", "hits.add()", "other.add()"]


def test_instructions_of_other_handlers_have_theirs():
    powers = Quantize("powers")

    def compiled(ctx, a: u64, b: u64):
        total = a
        for each in range(10):
            total += each * b & 7
        powers.add(total)

    assert {"total += each * b & 7", "powers.add(total)"} <= set(places(compiled))


def broken(handler, passed):
    """Return a program in which the first counting is a call of a function that the kernel does not have."""
    found = kernel_program(handler, passed)
    at = next(at for at in range(0, len(found.code), 8) if found.code[at] == ATOMIC)
    return found._replace(code=found.code[:at] + instruction(CALL, number=999_999) + found.code[at + 8 :])


@pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
def test_what_the_kernel_says_stands_below_the_place(monkeypatch):
    monkeypatch.setattr(handlers, "kernel_program", broken)
    hits = Count("hits")
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.HandlerError) as caught:

            @session.entry("rawtracepoint:sys_enter")
            def counting(ctx, a: u64, b: u64):
                if b > 5:
                    hits.add()

        error = caught.value
        assert error.source.strip() == "hits.add()"
        first, source, caret, *words = str(error).splitlines()
        assert first == f"{__file__}:{error.line}:21: the kernel's verifier does not accept this"
        assert caret.index("^") == source.index("hits.add()")
        assert any("999999" in each for each in words)
        assert not session.probes
