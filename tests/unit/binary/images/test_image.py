"""Functions, entries and facts of objects that a real compiler made."""

import numpy as np
import pytest

from anyprobe.binary.images.image import Image
from anyprobe.binary.objects import symbol_names
from anyprobe.binary.objects.symbols import SymbolTable
from anyprobe.core.refusal import Reason

ALIASES = r"""
#include <stdlib.h>
int __attribute__((noinline)) worker(int x) { return x * 3; }
extern int __worker(int) __attribute__((alias("worker")));
extern int worker_with_a_long_name(int) __attribute__((alias("worker")));
static int __attribute__((noinline, used)) hidden_part(int x) { return x - 7; }
int __attribute__((noinline)) caller(int x) { if (x == 77) abort(); return worker(x) + hidden_part(x); }
int main(int argc, char **argv) { return caller(argc); }
"""

ASSEMBLY = r"""
.text
.globl unsized
.type unsized, @function
unsized: nop; nop; nop; ret
.globl untyped
untyped: mov $1, %eax
inner_label: ret
.globl outer
.type outer, @function
outer: nop
.globl alternate
.type alternate, @function
alternate: nop
ret
.size alternate, 2
.size outer, . - outer
.globl last
.type last, @function
last: ret
.section .note.GNU-stack,"",@progbits
"""


def lookup(image, name):
    (function,) = image.functions.lookup(name)
    return function


@pytest.mark.parametrize("flags", [("-pie", "-fPIE"), ("-no-pie", "-fno-pie"), ("-static",)])
def test_one_function_with_several_names(build, flags):
    image = Image.open(str(build(ALIASES, "-O1", *flags)))
    assert lookup(image, "worker").names[:3] == ("worker", "__worker", "worker_with_a_long_name")[:1] + tuple(
        sorted(("__worker", "worker_with_a_long_name"), key=lambda name: len(name) - len(name.lstrip("_")))
    )
    assert lookup(image, "__worker") == lookup(image, "worker")
    assert image.is_pie == ("-pie" in flags)


def test_every_symbol_is_where_readelf_says_and_as_long(build):
    path = build(ALIASES, "-O1")
    image = Image.open(str(path))
    seen = 0
    for line in build.run("readelf", "-sW", path).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[3] == "FUNC" and fields[6] != "UND":
            function = image.functions.at(int(fields[1], 16))
            assert function is not None, line
            assert fields[7].partition("@")[0] in function.names
            assert int(fields[2]) in (0, function.size)
            seen += 1
    assert seen > 10


def test_assembly_without_sizes_and_types(build):
    image = Image.open(str(build(ASSEMBLY, "-shared", "-nostdlib", language="assembler")))
    assert lookup(image, "unsized").size == 4, "up to the next function"
    assert lookup(image, "untyped").size == 6, "an untyped global symbol is a function, a local one a label in it"
    assert image.functions.lookup("inner_label") == []
    assert lookup(image, "untyped").start + 5 in image.text().entries, "every label may be entered"
    outer, alternate = lookup(image, "outer"), lookup(image, "alternate")
    assert outer.end == alternate.start, "nested symbols: no end beyond the next start"
    assert lookup(image, "last").size == 1


def test_bounds_of_stripped_code_come_from_the_unwind_table(build):
    path = build(ALIASES, "-O1")
    whole = Image.open(str(path))
    stripped = build.copy(path, "bare")
    build.run("strip", stripped)
    image = Image.open(str(stripped), debug_roots=())
    for name in ("worker", "hidden_part", "caller", "main"):
        there = lookup(whole, name)
        assert lookup(image, f"bare+{there.start:#x}").size == there.size
        assert image.functions.containing(there.start + 1).name == f"bare+{there.start:#x}"
    assert image.functions.match("bare+0x*")
    assert image.functions.lookup("other+0x1000") == []


def test_functions_that_tables_list_are_known_without_a_look_at_the_code(build, monkeypatch):
    image = Image.open(str(build(ALIASES, "-O1")), debug_roots=())
    monkeypatch.setattr(Image, "_find_bounds", lambda self: pytest.fail("looked for functions"))
    listed = image.known_functions.all()
    around = [(each, image.function_around(each.end - 1)) for each in listed]
    monkeypatch.undo()
    assert {"worker", "hidden_part", "caller", "main"} <= {each.name for each in listed}
    assert all(each == found == image.functions.containing(each.start) for each, found in around)


