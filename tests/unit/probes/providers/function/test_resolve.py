"""Specs against processes made of compiled objects."""

import collections
import shutil
import subprocess

import pytest

from anyprobe.binary.images.image import Image
from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.function.resolve import resolve, resolve_all
from anyprobe.probes.specs.spec import parse

LIBRARY = r"""
int apple(int x) { return x + 1; }
int apricot(int x) { return x + 2; }
int banana(int x) { return x * 1234567 + (x >> 3); }
extern int alias_of_apple(int) __attribute__((alias("apple")));
"""
PROGRAM = "int apple(int x) { return x - 1; } int main(int argc, char **argv) { return apple(argc); }"
TWINS = r"""
namespace { __attribute__((noinline, used)) int helper(int x) { return x + 5; } }
namespace ns {
struct C {
    __attribute__((noinline)) int get(int x) { return x; }
    __attribute__((noinline)) int get(char c) { return c; }
};
template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
__attribute__((noinline)) int f(int x) { return x; }
__attribute__((noinline)) int f(char const *x) { return *x; }
__attribute__((noinline)) int operator+(C const &, C const &) { return 3; }
}
int main(int argc, char **argv) {
    ns::C c;
    return c.get(argc) + c.get('x') + ns::twice(argc) + ns::twice(2.5) + ns::f(argc) + ns::f(argv[0]) + (c + c) +
           helper(2);
}
"""


def resolved(text, objects, **more):
    return resolve(parse(text), objects, **more)


@pytest.fixture
def fruit(process):
    process.load(PROGRAM, "market", "-O1", bias=0x555555554000)
    process.load(LIBRARY, "libfruit.so.3.1", "-shared", "-fPIC", "-O1")
    return process.objects()


def names(sites):
    return sorted((site.object.name, site.function.name) for site in sites)


@pytest.mark.parametrize("module", ["libfruit", "libfruit.so", "libfruit.so.3", "libfruit.so.3.1", "libf*", "lib?ruit"])
def test_modules_by_file_name_with_less_and_less_version(fruit, module):
    (site,) = resolved(f"{module}:banana", fruit)
    assert site.canonical == "pid:libfruit.so.3.1:banana:entry"
    assert site.address == 0x7F0000000000 + site.function.start
    assert site.kind == "entry"


def test_the_executable_is_a_out(fruit):
    (site,) = resolved("a.out:apple", fruit)
    assert site.object.name == "market"
    assert [each.is_executable for each in fruit] == [True, False]


def test_paths_name_modules_too(fruit, tmp_path):
    (site,) = resolved(f"uprobe:{tmp_path}/libfruit.so.3.1:apricot", fruit)
    assert site.object.name == "libfruit.so.3.1"
    (tmp_path / "link.so").symlink_to(tmp_path / "libfruit.so.3.1")
    assert resolved(f"uprobe:{tmp_path}/link.so:apricot", fruit) != []


def test_a_function_alone_searches_all_modules(fruit):
    assert names(resolved("apple", fruit)) == [("libfruit.so.3.1", "apple"), ("market", "apple")]


def test_globs_and_empty_parts_match_many(fruit):
    assert names(resolved("libfruit:ap*", fruit)) == [("libfruit.so.3.1", "apple"), ("libfruit.so.3.1", "apricot")]
    everything = {site.function.name for site in resolved("pid:libfruit::entry", fruit)}
    assert {"apple", "apricot", "banana"} <= everything
    assert len(resolved("libfruit:*", fruit)) == len(everything)


PARTED = """
int user(int *);
__attribute__((cold, noinline)) int fails(int x) { return user(&x); }
int works(int x, int y) {
    int kept[64] = {x, y};
    user(kept);
    if (__builtin_expect(kept[3] == 77, 0)) { fails(kept[1]); user(kept + 1); fails(kept[2]); return user(kept + 2); }
    return kept[5];
}
"""


