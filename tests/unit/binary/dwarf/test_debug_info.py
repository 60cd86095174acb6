"""Debug information as compilers write it: versions 2 to 5, compressed, in separate files, split, of C++."""

import random
import shutil
import struct
import subprocess

import pytest
import zstandard

from anyprobe.binary.images.image import Image
from anyprobe.binary.objects.elf import SHF_COMPRESSED, ElfFile
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.llvm.toolchain import object_code
from anyprobe.handlers.types.annotations import f64, i8, i16, i32, ptr, u32
from anyprobe.handlers.types.debug_types import DebugTypes
from anyprobe.handlers.types.layouts import StructType

SOURCE = """
struct node;
typedef struct { int x; double y; } point;
enum colour { RED = -1, GREEN };
enum shape { ROUND, SQUARE };
struct inner { short s; const volatile char text[3][4]; };
struct outer {
    struct inner *inner; unsigned low : 3; int high : 7; union { int whole; float part; };
    struct { point corner; }; enum colour colour; struct node *next; int (*call)(int); int flexible[];
};
struct node { struct node *next; struct outer *outer; };
int whole(struct outer *o, point p, const char *name, struct node **list, enum shape s, double ratio) {
    return o->low + (int)p.y + name[0] + (list != 0) + s + (int)ratio;
}
static __attribute__((noinline)) int hidden(int unused, int used) { return used * 3; }
float plain(void) { return 1.5f; }
void nothing(long double l, __int128 i, int n) { (void)l; (void)i; (void)n; }
old(x) float x; { return (int)x; }
int main(int argc, char **argv) { return hidden(argc, argc + 1) + (int)argv[0][0]; }
"""
WAYS = {
    "5": ("-gdwarf-5",),
    "4": ("-gdwarf-4",),
    "3": ("-gdwarf-3",),
    "2": ("-gdwarf-2", "-gstrict-dwarf"),
    "64-bit": ("-gdwarf-5", "-gdwarf64"),
    "compressed": ("-g", "-gz"),
    "types apart": ("-g", "-fdebug-types-section"),
    "types apart in a section of their own": ("-gdwarf-4", "-fdebug-types-section"),
    "split": ("-gdwarf-5", "-gsplit-dwarf"),
    "split before the standard": ("-gdwarf-4", "-gsplit-dwarf"),
    "split, types apart": ("-gdwarf-5", "-gsplit-dwarf", "-fdebug-types-section"),
    "split before the standard, types apart": ("-gdwarf-4", "-gsplit-dwarf", "-fdebug-types-section"),
    "split in 64 bits": ("-gdwarf-5", "-gdwarf64", "-gsplit-dwarf"),
    "linked at once": ("-g", "-flto", "-shared", "-fPIC"),
    "unoptimised": ("-g", "-O0"),
}
SILENT = ("-O2", "-w", "-std=gnu89")


def types_of(path, **options):
    image = Image.open(str(path), **options)
    types = DebugTypes(image.debug_info)
    return lambda name: types.prototype(image.functions.lookup(name)[0].start, name)


def layout(kind):
    return {each.name: (str(each.kind), each.offset, each.bits) for each in kind.members()}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_is_said_in_every_form(build, way):
    known = types_of(build(SOURCE, *SILENT, *WAYS[way]))
    whole = known("whole")
    assert [name for name, _ in whole.parameters] == ["o", "p", "name", "list", "s", "ratio"]
    kinds = dict(whole.parameters)
    assert (str(kinds["o"]), str(kinds["p"]), str(kinds["name"])) == ("ptr[struct outer]", "point", "ptr[i8]")
    assert (str(kinds["list"]), kinds["s"], kinds["ratio"]) == ("ptr[ptr[struct node]]", u32, f64)
    assert whole.places == [("rdi",), ("rsi", "xmm0"), ("rdx",), ("rcx",), ("r8",), ("xmm1",)]
    assert whole.result == i32
    assert layout(kinds["o"].element) == {
        "inner": ("ptr[struct inner]", 0, 0), "low": ("u32", 64, 3), "high": ("i32", 67, 7), "whole": ("i32", 96, 0),
        "part": ("f32", 96, 0), "corner": ("point", 128, 0), "colour": ("i32", 256, 0),
        "next": ("ptr[struct node]", 320, 0), "call": ("ptr", 384, 0), "flexible": ("i32[]", 448, 0),
    }  # fmt: skip
    inner = kinds["o"].element.member("inner").kind.element
    assert layout(inner) == {"s": ("i16", 0, 0), "text": ("i8[4][3]", 16, 0)}
    assert inner.member("s").kind == i16
    assert inner.member("text").kind.element.element == i8
    assert known("plain").result is not None
    assert known("plain").parameters == ()
    nothing = known("nothing")
    assert nothing.result is None
    assert nothing.places == [("stack+8", "stack+16"), ("rdi", "rsi"), ("rdx",)]
    assert dict(known("old").parameters) == {"x": f64}  # without a prototype it is passed so


