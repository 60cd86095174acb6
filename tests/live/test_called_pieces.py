"""Ends that are not the function's: of pieces that are called, by itself or by others, and jumps in disguise."""

import subprocess

import pytest

from anyprobe.core.refusal import Reason
from support.results import run_as_unprobed

CALLS = 500
MAIN = r"""
#include <stdio.h>
long probed(long), other(long);
__asm__(".text\n.p2align 4\n" CODE);
int main(void) {
    long sum = 0;
    for (long i = 0; i < 500; i++) sum += probed(i) ^ other(i);
    printf("%ld\n", sum);
    return 0;
}
"""
BEGIN, END = ".globl probed\n.type probed, @function\nprobed: endbr64\n", ".size probed, .-probed\n"
OTHER = ".globl other\n.type other, @function\nother: {}\n ret\n.size other, .-other\n"
SUBROUTINE = " mov %rdi, %rax\n call 1f\n call 1f\n ret\n1: add $3, %rax\n ret\n"
WITHIN = {
    "behind its end": (BEGIN + SUBROUTINE + END, "lea 1(%rdi), %rax"),
    "from another function": (
        BEGIN + " lea 2(%rdi), %rax\n ret\nupwards: lea 3(%rdi), %rax\n ret\n" + END,
        "sub $8, %rsp\n call upwards\n add $8, %rsp",
    ),
    "in front of its loop": (
        BEGIN
        + " xor %eax, %eax\n jmp 2f\n1: add %rdi, %rax\n ret\n2: mov $4, %ecx\n3: call 1b\n loop 3b\n ret\n"
        + END,
        "lea 1(%rdi), %rax",
    ),
    "in a part elsewhere": (
        BEGIN
        + " test $1, %dil\n jne probed.cold\n1: mov %rdi, %rax\n ret\n2: add $1, %rdi\n ret\n"
        + END
        + ".type probed.cold, @function\nprobed.cold: call 2b\n jmp 1b\n.size probed.cold, .-probed.cold\n",
        "lea 1(%rdi), %rax",
    ),
    "only for its address": (
        BEGIN + " call 1f\n1: pop %rax\n lea (%rdi, %rdi), %rax\n ret\n" + END,
        "lea 1(%rdi), %rax",
    ),
}
"""A function whose ends are its own though it is called in the middle, and what the other one does."""
SHARED = {
    "to do it twice": (BEGIN + " mov %rdi, %rax\n call 1f\n1: add $3, %rax\n ret\n" + END, "lea 1(%rdi), %rax"),
    "by a jump through a thunk": (
        BEGIN
        + " lea 1f(%rip), %rax\n jmp thunk\n1: lea 3(%rdi), %rax\n ret\n"
        + END
        + "thunk: call 2f\n3: pause\n jmp 3b\n2: mov %rax, (%rsp)\n ret\n",
        "lea 1(%rdi), %rax",
    ),
    "by a thunk of its own": (
        BEGIN
        + " lea 1f(%rip), %rax\n call 2f\n3: pause\n jmp 3b\n2: mov %rax, (%rsp)\n ret\n1: lea 3(%rdi), %rax\n ret\n"
        + END,
        "lea 1(%rdi), %rax",
    ),
    "by a return to what it has pushed": (
        BEGIN + " lea 1f(%rip), %rax\n push %rax\n ret\n nop\n nop\n1: lea 3(%rdi), %rax\n ret\n" + END,
        "lea 1(%rdi), %rax",
    ),
    "with a jump that nobody can follow": (
        BEGIN
        + " mov %rdi, %rax\n call 1f\n lea 2f(%rip), %rcx\n xor $2, %rcx\n xor $2, %rcx\n jmp *%rcx\n"
        + "1: add $3, %rax\n ret\n2: add $1, %rax\n ret\n"
        + END,
        "lea 1(%rdi), %rax",
    ),
}


@pytest.fixture
def build(tmp_path):
    def build(code, of_other):
        text = "".join(f'"{line}\\n"' for line in (code + OTHER.format(of_other)).replace("\n ", "\n").splitlines())
        path = tmp_path / "program"
        command = ["gcc", "-O2", "-x", "c", "-", "-o", str(path), f"-DCODE={text}"]
        subprocess.run(command, input=MAIN, text=True, check=True)
        return str(path)

    return build


@pytest.mark.parametrize("name", WITHIN)
def test_the_returns_of_a_piece_that_is_called_are_not_the_functions(build, name):
    path = build(*WITHIN[name])
    snapshot, refused = run_as_unprobed(path, lambda session: session.count("a.out:probed", "a.out:probed%return"))
    assert not refused
    assert sum(site.hits for site in snapshot.sites if site.kind == "entry") == CALLS
    assert sum(site.hits for site in snapshot.sites if site.kind != "entry") == CALLS


@pytest.mark.parametrize("name", WITHIN)
def test_such_functions_are_timed(build, name):
    snapshot, refused = run_as_unprobed(build(*WITHIN[name]), lambda session: session.time("a.out:probed"))
    assert not refused
    assert [(each.count, each.unmatched, each.in_flight) for each in snapshot.functions] == [(CALLS, 0, 0)]


@pytest.mark.parametrize("name", SHARED)
def test_returns_are_refused_where_ends_are_not_the_functions_alone(build, name):
    path = build(*SHARED[name])
    snapshot, refused = run_as_unprobed(path, lambda session: session.count("a.out:probed", "a.out:probed%return"))
    assert [refusal.reason for _, refusal in refused] == [Reason.CONTROL_FLOW_UNKNOWN]
    assert [(site.kind, site.hits) for site in snapshot.sites] == [("entry", CALLS)]


def test_who_is_called_in_the_middle_by_others_has_more_returns_than_entries(build):
    middle = BEGIN + " mov %rdi, %rax\nmiddle: add $3, %rax\n mov %rax, %rcx\n mov %rcx, %rax\n ret\n" + END
    path = build(middle, "mov %rdi, %rax\n sub $8, %rsp\n call middle\n add $8, %rsp")
    snapshot, refused = run_as_unprobed(path, lambda session: session.count("a.out:probed", "a.out:probed%return"))
    assert not refused
    assert {site.kind: site.hits for site in snapshot.sites} == {"entry": CALLS, "return": 2 * CALLS}
    snapshot, _ = run_as_unprobed(path, lambda session: session.time("a.out:probed"))
    assert [(each.count, each.unmatched) for each in snapshot.functions] == [(CALLS, CALLS)]