def test_functions_that_no_table_lists_are_looked_for_where_an_address_lies_in_one(build):
    path = build(ALIASES, "-O1", "-fno-asynchronous-unwind-tables")
    place = lookup(Image.open(str(path)), "caller").start
    stripped = build.copy(path, "bare")
    build.run("strip", stripped)
    image = Image.open(str(stripped), debug_roots=())
    assert image.function_around(place + 1) == image.functions.containing(place + 1)
    assert image.function_around(place + 1).start == place


def test_section_headers_are_not_needed(build, sectionless):
    path = build(ALIASES, "-O1", "-rdynamic")
    image = Image.from_bytes("bare", sectionless(path))
    assert lookup(image, "worker").size == lookup(Image.open(str(path)), "worker").size
    assert len(image.text().entries) > 5


def test_plt_stubs_are_not_functions(build):
    image = Image.open(str(build(ALIASES, "-O1")))
    stubs = [each for each in image.elf.sections if each.name.startswith(".plt")]
    assert stubs
    for stub in stubs:
        assert not [each for each in image.functions.all() if stub.address <= each.start < stub.address + stub.size]


@pytest.mark.parametrize("options", [("-no-pie",), ("-pie", "-fPIE"), ("-no-pie", "-Wl,-z,now"), ("-no-pie", "-s")])
def test_stubs_have_the_names_of_what_they_lead_to(build, options):
    """A program that exports nothing has a hash table that knows of no import."""
    image = Image.open(str(build(ALIASES, "-O1", *options)))
    (stub,) = [each for each in image.stubs if each.name == "abort@plt"]
    assert image.functions.containing(stub.start) is None
    assert image.read(stub.end - 6, 2) == b"\xff\x25"
    assert stub.start in image.text().noreturn


def test_noreturn_functions_and_their_stubs(build):
    image = Image.open(str(build(ALIASES, "-O1", "-fcf-protection")))
    listing = build.run("objdump", "-d", "--no-show-raw-insn", image.path)
    call = next(line for line in listing.splitlines() if "call" in line and "<abort@plt>" in line)
    assert int(call.split()[2], 16) in image.text().noreturn
    assert (
        lookup(Image.open(str(build(ALIASES, "-O1", "-static"))), "abort").start
        in Image.open(str(build(ALIASES, "-O1", "-static"))).text().noreturn
    )


COLD = r"""
#include <stdlib.h>
__attribute__((cold, noinline)) int fails(int x) { return x / 3; }
__attribute__((noinline)) int works(int x) {
    if (__builtin_expect(x == 1000, 0)) { fails(x); exit(fails(x + 1)); }
    return x;
}
int main(int argc, char **argv) { return works(argc); }
"""


def test_cold_parts_are_functions_of_their_own(build):
    image = Image.open(str(build(COLD, "-O2", "-freorder-blocks-and-partition")))
    cold = lookup(image, "works.cold")
    assert lookup(image, "works") != cold
    assert cold not in image.functions.lookup("works")


VERSIONS = r"""
int old_answer(void) { return 1; }
int new_answer(void) { return 2; }
__asm__(".symver old_answer, answer@V_1");
__asm__(".symver new_answer, answer@@V_2");
"""


FRAMED = """
int user(int *);
__attribute__((cold, noinline)) int fails(int x) { return user(&x); }
__attribute__((noinline)) int works(int x, int y) {
    int kept[64] = {x, y};
    user(kept);
    if (__builtin_expect(kept[3] == 77, 0)) { fails(kept[1]); user(kept + 1); fails(kept[2]); return user(kept + 2); }
    return kept[5];
}
"""


def test_parts_without_names_are_told_by_the_frame_they_are_entered_with(build):
    path = build(FRAMED, "-shared", "-fPIC", "-O2", "-freorder-blocks-and-partition")
    (cold,) = Image.open(path).functions.lookup("works.cold")
    assert not Image.open(path).unnamed_parts
    stripped = build.copy(path, "stripped.so")
    build.run("strip", stripped)
    again = Image.open(stripped)
    assert again.unnamed_parts == {cold.start}
    assert Image.open(stripped).unnamed_parts == {cold.start}, "out of the cache"
    assert cold.start in [function.start for function in again.functions.all()]


