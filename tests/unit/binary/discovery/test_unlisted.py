"""Functions without a symbol and without an unwind entry are found by who calls them and who has their addresses."""

import time

import pytest

from anyprobe.binary.flow import exits
from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.core.refusal import Reason
from support.filter_programs import c_source
from support.module_under_test import HEADER, function

BARE = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions", "-w")
MORE = r"""
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static jmp_buf place;
static int by_string(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static int backwards(const void *a, const void *b) { return -by_string(a, b); }
static int (*const orders[])(const void *, const void *) = {by_string, backwards};
__attribute__((noreturn, noinline)) static void give_up(int code) { fprintf(stderr, "%d\n", code); exit(code); }
__attribute__((noinline)) static int checked(int x) { if (x < 0) give_up(3); return x + 1; }
__attribute__((noinline)) static long loops(char **list, int n) {
  long sum = 0; puts("begin"); for (int i = 0; i < n; i++) sum += strlen(list[i]); puts("end"); return sum; }
__attribute__((noinline)) static int tail(char **list, int n) { return list[0] ? checked(n * 3) : -1; }
__attribute__((noinline)) static double many(int k, double a, double b) {
  switch (k) { case 0: return a + b; case 1: return a - b; case 2: return a * b; case 3: return a / b;
    case 4: printf("%f\n", a); return 1; case 5: return b; case 6: give_up(k); case 7: return a * a; default: return 0;
  } }
static void at_end(void) { puts("bye"); }
int more(int argc, char **argv) {
  atexit(at_end);
  qsort(argv, argc, sizeof *argv, orders[argc & 1]);
  if (setjmp(place)) return 1;
  if (argc > 7) longjmp(place, 1);
  return loops(argv, argc) + tail(argv, argc) + many(argc, 1.5, 2.5) > 5;
}
"""
KINDS = [
    ("gcc", "-O0", "-pie", "-fPIE"),
    ("gcc", "-O1", "-no-pie", "-fno-pic"),
    ("gcc", "-O2", "-pie", "-fPIE"),
    ("gcc", "-O2", "-no-pie", "-fno-pic"),
    ("gcc", "-O2", "-static"),
    ("gcc", "-O3", "-pie", "-fPIE"),
    ("gcc", "-Os", "-no-pie", "-fno-pic"),
    ("gcc", "-Os", "-static"),
    ("clang", "-O0", "-no-pie", "-fno-pic"),
    ("clang", "-O2", "-pie", "-fPIE"),
    ("clang", "-O2", "-no-pie", "-fno-pic"),
]
OPEN = {"deregister_tm_clones", "register_tm_clones", "__do_global_dtors_aux", "frame_dummy"}
"""They jump where a pointer says, if there is a library for transactional memory, or stand behind one that does."""
BEHIND_OPEN = {"by_string", "backwards", "at_end"}
"""Their addresses are stored or handed on, but nobody calls them, and they stand behind those."""
UNBALANCED = {"checked"}
"""Where it is not seen that what they call never comes back, they look like pieces of two functions."""
LIBRARY = {
    "_init",
    "_fini",
    "_start",
    "_dl_relocate_static_pie",
    "register_tm_clones",
    "__restore_rt",
    "_dl_tlsdesc_undefweak",
}
"""Nobody calls them, and no data points to them; or only one half of them is code that a table of Linux's tells of."""


def source():
    return (
        c_source()
        .decode()
        .replace("int main(void) {", "int more(int, char **);\nint main(int c, char **v) {\nmore(c, v);")
        + MORE
    )


def stripped(build, path):
    """Return the image of a copy without symbols."""
    copy = build.copy(path, "stripped")
    build.run("strip", "--strip-all", copy)
    return Image.open(str(copy))


@pytest.mark.sliced(3)
@pytest.mark.parametrize("kind", KINDS, ids=" ".join)
def test_they_are_where_the_symbols_were(build, kind):
    compiler, *options = kind
    path = build(source(), *BARE, *options, compiler=compiler)
    symbols = {each.start: each for each in Image.open(str(path)).functions.all()}
    image = stripped(build, path)
    unlisted = set(image.functions.bounds.unlisted.tolist())
    assert len(unlisted) > 60
    assert {hex(each) for each in unlisted if each not in symbols} == set()
    missed = {each.name for start, each in symbols.items() if image.functions.at(start) is None}
    assert {name for name in missed if name not in LIBRARY and ".cold" not in name} == set()
    longer = {symbols[each].name for each in unlisted if image.functions.at(each).end > symbols[each].end + 15}
    assert longer == set()
    code_map, whole = CodeMap(image.text()), CodeMap(Image.open(str(path)).text())
    refused = set()
    for each in sorted(unlisted):
        code, own, name = code_map.function_at(each), whole.function_at(each), symbols[each].name
        assert isinstance(code, FunctionCode)
        if code.exits.complete is not None:
            refused.add(name)
            continue
        assert [(leaving.address, leaving.kind) for leaving in code.exits.found] == [
            (leaving.address, leaving.kind) for leaving in own.exits.found
        ], name
    if (compiler, options[0]) == ("clang", "-O0"):  # what it jumps to is spilled, and nothing else leads to its labels
        refused = {name for name in refused if name != "many" and not name.startswith("work")}
    assert refused - OPEN <= BEHIND_OPEN | UNBALANCED


