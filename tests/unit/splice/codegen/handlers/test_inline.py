"""Trivial handlers in the patch itself: their assembly, and that they do natively what they say, with all registers."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anyprobe.binary.liveness.certain_accesses import Access, Pointer
from anyprobe.core.code import Comparison, Input, InputKind, NativeCode, Number, Update
from anyprobe.isa import disassemble
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.handlers.guards import Guard, guard_of
from anyprobe.splice.codegen.handlers.inline import Inline, registers_read, sources_of
from anyprobe.splice.codegen.patch import Action, ActionKind, BankCode, PatchWriter
from anyprobe.splice.edits import beside_handlers
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from anyprobe.splice.regions.banks import Hook

MACHINE = Path(__file__).parents[4] / "support" / "inline_machine.py"
AT, GATE, ROUTINE, STORAGE = 0x600000, 0x610000, 0x620000, 0x630000
BANK = BankCode(0x200, GATE, 0, None, handler=ROUTINE)
LARGE = Comparison(">", Number(0, ((32, True),), signed=True), 64)
COUNTS = Update(0, 1025, 128, 0x1040)


def patch(update, sources, clobbers):
    writer = PatchWriter(AT)
    writer.action(Action(ActionKind.HANDLER, 0x80, BANK, inline=Inline(update, sources, STORAGE)), clobbers)
    return [text for _, _, text in disassemble.format(writer.finish(), AT)]


def test_where_registers_and_flags_are_dead_nothing_is_saved():
    only_if = Update(0, 1025, 128, 0x1040, only_if=(LARGE,))
    assert patch(only_if, ("rdi",), Clobbers(("r11",), flags=True)) == [
        "mov r11, fs:[0x200]",  # the thread's block
        "test [0x610000], r11",  # ours, and not a fork parent's?
        "je 0x600057",
        "cmp dword ptr [r11+0x2c], 0x0",  # has the thread a number?
        "je 0x600057",
        "inc qword ptr [r11+0x80]",  # the hit
        "movsxd r11, edi",
        "cmp r11, 0x40",
        "jle 0x600057",
        "mov r11, fs:[0x200]",
        "movsxd r11, [r11+0x2c]",
        "shl r11, 0x7",
        "add r11, [0x630000]",  # the thread's own row
        "inc qword ptr [r11+0x1040]",
        "lea rsp, [rsp-0x80]",
        "push 0x80",
        "call 0x620000",
        "lea rsp, [rsp+0x88]",
        "jmp 0x600057",
    ]


def test_what_is_live_is_saved_and_nothing_else():
    text = patch(COUNTS, (), Clobbers())
    assert text[:4] == ["lea rsp, [rsp-0x80]", "push rax", "push r11", "lahf"]
    end = text.index("sahf")
    assert text[end - 1 : end + 4] == ["add al, 0x7f", "sahf", "pop r11", "pop rax", "lea rsp, [rsp+0x80]"]
    assert sum(each.startswith("push") for each in text) == 3  # and the routine's argument
    assert [each.split()[0] for each in patch(COUNTS, (), Clobbers(("rdi",), flags=True))][:3] == ["mov", "test", "je"]


def guarded(guard, clobbers):
    writer = PatchWriter(AT)
    writer.action(Action(ActionKind.HANDLER, 0x80, BANK, inline=guard), clobbers)
    return [text for _, _, text in disassemble.format(writer.finish(), AT)]


def test_what_a_condition_compares_is_compared_where_it_is_and_the_routine_finds_all_as_it_was():
    equal = Comparison("==", Number(1), 7)
    assert guarded(Guard((equal,), ("", "rdi")), Clobbers((), flags=True)) == [
        "cmp rdi, 0x7",
        "jne 0x600012",
        "jmp 0x600012",  # the routine's call comes after the hot path
        "lea rsp, [rsp-0x80]",
        "push 0x80",
        "call 0x620000",
        "lea rsp, [rsp+0x88]",
        "jmp 0x600012",
    ]
    text = guarded(
        Guard((equal, LARGE._replace(number=Number(0, ((32, True),), signed=True))), ("stack+8", "rsi")), Clobbers()
    )
    assert text[:6] == ["lea rsp, [rsp-0x80]", "push rax", "push r11", "lahf", "seto al", "cmp rsi, 0x7"]
    assert text[7] == "mov r11, [rsp+0x98]"
    call = text.index("call 0x620000")
    assert text[call - 7 : call - 2] == ["add al, 0x7f", "sahf", "pop r11", "pop rax", "lea rsp, [rsp+0x80]"]


def test_memory_is_read_only_where_the_program_is_about_to_access_it():
    member = Comparison("==", Number(1, signed=True, path=(8, 16), read=(32, True)), 7)
    guard = Guard((member,), ("", "rdi"))
    near = {Access(Pointer("rdi"), 8, 16), Access(Pointer("rdi", (8,)), 0, 4)}
    assert guard.where({Access(Pointer("rdi"), 8, 16)}) is None
    assert guard.where({Access(Pointer("rdi"), 8, 16), Access(Pointer("rdi", (8,)), 5000, 5004)}) is None
    text = guarded(guard.where(near), Clobbers((), flags=True))
    assert text[:14] == [
        "lea rsp, [rsp-0x80]",
        "push r11",
        "push r10",
        "cmp rdi, 0x1000",  # null
        "jb 0x600071",
        "mov r11, [rdi+0x8]",  # the program reads this very word
        "cmp r11, 0x1000",
        "jb 0x600071",
        "lea r10, [r11+0x13]",  # the program reads four bytes near these: of the same page?
        "and r10, 0xfff",
        "add r10, 0xffffffffffffffed",
        "cmp r10, 0xfff",
        "ja 0x600071",
        "movsxd r11, [r11+0x10]",
    ]


def test_a_condition_on_what_no_register_has_is_left_to_the_routine():
    code = NativeCode(
        b"", (Input(InputKind.REGISTER, "rsp"),), frozenset(), 8, 1, only_if=(Comparison("==", Number(0), 7),)
    )
    assert guard_of(code) is None
    assert guard_of(code._replace(only_if=())) is None


def test_a_register_that_is_added_as_it_is_needs_no_copy():
    adds = Update(0, 1025, 128, 0x1040, 0x1048, Number(0))
    assert "add [r11+0x1048], rdi" in patch(adds, ("rdi",), Clobbers(("r11",), flags=True))
    narrow = Update(0, 1025, 128, 0x1040, 0x1048, Number(0, ((8, False),)))
    text = patch(narrow, ("stack+8",), Clobbers(("r11", "r10"), flags=True))
    assert {"mov r10, [rsp+0x8]", "movzx r10d, r10b", "add [r11+0x1048], r10"} <= set(text)
    text = patch(narrow, ("stack+8",), Clobbers(("r11",), flags=True))
    assert "mov r10, [rsp+0x90]" in text  # below the red zone and one saved register


def test_an_extreme_is_exchanged_only_if_it_still_is_what_was_read():
    least = Update(0, 1025, 128, 0x1040, 0x1048, Number(0), "min", signed=True)
    text = patch(least, ("rdi",), Clobbers())
    assert text[1:7] == ["push rax", "push r11", "push r10", "push rcx", "lahf", "seto al"]
    begin = text.index("mov r10, rdi")
    assert text[begin : begin + 11] == [
        "mov r10, rdi",
        "btc r10, 0x3f",
        "not r10",
        "mov rcx, rax",  # the flags
        "mov rax, [r11+0x1048]",
        "cmp r10, rax",
        "jbe 0x600071",
        "cmpxchg [r11+0x1048], r10",
        "jne 0x600062",  # a signal handler was here: compare again
        "mov rax, rcx",
        "add al, 0x7f",
    ]
    most = Update(0, 1025, 128, 0x1040, 0x1048, Number(0), "max")
    text = patch(most, ("rdi",), Clobbers(("r11", "r10", "rax"), flags=True))
    assert {"mov rax, [r11+0x1048]", "cmpxchg [r11+0x1048], r10"} <= set(text)
    assert not [each for each in text if each.startswith(("btc", "not", "lahf", "push r"))]


def test_without_registers_enough_the_routine_raises_it():
    everything = ("rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10")
    most = Update(0, 1025, 128, 0x1040, 0x1048, Number(0), "max")
    assert [each.split()[0] for each in patch(most, everything, Clobbers())] == ["lea", "push", "call", "lea"]


def test_a_result_is_looked_at_by_the_routine_where_flags_live():
    returned = Update(0, 1025, 128, 0x1040, only_if=(LARGE,))
    assert [each.split()[0] for each in patch(returned, ("rax",), Clobbers())] == ["lea", "push", "call", "lea"]
    assert "movsxd r11, eax" in patch(returned, ("rax",), Clobbers(("r11",), flags=True))


def code(*inputs, update=COUNTS):
    return NativeCode(b"\xc3", inputs, frozenset(), 8, 1, update=update)


STORED = Input(InputKind.STORAGE), Input(InputKind.THREAD)


def test_whose_words_are_at_hand():
    third = Input(InputKind.PARAMETER, "i32", 2, place="rdx")
    assert sources_of(code(third, *STORED)) == ("rdx", "", "")
    assert registers_read(code(third, Input(InputKind.CONTEXT, "retval"), *STORED)) == {"rdx", "rax"}
    assert registers_read(code(Input(InputKind.PARAMETER, "i32", 6, place="stack+8"), *STORED)) == frozenset()
    assert sources_of(code(Input(InputKind.REGISTER, "r12"), *STORED)) == ("r12", "", "")


@pytest.mark.parametrize(
    "other",
    [
        Input(InputKind.PARAMETER, "f64", 0, place="xmm0"), Input(InputKind.REGISTER, "rsp"),
        Input(InputKind.REGISTER, "flags"), Input(InputKind.REGISTER, "rdi", written=True),
        Input(InputKind.CONTEXT, "now"), Input(InputKind.INSTANCE), Input(InputKind.MISSES),
    ],
)  # fmt: skip
def test_who_has_to_be_called(other):
    assert sources_of(code(other, *STORED)) is None
    assert sources_of(code(*STORED, update=None)) is None


def test_every_form_does_what_it_says_and_preserves_what_lives():
    done = subprocess.run(
        [sys.executable, MACHINE, "3000"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, timeout=180
    )
    assert json.loads(done.stdout) == {"broken": [], "rounds": 3000}


def edited(*codes):
    wants = [
        Want(0x1000, WantKind.ENTRY, tag=Hook(ActionKind.HANDLER, handler=HandlerFacts(each, (0,)))) for each in codes
    ]
    return SimpleNamespace(wants=wants[:1], state=SimpleNamespace(wants=wants))


def test_beside_handlers_that_see_everything_nothing_is_overwritten():
    dead = Clobbers(("r11", "rdi", "rax"), flags=True)
    first = code(Input(InputKind.PARAMETER, "i32", 0, place="rdi"), *STORED)
    returned = code(Input(InputKind.CONTEXT, "retval"), *STORED)
    sees_more = code(Input(InputKind.REGISTER, "r11"), *STORED, update=None)
    assert beside_handlers(edited(first), dead) == Clobbers(("r11", "rax"), flags=True)
    assert beside_handlers(edited(first, returned), dead) == Clobbers(("r11",), flags=True)
    assert beside_handlers(edited(first, sees_more), dead) == Clobbers()
    assert beside_handlers(edited(), dead) == Clobbers()  # a handler of another function looks there
