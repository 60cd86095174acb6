import shutil
import subprocess

import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.images.image import Image

SOURCE = """
package main

type T struct{ n int }

//go:noinline
func (t *T) Method(x int) int { t.n += x; return t.n }

//go:noinline
func work(x int) int { s := 0; for i := 0; i < x; i++ { s += i * i }; return s }

var effects int

//go:noinline
func choose(which int, value int) int {
	switch which {
CASES
	}
	return value
}

func main() { t := &T{}; println(work(t.Method(3)), choose(t.n, 4)) }
"""
CASES = "\n".join(f"\tcase {n}: effects += value * {2 * n + 3}; return value ^ {n}" for n in range(12))


@pytest.fixture(scope="module")
def program(tmp_path_factory, build):
    folder = tmp_path_factory.mktemp("go")
    (folder / "main.go").write_text(SOURCE.replace("CASES", CASES))

    def make(*flags):
        path = folder / ("program" + "".join(flags).replace("=", "").replace(" ", ""))
        if not path.exists():
            try:
                build.run("go", "build", "-o", path, *flags, folder / "main.go")
            except subprocess.CalledProcessError as error:
                pytest.skip(f"go cannot build here: {error.stderr[-200:]}")
        return Image.open(str(path))

    return make


@pytest.mark.parametrize("flags", [("-ldflags=-s -w",), ("-buildmode=pie", "-ldflags=-s -w")])
def test_stripped_go_programs_keep_their_functions(program, flags):
    whole, stripped = program(*flags[:-1]), program(*flags)
    assert stripped.is_go
    assert stripped.text().is_go
    for name in ("main.work", "main.(*T).Method", "main.main", "runtime.mallocgc"):
        (there,), (here,) = whole.functions.lookup(name), stripped.functions.lookup(name)
        assert here.start == there.start
        assert there.end <= here.end < there.end + 32, "its own table counts the padding too"
    assert len(stripped.functions.match("main.*")) == 4


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("flags", [(), ("-buildmode=pie",)])
def test_programs_that_the_system_s_linker_has_linked(program, flags):
    """In front of their functions there is code of C, and in some the table lies among other data."""
    linked = (*flags, "-ldflags=-linkmode=external")
    whole, stripped = program(*linked), program(*linked[:-1], "-ldflags=-linkmode=external -s -w")
    for name in ("main.work", "main.(*T).Method", "main.main", "runtime.mallocgc"):
        (there,), (here,) = whole.functions.lookup(name), stripped.functions.lookup(name)
        assert here.start == there.start
        for image in (whole, stripped):
            assert image.text().go_functions.is_compiled(here.start)
            assert image.text().parking is not None


def test_other_programs_are_not_go(build):
    assert not Image.open(str(build("int main(void) { return 0; }"))).is_go


@pytest.mark.parametrize("flags", [(), ("-buildmode=pie",)])
def test_switches_lead_to_known_places(program, flags):
    """Where the file holds the table, it is read; where the loader fills it in, its entries are entries of the code."""
    image = program(*flags)
    (choose,) = image.functions.lookup("main.choose")
    code_map = CodeMap(image.text())
    code = code_map.function_at(choose.start)
    assert code.complete is None
    assert code.indirect_jumps == 1
    entered = set(code.table_targets) | set(code_map.entries.static_entries(code.start + 1, code.end))
    assert len(entered) >= 12
    assert all(code.is_boundary(address) for address in entered)
    if not flags:
        assert len(code.table_targets) >= 12
        assert not any(leaving.indirect for leaving in code.exits.found)