def test_a_separate_file_is_found(build, tmp_path):
    whole = build(SOURCE, *SILENT, "-g")
    program, debug = tmp_path / "program", tmp_path / "program.debug"
    shutil.copy(whole, program)
    build.run("objcopy", "--only-keep-debug", program, debug)
    build.run("strip", "--strip-debug", program)
    with pytest.raises(UnsupportedTarget, match="no debug information, and no separate file"):
        types_of(program)
    identifier = Image.open(str(program)).build_id
    place = tmp_path / "debug" / ".build-id" / identifier[:2] / f"{identifier[2:]}.debug"
    place.parent.mkdir(parents=True)
    shutil.move(debug, place)
    known = types_of(program, debug_roots=[str(tmp_path / "debug")])
    assert [name for name, _ in known("whole").parameters][:2] == ["o", "p"]


@pytest.mark.parametrize("version", ["-gdwarf-5", "-gdwarf-4"])
def test_split_debug_information_is_of_the_same_build_or_named(tmp_path, build, version):
    def compiled(source):
        (tmp_path / "p.c").write_text(source)
        build.run("gcc", *SILENT, "-g", version, "-gsplit-dwarf", tmp_path / "p.c", "-o", tmp_path / "p")
        (found,) = tmp_path.glob("*.dwo")
        return found.read_bytes(), found

    other, _ = compiled(SOURCE.replace("double ratio", "float ratio"))
    own, place = compiled(SOURCE)
    place.unlink()
    with pytest.raises(UnsupportedTarget, match=r"split off into .*\.dwo, which is not there"):
        types_of(tmp_path / "p")("whole")
    place.write_bytes(other)
    with pytest.raises(UnsupportedTarget, match="which is of another build"):
        types_of(tmp_path / "p")("whole")
    place.write_bytes(own)
    assert len(types_of(tmp_path / "p")("whole").parameters) == 6
    (tmp_path / "moved").mkdir()
    shutil.move(tmp_path / "p", tmp_path / "moved" / "p")
    shutil.move(place, tmp_path / "moved" / place.name)
    assert len(types_of(tmp_path / "moved" / "p")("whole").parameters) == 6
    damaged = bytearray(own)
    for at in range(0, len(damaged), 7):
        damaged[at] ^= 0xFF if at > 64 else 0
    (tmp_path / "moved" / place.name).write_bytes(damaged)
    with pytest.raises(UnsupportedTarget):
        types_of(tmp_path / "moved" / "p")("whole")


def test_types_are_found_in_what_other_units_were_split_off_into(tmp_path, build):
    (tmp_path / "a.c").write_text(
        "struct request; int serve(struct request *r) { return r != 0; } int main(void) { return serve(0); }"
    )
    (tmp_path / "b.c").write_text(
        "struct request { char pad[40]; int port; }; int other(struct request *r) { return r->port; }"
    )
    options = (*SILENT, "-g", "-gsplit-dwarf", "-fno-lto", "-Wl,--no-gc-sections")
    build.run("gcc", *options, tmp_path / "a.c", tmp_path / "b.c", "-o", tmp_path / "p")
    request = dict(types_of(tmp_path / "p")("serve").parameters)["r"].element
    assert layout(request)["port"] == ("i32", 320, 0)


def packed(path, method=2, damage=b""):
    """Return a program with its debug sections as zstd packs them, which this compiler cannot do."""
    content = bytearray(path.read_bytes())
    headers = int.from_bytes(content[0x28:0x30], "little")
    for number, section in enumerate(ElfFile("plain", bytes(content)).sections):
        if section.name.startswith(".debug_"):
            plain = bytes(content[section.offset : section.offset + section.size])
            new = struct.pack("<IIQQ", method, 0, len(plain), 1) + damage + zstandard.compress(plain)
            at = headers + 64 * number
            struct.pack_into("<Q", content, at + 8, section.flags | SHF_COMPRESSED)
            struct.pack_into("<QQ", content, at + 24, len(content), len(new))
            content += new
    return bytes(content)