def assembled(build, *parts, data="", flags=("-shared",)):
    source = HEADER + "\n".join(parts) + f'\n.data\n{data}\n.section .note.GNU-stack,"",@progbits\n'
    path = build(source, "-nostdlib", *flags, language="assembler")
    return Image.open(str(path))


def starts(image):
    """Return where the unlisted functions begin and end, behind the first byte of the code."""
    first = image.code_ranges[0].start
    found = (image.functions.at(each) for each in image.functions.bounds.unlisted.tolist())
    return [(each.start - first, each.end - first) for each in found]


CALLER = function("caller", "call .Lcalled\n ret")
CALLED = ".p2align 4\n.Lcalled: push rbx\n xor ebx, ebx\n pop rbx\n ret\n.p2align 4"


def test_what_is_called_begins_where_the_call_leads_and_ends_behind_its_return(build):
    image = assembled(build, CALLER, CALLED, ".quad 0x1122334455667788")
    assert starts(image) == [(16, 21)]
    (found,) = image.functions.bounds.unlisted.tolist()
    assert image.functions.at(found).name == f"{image.name}+{found:#x}"
    assert image.functions.bounds.called.tolist() == [found]


def test_a_table_whose_address_is_taken_is_no_function(build):
    """Bytes of a table that decode to a whole function that keeps its stack in balance."""
    taker = function("taker", "lea rax, [rip + .Ltable]\n mov eax, [rax + rdi*4]\n ret")
    table = ".p2align 4\n.Ltable: .byte 0x53, 0x31, 0xdb, 0x89, 0xd8, 0x01, 0xd8, 0x89, 0xc3, 0x31, 0xc0, 0x5b, 0xc3"
    assert starts(assembled(build, taker, table)) == []


def test_code_whose_address_is_taken_is_one_if_it_refers_to_what_there_is(build):
    taker = function("taker", "lea rax, [rip + .Lhandler]\n ret")
    handler = ".p2align 4\n.Lhandler: push rbx\n call taker\n pop rbx\n ret"
    assert starts(assembled(build, taker, ".hidden taker", handler)) == [(16, 24)]


def test_a_word_that_points_into_the_middle_of_an_instruction_is_no_function(build):
    """Any number in the data of a fixed-address program may be one."""
    body = ".p2align 4\n.Lcalled: mov eax, 0xc3c3c3c3\n.Lnext: mov ecx, 0xc3909090\n ret\n.p2align 4"
    image = assembled(build, CALLER, body, data=".quad .Lcalled + 1, .Lnext + 2", flags=("-no-pie", "-static"))
    assert starts(image) == [(16, 27)]


def test_labels_of_a_table_of_addresses_are_no_functions(build):
    body = """.p2align 4
.Lcalled: cmp rdi, 2
    ja .Lthird
    jmp qword ptr [.Llabels + rdi*8]
    .p2align 4
.Lfirst: mov eax, 1
    ret
    .p2align 4
.Lsecond: mov eax, 2
    ret
    .p2align 4
.Lthird: mov eax, 3
    ret"""
    data = ".Llabels: .quad .Lfirst, .Lsecond, .Lthird"
    image = assembled(build, CALLER, body, data=data, flags=("-no-pie", "-static"))
    assert starts(image) == [(16, 70)]
    code = CodeMap(image.text()).function_at(image.functions.bounds.unlisted.tolist()[0])
    assert code.complete is None
    assert [leaving.address - code.start for leaving in code.exits.found] == [21, 37, 53]


def test_a_function_behind_a_call_that_never_returns_is_one_of_its_own(build):
    ends = function("ends", "mov eax, 60\n syscall\n hlt")
    first = ".p2align 4\n.Lcalled: push rax\n call ends\n"
    second = ".p2align 4\n.Lother: push rbx\n mov ebx, 1\n pop rbx\n ret"
    image = assembled(build, ".hidden ends", ends, CALLER, first, second, data=".quad .Lother")
    assert starts(image) == [(32, 38), (48, 56)]