@pytest.mark.parametrize("stripped", [(), ("-s",)], ids=["named", "stripped"])
def test_a_glob_lists_no_unnamed_part_of_a_function_but_its_code(process, stripped):
    process.load(PARTED, "libparted.so", "-shared", "-fPIC", "-O2", *stripped)
    (loaded,) = process.objects()
    parts = {f"libparted.so+{start:#x}" for start in loaded.image.unnamed_parts}
    assert len(parts) == len(stripped)
    listed = {site.function.name for site in resolved("libparted.so:*", process.objects())}
    assert {"works", "fails"} <= listed
    assert parts.isdisjoint(listed)
    for name in ("block", "insn", "call"):
        listed = {site.function.name for site in resolved(f"libparted.so:*:{name}", process.objects())}
        assert parts <= listed
    for start in loaded.image.unnamed_parts:
        (site,) = resolved(f"pid:libparted.so:-:{start:#x}", process.objects())
        assert site.function.start == start


def test_functions_without_names_are_found_by_what_lists_call_them(process):
    process.load(
        "static int hidden(int x) { return x + 3; } int main(int n) { return hidden(n); }", "bare", "-O0", "-s"
    )
    for site in resolved("bare:*", process.objects()):
        (again,) = resolved(f"bare:{site.name}", process.objects())
        assert (again.address, again.kind, again.canonical) == (site.address, "entry", site.canonical)
        assert site.name == f"bare+{site.function.start:#x}"
        (inside,) = resolved(f"{site.name}+0x1", process.objects())
        assert (inside.address, inside.kind) == (site.address + 1, "offset")


def test_several_names_of_one_address_are_one_site(fruit):
    assert len([site for site in resolved("libfruit:*", fruit) if "apple" in site.function.names]) == 1
    (site,) = resolved("libfruit:alias_of_apple", fruit)
    assert site.canonical == "pid:libfruit.so.3.1:alias_of_apple:entry"
    assert site.name == "alias_of_apple"
    assert "apple" in site.function.names


def test_returns_and_offsets(fruit):
    (site,) = resolved("libfruit:banana%return", fruit)
    assert (site.kind, site.canonical) == ("return", "pid:libfruit.so.3.1:banana:return")
    (site,) = resolved("libfruit:banana+0x3", fruit)
    assert (site.kind, site.offset, site.canonical) == ("offset", 3, "pid:libfruit.so.3.1:banana:0x3")
    absolute = site.function.start + 3
    (same,) = resolved(f"pid:libfruit:-:{absolute:#x}", fruit)
    assert (same.address, same.function, same.offset) == (site.address, site.function, 3)


def test_every_canonical_form_resolves_to_the_same_site(fruit):
    for text in ("apple", "libfruit:*", "libfruit:banana+0x3", "libfruit:ap*:return", "pid:market:main:0"):
        for site in resolved(text, fruit):
            (again,) = resolved(site.canonical, fruit)
            assert (again.address, again.kind, again.canonical) == (site.address, site.kind, site.canonical)


@pytest.mark.parametrize(
    ("text", "caret", "message", "nearest"),
    [
        ("libfruit:bananna", "         ^^^^^^^", "no function 'bananna' in libfruit.so.3.1", "banana"),
        ("libfriut:banana", "^^^^^^^^", "no module 'libfriut' is loaded", "libfruit"),
        ("pid:libfruit:aple:return", "             ^^^^", "no function 'aple'", "apple"),
        ("a.ut:main", "^^^^", "no module", "a.out"),
        ("librui:banana", "^^^^^^", "no module 'librui' is loaded", "libfruit"),
        ("FRUIT.so:banana", "^^^^^^^^", "no module 'FRUIT.so' is loaded", "libfruit"),
        ("libfruit:zz*", "         ^^^", "no function 'zz*'", None),
        ("libfruit:banana+0x1000", "                ^^^^^^", "beyond banana", None),
        ("pid:libfruit:-:0x10", "               ^^^^", "not in the code", None),
        ("market.c:12", "^^^^^^^^", "no source file 'market.c' with code is known to debug information of any", None),
        ("market:market.c:12", "       ^^^^^^^^", "debug information of market (market has no debug information", None),
    ],
)
def test_specs_that_mean_nothing_point_at_the_part(fruit, text, caret, message, nearest):
    with pytest.raises(SpecError) as caught:
        resolved(text, fruit)
    assert message in caught.value.message
    assert str(caught.value).splitlines()[2] == "  " + caret
    assert nearest is None or nearest in caught.value.nearest


def test_a_function_that_is_only_imported_is_said_so(process):
    process.load('#include <stdio.h>\nint main(void) { return puts("x"); }', "prints", "-O1", bias=0x555555554000)
    with pytest.raises(SpecError, match="prints imports it from another module"):
        resolved("prints:puts", process.objects())