def test_what_zstd_has_compressed_is_read(build, tmp_path):
    plain = build(SOURCE, *SILENT, "-g")
    (tmp_path / "zstd").write_bytes(packed(plain))
    (tmp_path / "damaged").write_bytes(packed(plain, damage=b"?"))
    (tmp_path / "unknown").write_bytes(packed(plain, method=3))
    found, true = types_of(tmp_path / "zstd")("whole").parameters, types_of(plain)("whole").parameters
    assert [name for name, _ in found] == [name for name, _ in true]
    assert layout(dict(found)["o"].element) == layout(dict(true)["o"].element)
    with pytest.raises(UnsupportedTarget, match="damaged debug information"):
        types_of(tmp_path / "damaged")("whole")
    with pytest.raises(UnsupportedTarget, match=r"\.debug_\w+ is compressed in a way that is not known \(3\)"):
        types_of(tmp_path / "unknown")("whole")


def test_types_that_are_only_declared_are_found_in_other_units(build, tmp_path):
    other = tmp_path / "other.c"
    other.write_text(
        "struct request { char pad[40]; int port; }; struct request all;"
        "int other(struct request *r) { return r->port; }"
    )
    first = "struct request; int serve(struct request *r) { return r != 0; } int main(void) { return serve(0); }"
    known = types_of(build(first, "-O1", "-g", "-fno-lto", str(other), "-Wl,--no-gc-sections"))
    request = dict(known("serve").parameters)["r"].element
    assert isinstance(request, StructType)
    assert layout(request)["port"] == ("i32", 320, 0)


CPP = """
namespace shop {
struct Base { long first; int identity; ~Base(); };
struct Item : Base { double price; static int count; Item(const Item &) ; Item(); };
struct Small { short a, b; };
struct Nested { struct Deep { char c; } deep; };
class Cart {
public:
    int add(Item item, const Item &other, Small small, Nested::Deep deep, bool urgent);
    long total;
};
int Cart::add(Item item, const Item &other, Small small, Nested::Deep deep, bool urgent) {
    return item.identity + other.identity + small.a + deep.c + urgent;
}
}
int main() { return 0; }
"""


def test_cpp(build):
    image = Image.open(str(build(CPP, "-O2", "-g", language="c++")))
    (function,) = image.functions.match("*add*")
    found = DebugTypes(image.debug_info).prototype(function.start, function.name)
    assert [name for name, _ in found.parameters] == ["this", "item", "other", "small", "deep", "urgent"]
    kinds = dict(found.parameters)
    assert layout(kinds["this"].element) == {"total": ("i64", 0, 0)}
    assert str(kinds["item"]) == "ptr[struct Item]"  # it has a constructor for copies
    assert layout(kinds["other"].element)["identity"] == ("i32", 64, 0)
    assert layout(kinds["other"].element)["price"] == ("f64", 128, 0)
    assert "count" not in layout(kinds["other"].element)
    assert found.places == [("rdi",), ("rsi",), ("rdx",), ("rcx",), ("r8",), ("r9",)]


def test_clones_have_no_parameters_that_are_known(build):
    source = """
    struct pair { int a, b; };
    static __attribute__((noinline)) int part(struct pair *p, int unused) { return p->a * p->a; }
    int main(int argc, char **argv) { struct pair p = {argc, 2}; return part(&p, 1) + part(&p, 2); }
    """
    image = Image.open(str(build(source, "-O2", "-g")))
    (clone,) = image.functions.match("part.*")
    with pytest.raises(UnsupportedTarget, match="parameters of its own choice"):
        DebugTypes(image.debug_info).prototype(clone.start, clone.name)