def test_a_loop_behind_a_call_and_padding_belongs_to_the_function(build):
    callee = function("callee", "ret")
    body = ".p2align 4\n.Lcalled: push rbx\n mov ebx, 9\n call callee\n .p2align 4\n.Lloop: call callee\n"
    image = assembled(build, ".hidden callee", callee, CALLER, body + "dec ebx\n jne .Lloop\n pop rbx\n ret")
    assert starts(image) == [(32, 59)]


def test_what_is_only_jumped_to_from_another_function(build):
    first = ".p2align 4\n.Lcalled: test edi, edi\n jmp .Ltail\n"
    other = function("listed", "nop\n ret")
    tail = ".p2align 4\n.Ltail: push rbx\n mov ebx, 1\n pop rbx\n ret"
    image = assembled(build, CALLER, first, other, tail)
    assert starts(image) == [(16, 20), (48, 56)]
    assert len(image.functions.bounds.called) == 1


def test_a_jump_that_nobody_can_follow_makes_its_neighbours_unknown(build):
    """Its targets may lie in what looks like a function of its own, even if that is called."""
    first = ".p2align 4\n.Lcalled: push rbx\n imul rdi, rdi, 7\n add rdi, rsi\n pop rbx\n jmp rdi\n"
    second = ".p2align 4\n.Lpointed: mov eax, 1\n ret\n"
    third = ".p2align 4\n.Lalso: mov eax, 2\n ret\n"
    caller = function("caller", "call .Lcalled\n call .Lalso\n ret")
    image = assembled(build, caller, first, second, third, data=".quad .Lpointed")
    code_map = CodeMap(image.text())
    codes = [code_map.function_at(each) for each in image.functions.bounds.unlisted.tolist()]
    assert len(codes) == 3
    assert [code.complete is None for code in codes] == [False, False, False]
    assert codes[1].exits.complete.reason is Reason.CONTROL_FLOW_UNKNOWN


def test_returns_of_a_function_that_jumps_into_code_of_nobody_are_refused(build):
    """Such code may jump back, and the function would be left twice."""
    body = "test edi, edi\n je .Laway\n.Lback: mov eax, 1\n ret"
    away = ".p2align 4\n.Laway: mov edi, 1\n jmp .Lback\n"
    image = assembled(build, function("goes", body), away)
    assert starts(image) == []
    code = CodeMap(image.text()).function_at(image.functions.lookup("goes")[0].start)
    assert "code of no function" in code.exits.complete.detail


def test_a_second_look_takes_them_from_the_cache(build, monkeypatch):
    path = build(HEADER + CALLER + CALLED, "-nostdlib", "-shared", language="assembler")
    first = Image.open(str(path)).functions.bounds
    monkeypatch.setattr("anyprobe.binary.discovery.unlisted.unlisted_functions", None)
    second = Image.open(str(path)).functions.bounds
    assert second.unlisted.tolist() == first.unlisted.tolist() != []
    assert second.called.tolist() == first.called.tolist() != []


def test_small_numbers_are_no_function(build):
    """As in libcrypto: zeros decode to additions, up to the code behind, which refers to something."""
    taker = function("taker", "lea r10, [rip + .Ltable]\n vmovdqa ymm0, [r10]\n ret")
    table = ".p2align 5\n.Ltable: .long 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2\n"
    after = ".p2align 5\n.Lcalled: mov eax, [rip + number]\n ret"
    image = assembled(build, CALLER, taker, table, after, data=".hidden number\nnumber: .long 7")
    assert starts(image) == [(96, 103)]
    little = ".p2align 4\n.Ltable: .short 0x0500, 0, 0, 0x00c3, 7\n"
    assert starts(assembled(build, taker, little, function("next", "xor eax, eax\n ret"))) == []


def test_a_table_to_which_data_points_is_no_function(build):
    table = ".p2align 4\n.Ltable: .long 1, 2, 3, 4\n"
    within = CALLED + "\n.byte 7\n.Ltable: push rax\n pop rax\n ret\n"  # nothing ends in front of it
    assert starts(assembled(build, CALLER, within, data=".quad .Ltable")) == [(16, 21)]
    image = assembled(build, CALLER, CALLED, table, function("next", "xor eax, eax\n ret"), data=".quad .Ltable")
    assert starts(image) == [(16, 21)]


def test_what_looks_like_a_call_in_data_of_a_function_is_none(build):
    listed = function("listed", "ret\n .byte 0, 0, 0xe8\n .long .Ltable - (. + 4)\n")
    table = ".p2align 4\n.Ltable: .byte 1, 0, 2, 0, 3, 0, 0xc3, 0x55\n"
    assert starts(assembled(build, listed, table, function("next", "xor eax, eax\n ret"))) == []