@pytest.mark.parametrize(("flags", "is_said"), [(("-s",), True), ((), False)], ids=["stripped", "named"])
def test_a_name_that_a_stripped_file_lacks_is_said_so(process, flags, is_said):
    process.load(PROGRAM, "market", "-O1", *flags, bias=0x555555554000)
    with pytest.raises(SpecError) as caught:
        resolved("a.out:pear", process.objects())
    assert ("it is stripped" in caught.value.message) == is_said


@pytest.mark.skipif(shutil.which("objcopy") is None, reason="needs binutils")
def test_a_name_that_damaged_symbols_would_have_is_said_so(process, tmp_path):
    packed = tmp_path / "packed"
    packed.write_bytes(b"\xfd7zXZ\x00 and then nothing")
    path = process.folder / "market"
    subprocess.run(["gcc", "-x", "c", "-", "-o", path, "-O1", "-s"], input=PROGRAM, text=True, check=True)
    subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={packed}", path], check=True)
    process.place(str(path), 0x555555554000)
    with pytest.raises(SpecError, match=r"its symbols are in .gnu_debugdata, which is damaged"):
        resolved("a.out:pear", process.objects())


INLINED = """
static inline __attribute__((always_inline)) int pip(volatile int *x) { *x += 3; return *x * 7; }
int main(int argc, char **argv) { volatile int n = argc; return pip(&n) + pip(&n); }
"""


@pytest.mark.parametrize(("flags", "is_said"), [(("-g",), True), ((), False)])
def test_a_function_that_was_inlined_everywhere_is_said_to_be(process, flags, is_said):
    process.load(INLINED, "inlining", "-O1", *flags, bias=0x555555554000)
    with pytest.raises(SpecError) as caught:
        resolved("a.out:pip", process.objects())
    assert ("it has been inlined at 2 places" in caught.value.message) == is_said