def test_versioned_symbols(build, tmp_path):
    script = tmp_path / "versions.map"
    script.write_text("V_1 { global: answer; local: *; }; V_2 { global: answer; } V_1;")
    path = build(VERSIONS, "-shared", "-fPIC", f"-Wl,--version-script={script}")
    stripped = build.copy(path, "libanswer.so.1")
    build.run("strip", stripped)
    for image in (Image.open(str(path)), Image.open(str(stripped), debug_roots=())):
        old, new = lookup(image, "answer@V_1"), lookup(image, "answer@@V_2")
        assert old != new
        assert lookup(image, "answer") == new == lookup(image, "answer@V_2"), "the default one without a version"
        assert old.versions == ("answer@V_1",)
        assert new.versions == ("answer@@V_2",)
        assert image.functions.lookup("answer@V_3") == []


IFUNC = r"""
static int fast(void) { return 1; }
static void *choose(void) { return fast; }
int pick(void) __attribute__((ifunc("choose")));
int plain(void) { return pick(); }
"""


def test_ifunc_symbols_are_flagged(build):
    image = Image.open(str(build(IFUNC, "-shared", "-fPIC")))
    assert lookup(image, "pick").is_ifunc
    assert lookup(image, "pick").resolver_names == ("choose",)
    assert not lookup(image, "plain").is_ifunc
    assert lookup(image, "plain").resolver_names == ()
    assert lookup(image, "pick").start in image.text().entries, "the resolver is entered by the loader"


EXCEPTIONS = r"""
#include <stdexcept>
#include <string>
struct Guard { ~Guard(); };
int counter;
Guard::~Guard() { counter++; }
__attribute__((noinline)) int thrower(int x) { if (x > 2) throw std::runtime_error("x" + std::to_string(x)); return x; }
int catcher(int x) {
    Guard guard;
    try { return thrower(x); } catch (const std::runtime_error &e) { return -1; } catch (...) { return -2; }
}
int main(int argc, char **argv) { return catcher(argc); }
"""


def test_landing_pads_are_entries(build):
    path = build(EXCEPTIONS, "-O2", "-fcf-protection=full", language="c++")
    image = Image.open(str(path))
    from anyprobe.binary.unwind.landing_pads import landing_pads

    pads = landing_pads(image.elf, image.unwind)
    assert len(pads) >= 3
    for pad in pads.tolist():
        assert image.read(pad, 4) == b"\xf3\x0f\x1e\xfa", "gcc puts an endbr64 at each"
        assert image.functions.at(pad) is None
    assert np.isin(pads, image.text().entries).all()


LABELS = r"""
int run(const unsigned char *code) {
    static const void *const table[] = {&&add, &&twice, &&stop};
    int x = 0;
    goto *table[*code++];
add: x++; goto *table[*code++];
twice: x *= 2; goto *table[*code++];
stop: return x;
}
int (*const pointer)(const unsigned char *) = run;
int main(int argc, char **argv) { return pointer((const unsigned char *)argv[0]); }
"""


@pytest.mark.parametrize(
    "flags", [("-pie", "-fPIE"), ("-no-pie", "-fno-pie"), ("-pie", "-fPIE", "-Wl,-z,pack-relative-relocs")]
)
def test_addresses_of_labels_are_entries(build, flags):
    image = Image.open(str(build(LABELS, "-O1", *flags)))
    run = lookup(image, "run")
    entries = image.text().entries
    inside = entries[(entries > run.start) & (entries < run.end)]
    assert len(inside) == 3


def test_the_program_entry_and_initialisers_are_entries(build):
    source = "__attribute__((constructor)) static void early(void) {} int main(void) { return 0; }"
    for flags in ((), ("-no-pie",), ("-static",), ("-static-pie",)):
        path = build.copy(build(source, *flags), "stripped" + "".join(flags))
        early = lookup(Image.open(str(path)), "early").start
        build.run("strip", path)
        image = Image.open(str(path), debug_roots=())
        assert image.entry in image.text().entries
        assert early in image.text().entries


def test_signal_return_trampolines_are_forbidden(build):
    image = Image.open(str(build(ALIASES, "-static")))
    (area,) = [area for area, reason in image.text().forbidden if reason == Reason.SIGNAL_RETURN]
    # mov rax, 15; syscall: 48 c7 c0 0f 00 00 00 0f 05
    assert image.read(area.end - 9, 9).hex() == "48c7c00f0000000f05"