def test_damaged_debug_information_is_said(build, tmp_path):
    image = Image.open(str(build(SOURCE, *SILENT, "-g")))
    section = image.elf.section(".debug_info")
    whole = bytes(image.elf.content)
    start = image.functions.lookup("whole")[0].start
    damaged = random.Random(7)
    for turn in range(300):
        content = bytearray(whole)
        for _ in range(1 + turn % 20):
            content[section.offset + damaged.randrange(section.size)] = damaged.randrange(256)
        try:
            found = DebugTypes(Image.from_bytes("damaged", bytes(content)).debug_info).prototype(start, "whole")
            for _, kind in found.parameters:
                layout(getattr(kind, "element", kind)) if isinstance(getattr(kind, "element", 0), StructType) else str(
                    kind
                )
        except UnsupportedTarget:
            pass


MEMBERS = ("char", "short", "int", "long", "float", "double", "void *", "_Bool")


def test_places_agree_with_the_compilers(build):
    """Registers of parameters behind structs are where debug information has them; ``prototype`` compares."""
    choose = random.Random(11)
    source, names = [], []
    for number in range(120):
        kinds = []
        for index in range(choose.randrange(1, 9)):
            if choose.random() < 0.45:
                members = "".join(
                    f" {choose.choice(MEMBERS)} m{at}{choose.choice(['', '', '[2]'])};"
                    for at in range(choose.randrange(1, 5))
                )
                word = choose.choice(["struct", "struct", "union"])
                source.append(f"{word} s{number}_{index} {{{members} }};")
                kinds.append(f"{word} s{number}_{index}")
            else:
                kinds.append(choose.choice((*MEMBERS, "long double", "__int128")))
        names.append(f"f{number}")
        text = ", ".join(f"{kind} p{index}" for index, kind in enumerate(kinds))
        source.append(f"int f{number}({text}) {{ return sizeof p0; }}")
    known = types_of(build("\n".join(source) + "\nint main(void) { return 0; }", "-O1", "-g"))
    assert all(known(name).places for name in names)


def test_voids_are_plain_pointers(build):
    known = types_of(build("void *f(void *p, void (*g)(int)) { return p; } int main(void) { return 0; }", "-g"))
    assert known("f").parameters == (("p", ptr), ("g", ptr))
    assert known("f").result == ptr


def test_functions_in_assembly_are_not_said_to_have_no_parameters(tmp_path):
    source = tmp_path / "stub.s"
    source.write_text(".globl stub\n.type stub, @function\nstub: ret\n.size stub, 1\n")
    path = tmp_path / "stub.so"
    subprocess.run(["gcc", "-g", "-shared", "-nostdlib", "-o", str(path), str(source)], check=True)
    with pytest.raises(UnsupportedTarget, match="assembly"):
        types_of(path)("stub")


LLVM = """
declare void @llvm.dbg.value(metadata, metadata, metadata)
define i32 @serve(ptr %r, i32 %n) !dbg !5 {
  call void @llvm.dbg.value(metadata ptr %r, metadata !14, metadata !DIExpression()), !dbg !15
  call void @llvm.dbg.value(metadata i32 %n, metadata !16, metadata !DIExpression()), !dbg !15
  %p = load i32, ptr %r, !dbg !15
  %s = add i32 %p, %n, !dbg !15
  ret i32 %s, !dbg !15
}
define i32 @main() section ".text.startup" !dbg !17 { ret i32 0, !dbg !18 }
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!3, !4}
!0 = distinct !DICompileUnit(language: DW_LANG_C11, file: !1, producer: "p", isOptimized: true, runtimeVersion: 0,
                             emissionKind: FullDebug)
!1 = !DIFile(filename: "a.c", directory: "/")
!3 = !{i32 7, !"Dwarf Version", i32 VERSION}
!4 = !{i32 2, !"Debug Info Version", i32 3}
!5 = distinct !DISubprogram(name: "serve", scope: !1, file: !1, line: 1, type: !6, flags: DIFlagPrototyped,
                            spFlags: DISPFlagDefinition, unit: !0, retainedNodes: !19)
!6 = !DISubroutineType(types: !7)
!7 = !{!8, !9, !8}
!8 = !DIBasicType(name: "int", size: 32, encoding: DW_ATE_signed)
!9 = !DIDerivedType(tag: DW_TAG_pointer_type, baseType: !10, size: 64)
!10 = distinct !DICompositeType(tag: DW_TAG_structure_type, name: "request", file: !1, size: 64, elements: !11)
!11 = !{!12, !13}
!12 = !DIDerivedType(tag: DW_TAG_member, name: "port", scope: !10, file: !1, baseType: !8, size: 32)
!13 = !DIDerivedType(tag: DW_TAG_member, name: "flags", scope: !10, file: !1, baseType: !8, size: 3, offset: 37,
                     flags: DIFlagBitField, extraData: i64 32)
!14 = !DILocalVariable(name: "r", arg: 1, scope: !5, file: !1, type: !9)
!15 = !DILocation(line: 1, scope: !5)
!16 = !DILocalVariable(name: "n", arg: 2, scope: !5, file: !1, type: !8)
!17 = distinct !DISubprogram(name: "main", scope: !1, file: !1, type: !6, spFlags: DISPFlagDefinition, unit: !0)
!18 = !DILocation(line: 2, scope: !17)
!19 = !{!14, !16}
"""