GOTO = r"""
__attribute__((noinline)) long interp(const unsigned char *pc) {
  static void *const ops[] = {&&halt, &&inc, &&dbl, &&loop}; long acc = 0, n = 5;
  dispatch: __asm__ volatile(""); goto *ops[*pc++];
  halt: return acc; inc: acc++; goto dispatch; dbl: acc *= 2; goto dispatch;
  loop: if (--n) pc -= 3; goto dispatch; }
volatile long sink;
int main(void) { unsigned char p[] = {1, 2, 3, 0}; for (int i = 0; i < 100; i++) sink += interp(p); return 0; }
"""


@pytest.mark.parametrize("level", ["-Os", "-O1", "-O2"])
@pytest.mark.parametrize("place", [("-fPIE", "-pie"), ("-fno-pic", "-no-pie")], ids=["pie", "fixed"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_labels_whose_addresses_are_stored_do_not_make_returns_of_the_whole_lie(build, compiler, place, level):
    """Each is taken for a function; who jumps there by a stored pointer may so have stayed in his own."""
    path = build(GOTO, *BARE, level, *place, compiler=compiler)
    (interp,) = Image.open(str(path)).functions.lookup("interp")
    code = CodeMap(stripped(build, path).text()).function_at(interp.start)
    assert isinstance(code, FunctionCode)
    own = CodeMap(Image.open(str(path)).text()).function_at(interp.start)
    same = [each.address for each in code.exits.found] == [each.address for each in own.exits.found]
    assert same or code.exits.complete.reason is Reason.CONTROL_FLOW_UNKNOWN


LOOP = "test edi, edi\n jne 1f\n xor eax, eax\n ret\n1: mov edx, edi\n call leaf\n .p2align 4\n2: add eax, edx\n"


def test_a_loop_without_a_frame_behind_a_call_is_not_cut_off(build):
    leaf = function("leaf", "mov eax, 7\n ret")
    image = assembled(build, ".hidden leaf", leaf, CALLER, f".p2align 4\n.Lcalled: {LOOP} dec edx\n jne 2b\n ret")
    assert starts(image) in ([], [(32, 55)])


def test_a_subroutine_within_another_does_not_hide_where_that_jumps(build):
    outer = ".p2align 4\n.Lcalled: call .Lsub\n lea rax, [rip + .Lbase]\n shl ecx, 3\n add rax, rcx\n jmp rax\n"
    inner = ".p2align 4\n.Lsub: mov ecx, [rip + number]\n ret\n"
    base = ".p2align 4\n.Lbase: mov eax, [rip + number]\n nop\n nop\n add eax, 1\n add eax, 1\n ret"
    image = assembled(build, CALLER, outer, inner, base, data=".hidden number\nnumber: .long 1")
    codes = [CodeMap(image.text()).function_at(each) for each in image.functions.bounds.unlisted.tolist()]
    assert [code.complete is None for code in codes] == [False, False, False]


def test_without_sections_only_calls_count(build, sectionless):
    path = build(HEADER + CALLER + CALLED, "-nostdlib", "-shared", "-Wl,-z,noseparate-code", language="assembler")
    image = Image.from_bytes("sectionless", sectionless(path))
    (found,) = image.functions.bounds.unlisted.tolist()
    assert image.read(found, 1) == b"\x53"


def test_many_jumps_between_many_functions_take_no_time(build):
    pieces = [f".p2align 4\n.L{number}: push rbx\n pop rbx\n jmp .L{number + 1}\n" for number in range(400)]
    last = ".p2align 4\n.L400: push rbx\n pop rbx\n ret\n"
    caller = function("caller", "call .L0\n ret")
    path = build(HEADER + "".join([caller, last, *reversed(pieces)]), "-nostdlib", "-shared", language="assembler")
    begin = time.process_time()
    assert len(Image.open(str(path)).functions.bounds.unlisted) == 401
    assert time.process_time() - begin < 6


def test_code_is_followed_only_until_one_label_shows_that_a_function_may_begin_there(build, monkeypatch):
    """Each label of a long function would follow the rest of it once more."""
    followed = []
    balance = exits.balance

    def counted(start, *given, **named):
        followed.append(start)
        return balance(start, *given, **named)

    monkeypatch.setattr(exits, "balance", counted)
    labels = [f".Lstored{n}" for n in range(40)]
    body = "".join(f"{label}: add eax, {n}\n" for n, label in enumerate(labels))
    called = f".p2align 4\n.Lcalled: xor eax, eax\n{body} ret\n.p2align 4"
    image = assembled(build, CALLER, called, data=".quad " + ", ".join(labels))
    code_map = CodeMap(image.text())
    (code,) = [code_map.function_at(start) for start in code_map.text.unlisted]
    assert "another function may begin there" in code.exits.complete.detail
    assert 0 < len(followed) <= 2