def test_musl_cancellation_range_is_forbidden(build):
    source = r"""
#include <pthread.h>
#include <unistd.h>
int main(void) { char c; pthread_cancel(pthread_self()); return read(0, &c, 1); }
"""
    path = build(source, "-static", compiler="musl-gcc")
    image = Image.open(str(path))
    stripped = build.copy(path, "stripped")
    build.run("strip", stripped)
    begin, cancel = lookup_label(build, path, "__cp_begin"), lookup_label(build, path, "__cp_cancel")
    for each in (image, Image.open(str(stripped), debug_roots=())):
        (area,) = [area for area, reason in each.text().forbidden if reason == Reason.CANCELLATION_RANGE]
        assert area.start <= begin
        assert area.end > cancel


# What glibc has since 2.41, byte for byte.
CANCELLATION = r"""
.text
.globl __syscall_cancel_arch
.type __syscall_cancel_arch, @function
__syscall_cancel_arch:
    endbr64
start: mov (%rdi), %eax
    testb $0x8, (%rdi)
    jne cancelled
    mov %rdi, %r11
    mov %rsi, %rax
    mov %rdx, %rdi
    mov %rcx, %rsi
    mov %r8, %rdx
    mov %r9, %r10
    mov 8(%rsp), %r8
    mov 16(%rsp), %r9
    mov %r11, 8(%rsp)
    syscall
end: ret
cancelled: jmp cancelled
.size __syscall_cancel_arch, . - __syscall_cancel_arch
.section .note.GNU-stack,"",@progbits
"""


def test_glibc_cancellation_range_is_forbidden(build):
    path = build(CANCELLATION, "-shared", "-nostdlib", language="assembler")
    start, end = lookup_label(build, path, "start"), lookup_label(build, path, "end")
    ((area, reason),) = Image.open(str(path)).text().forbidden
    assert reason == Reason.CANCELLATION_RANGE
    assert area.start == start
    assert area.end > end, "the return behind the system call is compared with too"


def lookup_label(build, path, name):
    for line in build.run("readelf", "-sW", path).splitlines():
        if line.split()[-1:] == [name]:
            return int(line.split()[1], 16)
    raise AssertionError(name)


RSEQ = r"""
.text
.globl counted
.type counted, @function
counted:
    nop
start: mov (%rdi), %rax
    inc %rax
    mov %rax, (%rdi)
commit: ret
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053
abort: jmp start
.size counted, . - counted
.section __rseq_cs, "aw"
.balign 32
    .long 0, 0
    .quad start, commit - start, abort
.section .note.GNU-stack,"",@progbits
"""


@pytest.mark.parametrize("flags", [("-shared",), ("-static", "-Wl,-e,counted")])
@pytest.mark.parametrize("stripped", [False, True])
def test_restartable_sequences_are_forbidden_and_their_aborts_entries(build, sectionless, flags, stripped):
    path = build(RSEQ, "-nostdlib", *flags, language="assembler")
    base = lookup(Image.open(str(path)), "counted").start
    image = Image.from_bytes("bare", sectionless(path)) if stripped else Image.open(str(path))
    forbidden = [area for area, reason in image.text().forbidden if reason == Reason.RSEQ]
    assert any(base + 1 in area and base + 9 in area and base + 10 not in area for area in forbidden)
    abort = base + 18
    assert any(abort in area and abort - 4 in area for area in forbidden)
    assert {base + 1, base + 10, abort} <= set(image.text().entries.tolist())


def test_machine_libraries_are_consistent():
    import glob

    for path in sorted(glob.glob("/usr/lib/x86_64-linux-gnu/lib[cmpstz]*.so.[0-9]"))[:40]:
        image = Image.open(path)
        text, functions = image.text(), image.functions
        assert (np.diff(functions.starts) > 0).all(), path
        assert (functions.ends[:-1] <= functions.starts[1:]).all(), path
        assert (functions.ends > functions.starts).all(), path
        assert np.isin(functions.starts, text.entries).all(), path


def test_thousands_of_names_are_found_as_a_few_are(monkeypatch):
    """From some number on by an index of all names, and not by a search of all strings for each."""
    image = Image.open("/lib/x86_64-linux-gnu/libc.so.6")
    names = sorted({name for function in image.functions.all() for name in function.names})
    names += ["memcpy@GLIBC_2.2.5", "memcpy@@GLIBC_2.14", "no_such_function"]
    monkeypatch.setattr(symbol_names, "_WORTH_AN_INDEX", len(names))
    searched = {name: image.functions.lookup(name) for name in names}
    monkeypatch.setattr(SymbolTable, "offsets_of", lambda table, name: pytest.fail("a search"))
    assert {name: image.functions.lookup(name) for name in names} == searched
    assert [len(searched[name]) for name in names[-3:]] == [1, 1, 0]