def test_a_command_that_is_a_link_names_the_executable(fruit, tmp_path, monkeypatch):
    (tmp_path / "market").chmod(0o755)
    (tmp_path / "stall").symlink_to(tmp_path / "market")
    (tmp_path / "fruit").symlink_to(tmp_path / "libfruit.so.3.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names(resolved("stall:apple", fruit)) == [("market", "apple")]
    with pytest.raises(SpecError, match="no module 'fruit' is loaded"):
        resolved("fruit:apple", fruit)


def test_demangled_names_match_with_and_without_parameters(process):
    process.load(TWINS, "twins", "-O1", bias=0x555555554000, language="c++")
    objects = process.objects()

    def found(text):
        return sorted(site.function.demangled for site in resolved(text, objects))

    assert found("a.out:ns::f") == ["ns::f(char const*)", "ns::f(int)"]
    assert found("a.out:ns::f(int)") == ["ns::f(int)"]
    assert found("a.out:ns::f(char const*)") == ["ns::f(char const*)"]
    assert found("a.out:_ZN2ns1fEi") == ["ns::f(int)"]
    assert found("ns::C::get") == ["ns::C::get(char)", "ns::C::get(int)"]
    assert found("ns::twice") == ["double ns::twice<double>(double)", "int ns::twice<int>(int)"]
    with pytest.raises(SpecError, match=r"(?s)no function.*nearest: .*ns::C::get"):
        resolved("ns::C::gat", objects)
    assert [site.name for site in resolved("ns::twice<int>", objects)] == ["int ns::twice<int>(int)"]
    assert [site.name for site in resolved("_ZN2ns1fE?", objects)] == ["ns::f(int)"]
    assert found("ns::twice<int>") == ["int ns::twice<int>(int)"]
    assert len(found("ns::operator+")) == 1
    assert found("a.out:ns::C::*") == ["ns::C::get(char)", "ns::C::get(int)"]
    assert found("a.out:*C::get(*") == ["ns::C::get(char)", "ns::C::get(int)"]
    assert found("*twice<double>(*") == ["double ns::twice<double>(double)"]
    assert found("*ns::f(char*") == ["ns::f(char const*)"]
    assert found("(anonymous namespace)::helper") == ["(anonymous namespace)::helper(int)"]
    for text in ("ns::f", "ns::twice", "ns::operator+", "(anonymous namespace)::helper"):
        for site in resolved(text, objects):
            assert [each.address for each in resolved(site.canonical, objects)] == [site.address], site.canonical


def test_local_functions_of_one_name(process, tmp_path):
    # two static functions of one name, as two source files have them
    first = tmp_path / "first.c"
    second = tmp_path / "second.c"
    first.write_text(
        "static int __attribute__((noinline)) helper(int x) { return x + 1; } int a(int x) { return helper(x); }"
    )
    second.write_text(
        "static int __attribute__((noinline)) helper(int x) { return x * 9; } int b(int x) { return helper(x); }"
    )
    process.load("", "libtwo.so", "-shared", "-fPIC", "-O1", "-x", "c", str(first), str(second))
    objects = process.objects()
    assert len(resolved("libtwo:helpe[r]", objects)) == 2
    with pytest.raises(SpecError, match=r"2 functions of libtwo\.so are named 'helper'"):
        resolved("libtwo:helper", objects)
    with pytest.raises(SpecError, match=r"2 functions of libtwo\.so are named 'helper'") as caught:
        resolved("libtwo:helper+0x1", objects)
    (site,) = resolved(caught.value.nearest[0], objects)
    assert (site.function.name, site.offset) == ("helper", 1)


IFUNC = r"""
static int fast(int x) { return x; }
static int slow(int x) { return -x; }
static void *choose(void) { return __builtin_cpu_supports("sse2") ? (void *)fast : (void *)slow; }
int pick(int x) __attribute__((ifunc("choose")));
"""


def test_ifuncs_lead_to_what_the_process_uses_or_are_refused(process):
    path = process.load(IFUNC, "libpick.so", "-shared", "-fPIC", "-O1")
    objects = process.objects()
    fast = Image.open(path).functions.lookup("fast")[0]
    resolution = resolve_all(parse("libpick:pick"), objects)
    assert not resolution.sites
    assert resolution.refused[0].refusal.reason is Reason.IFUNC_UNRESOLVED
    resolution = resolve_all(
        parse("libpick:pick"), objects, ifunc_targets=lambda _loaded, _function: [0x7F0000000000 + fast.start]
    )
    (site,) = resolution.sites
    assert site.function.name == "fast"
    assert site.canonical == "pid:libpick.so:pick:entry"
    assert "resolved to fast" in site.note


def test_an_implementation_is_one_site_however_it_is_reached(process):
    path = process.load(IFUNC, "libpick.so", "-shared", "-fPIC", "-O1")
    objects = process.objects()
    fast = 0x7F0000000000 + Image.open(path).functions.lookup("fast")[0].start
    for text, count in (
        ("libpick:pick", 1),
        ("libpick:?[ia][cs][kt]", 1),
        ("libpick:*", len(resolved("libpick:*", objects))),
    ):
        sites = resolved(text, objects, ifunc_targets=lambda _loaded, _function: [fast, fast])
        assert [site.address for site in sites].count(fast) == 1
        assert len({site.address for site in sites}) == len(sites) == count


def test_an_object_that_cannot_be_read_matters_only_if_it_was_meant(process, tmp_path):
    process.load(LIBRARY, "libfruit.so", "-shared", "-fPIC", "-O1")
    process.load(LIBRARY, "libgone.so", "-shared", "-fPIC", "-O1", bias=0x7E0000000000)
    (tmp_path / "libgone.so").write_bytes(b"not an object any more")
    objects = process.objects()
    assert len(resolved("banana", objects)) == 1
    with pytest.raises(UnsupportedTarget, match="not an ELF file"):
        resolved("libgone:banana", objects)
    for text in ("libfruit:cherry", "cherry", "lib*:cherry"):
        with pytest.raises(SpecError, match="no function 'cherry'"):
            resolved(text, objects)


def test_a_spec_for_another_process_is_pointed_at(fruit):
    assert resolve_all(parse("pid77:libfruit:banana:entry"), fruit, pid=77).sites
    with pytest.raises(SpecError, match=r"names process 77, and not 78(?s:.*)\n  \^\^\^\^\^$"):
        resolve_all(parse("pid77:libfruit:banana:entry"), fruit, pid=78)


def test_all_of_libc_resolves_within_its_budget(process):
    import ctypes.util
    import time

    name = ctypes.util.find_library("c")
    path = f"/lib/x86_64-linux-gnu/{name}"
    process.place(path, 0x7F0000000000)
    with collection_paused():  # as in a session; else it is the other tests' garbage that is measured
        start = time.process_time()
        sites = resolved("libc:*", process.objects())
        first = time.process_time() - start
    assert len(sites) > 2000
    assert first < 0.3
    objects = process.objects()
    names = collections.Counter(name for site in sites for name in site.function.names)
    for site in sites[::40]:
        assert [each.address for each in resolved(site.canonical, objects)] == [site.address]
        if names[site.function.name] > 1:
            with pytest.raises(SpecError, match="ambiguous"):
                resolved(f"libc:{site.function.name}", objects)
    shown = [site.canonical for site in resolved("libc:mem*", objects)]
    assert all(each.startswith(f"pid:{name}:mem") for each in shown), "by the name that was asked for"


def test_an_absolute_address_without_a_module(fruit):
    (site,) = resolved("libfruit:banana+0x3", fruit)
    (same,) = resolved(f"pid$target::-:{site.address:x}", fruit)
    assert (same.address, same.function.name) == (site.address, "banana")
    with pytest.raises(SpecError, match="no file's code is at 0x10"):
        resolved("pid::-:10", fruit)


def test_a_glob_of_names_means_entries_returns_and_instructions(fruit):
    kinds = {
        pattern: {site.kind for site in resolved(f"pid:libfruit:banana:{pattern}", fruit)}
        for pattern in ("*", "e*", "ret*", "[0-9]")
    }
    assert kinds == {
        "*": {"entry", "return", "insn"}, "e*": {"entry", "insn"}, "ret*": {"return"}, "[0-9]": {"insn"},
    }  # fmt: skip
    several = next(site for site in resolved("pid:libfruit:banana:0x1?", fruit) if site.kind == "insn")
    assert (several.pattern, several.canonical) == ("1?", "pid:libfruit.so.3.1:banana:1?")


def test_mistyped_names_of_cpp_are_told_as_a_programmer_writes_them(process):
    source = "namespace shop { int weigh(int n) { return n + 1; } } int main() { return shop::weigh(1); }"
    process.load(source, "scale", "-O0", bias=0x555555554000, language="c++")
    with pytest.raises(SpecError) as caught:
        resolved("shop::weihg", process.objects())
    assert caught.value.nearest[0] == "shop::weigh"


LIBC = "int pthread_create(void) { return 1; } int dlsym(void) { return 2; } int printf(void) { return 3; }"
OLD_LIBC = "int pthread_mutex_lock(void) { return 1; }"


@pytest.mark.parametrize(
    ("spec", "function"),
    [
        ("libpthread:pthread_create", "pthread_create"),
        ("libpthread.so.0:pthread_c*", "pthread_create"),
        ("pid:libdl:dlsym:return", "dlsym"),
    ],
)
def test_libraries_that_are_a_part_of_libc_now_mean_libc(process, spec, function):
    process.load(LIBC, "libc.so.6", "-O1", "-shared", "-fno-builtin", bias=0x7F0000000000)
    assert names(resolved(spec, process.objects())) == [("libc.so.6", function)]


def test_a_library_that_is_merged_is_not_all_of_libc(process):
    process.load(LIBC, "libc.so.6", "-O1", "-shared", "-fno-builtin", bias=0x7F0000000000)
    with pytest.raises(SpecError, match=r"libpthread is a part of .* since glibc .*; name its functions"):
        resolved("libpthread:*", process.objects())


def test_an_old_libc_has_no_other_library_merged(process):
    process.load(OLD_LIBC, "libc.so.6", "-O1", "-shared", bias=0x7F0000000000)
    with pytest.raises(SpecError, match="no module 'libpthread' is loaded"):
        resolved("libpthread:pthread_mutex_lock", process.objects())


def test_an_empty_library_of_the_old_name_leads_to_libc_too(process):
    process.load(LIBC, "libc.so.6", "-O1", "-shared", "-fno-builtin", bias=0x7F0000000000)
    process.load("int __libpthread_placeholder;", "libpthread.so.0", "-O1", "-shared", bias=0x7E0000000000)
    assert names(resolved("libpthread:pthread_create", process.objects())) == [("libc.so.6", "pthread_create")]
