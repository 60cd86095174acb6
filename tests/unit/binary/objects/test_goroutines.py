"""Where goroutines may be parked: what the runtime itself says of every pc of a program, asked in the program."""

import subprocess

import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.images.image import Image
from anyprobe.binary.objects.golang import parking_places

SOURCE = """
package main

import (
	"fmt"
	"reflect"
	"strings"
	"unsafe"
)

type funcInfo struct{ f, module unsafe.Pointer }

//go:linkname findfunc runtime.findfunc
func findfunc(pc uintptr) funcInfo

//go:linkname funcname runtime.funcname
func funcname(f funcInfo) string

//go:linkname pcdatavalue2 runtime.pcdatavalue2
func pcdatavalue2(f funcInfo, table uint32, pc uintptr) (int32, uintptr)

type half struct{ n int }

func (h half) value() int { return h.n / 2 }

//go:noinline
func work(p **half, x int) int { *p = &half{x}; s := 0; for i := 0; i < x; i++ { s += (*p).value() * i }; return s }

//go:noinline
func safe(f func() int) (n int) { defer func() { if recover() != nil { n = -1 } }(); return f() }

func main() {
	var p *half
	safe(func() int { return (*p).n })
	fmt.Println(work(&p, 3), strings.Repeat("a", 2), reflect.TypeOf(p).Kind())
	for _, at := range []uintptr{PLACES} {
		f := findfunc(at)
		if f.f == nil { continue }
		unsafePoint, _ := pcdatavalue2(f, 0, at)
		inlined, _ := pcdatavalue2(f, 2, at)
		fmt.Println(at, unsafePoint, inlined, funcname(f))
	}
}
"""
FUNCTIONS = ("main.work", "main.main", "runtime.mallocgc", "runtime.newobject", "strings.Repeat", "fmt.(*pp).doPrintf",
             "reflect.Value.Kind", "reflect.(*rtype).uncommon", "sync.(*Mutex).lockSlow")  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("goroutines")


def built(build, folder, *flags, places=""):
    (folder / "main.go").write_text(SOURCE.replace("PLACES", places))
    (folder / "empty.s").write_text("")  # lets functions have no body
    (folder / "go.mod").write_text("module example\n\ngo 1.18\n")
    try:
        subprocess.run(["go", "build", "-o", "program", *flags, "."], check=True, cwd=folder, capture_output=True)
    except FileNotFoundError:
        pytest.skip("go is not installed")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"go cannot build here: {error.stderr[-200:]}")
    return Image.open(str(folder / "program"))


def test_the_runtime_says_the_same_of_every_instruction(build, folder):
    """The addresses are data of the program, of one length in every build, so nothing moves when they are known."""
    count = 2000
    image = built(build, folder, places=", ".join(["0x1000000"] * count))
    code_map = CodeMap(image.text())
    starts = [found.start for name in FUNCTIONS for found in image.functions.lookup(name)]
    assert len(starts) >= len(FUNCTIONS) - 2
    places = [at for start in starts for at in code_map.function_at(start).addresses][:count]
    text = ", ".join(f"{at:#x}" for at in places) + ", 0x1000000" * (count - len(places))
    image = built(build, folder, places=text)
    parking = parking_places(image.elf)
    lines = subprocess.run([folder / "program"], check=True, capture_output=True, text=True).stdout.splitlines()[1:]
    kinds = set()
    for line in lines:
        at, unsafe_point, inlined, name = line.split(" ", 3)
        runtime = name.startswith(("runtime.", "reflect."))
        never = unsafe_point == "-2" or (runtime and inlined == "-1")
        assert parking.may_park(int(at)) is not never, line
        kinds.add((never, runtime))
    assert len(kinds) >= 3
    assert len(lines) == len(places)


@pytest.mark.parametrize("flags", [("-buildmode=pie",), ("-ldflags=-s -w",)])
def test_assembly_and_the_runtime(build, folder, flags):
    image = built(build, folder, *flags)
    text = image.text()
    names = ("runtime.memmove", "runtime.duffcopy", "runtime.asyncPreempt", "runtime.gopanic")
    found = [function for name in names for function in image.functions.match(name + "*")]
    assert len(found) >= len(names)
    for function in found:
        code = [at for at in range(function.start, function.end) if image.read(at, 1) != b"\xcc"]  # but for padding
        assert not any(text.parking.may_park(at) for at in code)
    (work,) = image.functions.match("main.work")
    assert any(text.parking.may_park(at) for at in range(work.start, work.end))
    assert not text.parking.may_park(text.ranges[0].start - 1)
    assert not text.parking.may_park(1 << 40), "no code of Go's"


def test_a_function_that_recovers_from_a_panic_returns_where_nothing_branches_to(build, folder):
    image = built(build, folder, "-ldflags=-s -w")
    code_map = CodeMap(image.text())
    (function,) = image.functions.match("main.safe")
    code = code_map.function_at(function.start)
    assert code.exits.complete is None
    assert [code.insn_at(each.address).text for each in code.exits.found] == ["ret", "ret"]
    after = [insn for insn in code.insns if insn.is_call and insn.address in set(image.text().entries.tolist())]
    assert len(after) == 1, "the call of deferreturn is entered by itself"


def test_a_table_that_makes_no_sense_proves_nothing(build, folder):
    image = built(build, folder)
    content = bytearray(image.elf.section_bytes(image.elf.section(".gopclntab")))
    parking = image.text().parking
    (function,) = image.functions.match("runtime.gopanic")
    broken = type(parking)(bytes(content), int(image.elf.section(".text").address))
    assert not broken.may_park(function.start)
    broken = type(parking)(bytes(content), int(image.elf.section(".text").address))
    broken._records = len(content)
    assert broken.may_park(function.start)


def test_objects_that_are_not_gos(build):
    assert Image.open(str(build("int main(void) { return 0; }"))).text().parking is None