@pytest.mark.parametrize("version", ["4", "5"])
def test_what_llvm_writes(build, tmp_path, version):
    """LLVM names texts, addresses and lists by index, and writes no ``.debug_aranges``."""
    made = tmp_path / "made.o"
    made.write_bytes(object_code(LLVM.replace("VERSION", version), "x86_64-unknown-linux-gnu", "x86-64"))
    path = tmp_path / "program"
    build.run("gcc", made, "-o", path, "-Wl,--build-id")
    assert Image.open(str(path)).elf.section(".debug_aranges") is None or version == "4"
    types = DebugTypes(Image.open(str(path)).debug_info)
    serve = types_of(path)("serve")
    assert [(name, str(kind)) for name, kind in serve.parameters] == [("r", "ptr[struct request]"), ("n", "i32")]
    assert serve.result == i32
    request = types.named("struct request")
    assert layout(request) == {"port": ("i32", 0, 0), "flags": ("i32", 37, 3)}
    assert types_of(path)("main").parameters == ()
    with pytest.raises(UnsupportedTarget, match="no type nothing"):
        types.named("nothing")


APART = """
struct small { int a; float b; };
union number { int i; float f; };
enum kind { LEAST = -1, MOST };
struct mixed { double d; long l; };
struct chain { struct chain *next; struct small parts[2]; enum kind kind; };
typedef struct { char name[16]; struct small *at; } record;
extern "C" {
int by_value(struct small s, int x) { return s.a + x; }
int of_union(union number v, int x) { return v.i + x; }
int of_both(struct mixed m, int x) { return (int)m.l + x; }
int by_pointer(struct small *s, int x) { return s->a + x; }
int far(struct chain *c, const record *r, enum kind k) { return c->parts[1].a + r->at->a + (int)k; }
struct small result(int x) { struct small s = {x, 1}; return s; }
}
int main(void) { return 0; }
"""


@pytest.mark.parametrize("split", [(), ("-gsplit-dwarf",)], ids=["whole", "split"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("compiler", ["gcc", "g++", "clang", "clang++"])
def test_types_with_units_of_their_own_are_what_their_signatures_say(tmp_path, compiler, version, split):
    source = APART if "++" in compiler else APART.replace('extern "C" {', "").replace("}\nint main", "int main")
    file = tmp_path / ("apart.cc" if "++" in compiler else "apart.c")
    file.write_text(source)
    ways = ["-O1", f"-gdwarf-{version}", "-fdebug-types-section", *split]
    subprocess.run([compiler, *ways, "-c", file, "-o", "apart.o"], cwd=tmp_path, check=True)
    subprocess.run([compiler, "apart.o", "-o", "apart"], cwd=tmp_path, check=True)
    known = types_of(tmp_path / "apart")
    small = {"a": ("i32", 0, 0), "b": ("f32", 32, 0)}
    places = {name: known(name).places for name in ("by_value", "of_union", "of_both", "by_pointer")}
    assert places == {
        "by_value": [("rdi",), ("rsi",)], "of_union": [("rdi",), ("rsi",)],
        "of_both": [("xmm0", "rdi"), ("rsi",)], "by_pointer": [("rdi",), ("rsi",)],
    }  # fmt: skip
    assert layout(dict(known("by_value").parameters)["s"]) == small
    assert layout(dict(known("by_pointer").parameters)["s"].element) == small
    far = dict(known("far").parameters)
    assert str(far["k"]) == "i32"
    assert layout(far["c"].element.member("parts").kind.element) == small
    assert far["c"].element.member("next").kind.element is far["c"].element
    assert layout(far["r"].element.member("at").kind.element) == small
    assert layout(known("result").result) == small
