"""Probes at source lines: of functions, in inlined instances, in libraries and in separate debug files."""

import json
import subprocess
from pathlib import Path

import pytest

import anyprobe
from anyprobe.binary.images.image import Image
from anyprobe.cli import main

pytestmark = pytest.mark.live

HEADER = """\
static inline __attribute__((always_inline)) int helper(int n)
{
    int sum = 0;
    if (n > 5)
        sum += n * sink;
    return sum;
}
"""
PROGRAM = """\
#include <stdio.h>
static volatile int sink;
#include "helper.h"
int other(int n);

__attribute__((noinline)) int work(int n)
{
    sink = n;
    for (int i = 0; i < n; i++)
        sink += i;
    return helper(n) + 1;
}
__attribute__((noinline)) int twice(int n)
{
    int one = helper(n);
    sink++;
    return one + helper(n + 1);
}
int main(void)
{
    for (int n = 0; n < 10; n++) {
        work(n);
        twice(n);
        other(n);
    }
    return 0;
}
"""
SAME_NAME = """\
static volatile int sink;
#define UNUSED(x) (void)(x)

int other(int n)
{
    UNUSED(n);
    sink = n;
    sink++;
    return sink;
}
"""
SINK, BODY, AGAIN, IN_OTHER = 8, 10, 16, 7
"""Lines: of ``work``, of its loop's body, of ``twice``, and of ``other``."""
IN_HELPER = 5
"""The line of the header that runs where n is above 5, in three places: 4 times by ``work``, 4 and 5 by ``twice``."""


@pytest.fixture(params=[4, 5], ids=["dwarf4", "dwarf5"])
def program(request, tmp_path):
    for name, text in {"helper.h": HEADER, "src/main.c": PROGRAM, "lib/main.c": SAME_NAME}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    command = ["gcc", f"-gdwarf-{request.param}", "-O1", "-I.", "-o", "program", "src/main.c", "lib/main.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path / "program"


def counted(program, *specs):
    """Return the hits of each place, by the specs."""
    with anyprobe.run([str(program)]) as session:
        probes = session.count(*specs)
        assert session.wait(180) == 0
        sites = {(site.spec, site.address): site.hits for site in session.snapshot().sites}
        assert session.refused == []
        return [[sites[place.site.canonical, place.address] for place in probe.places] for probe in probes]


def test_lines_of_functions_and_of_inlined_instances(program):
    places = counted(program, f"src/main.c:{SINK}", f"src/main.c:{BODY}", f"main.c:{AGAIN}")
    assert list(map(sum, places)) == [10, 45, 10]
    (inlined,) = counted(program, f"helper.h:{IN_HELPER}")
    assert (len(inlined), sum(inlined)) == (3, 4 + 4 + 5)


def test_a_name_that_several_files_have(program):
    with anyprobe.run([str(program)]) as session:
        with pytest.raises(anyprobe.SpecError) as caught:
            session.list(f"main.c:{IN_OTHER + 1}")
        assert "2 source files are named 'main.c'" in caught.value.message
        assert set(caught.value.nearest) == {f"lib/main.c:{IN_OTHER + 1}", f"src/main.c:{IN_OTHER + 1}"}
        session.list(caught.value.nearest[0])
    assert counted(program, f"lib/main.c:{IN_OTHER}", f"a.out:lib/main.c:{IN_OTHER}") == [[10], [10]]


def test_a_line_without_code_and_files_that_nobody_knows(program):
    with anyprobe.run([str(program)]) as session:
        with pytest.raises(anyprobe.SpecError) as caught:
            session.list("lib/main.c:2")
        assert (caught.value.message, caught.value.nearest[0]) == ("this line has no code", "lib/main.c:5")
        with pytest.raises(anyprobe.SpecError, match=r"no source file 'missing\.c' with code"):
            session.list("missing.c:3")
        with pytest.raises(anyprobe.SpecError, match="functions are timed"):
            session.time(f"src/main.c:{SINK}")


@pytest.mark.parametrize("packed", ["none", "zlib", "zlib-gabi"])
@pytest.mark.parametrize("link", [".debug", "."], ids=["subfolder", "beside"])
def test_separate_debug_files(program, link, packed):
    """By ``.gnu_debuglink``, with compressed sections."""
    folder = program.parent / link
    folder.mkdir(exist_ok=True)
    debug = folder / "program.debug"
    compress = [] if packed == "none" else [f"--compress-debug-sections={packed}"]
    subprocess.run(["objcopy", "--only-keep-debug", *compress, program, debug], check=True)
    subprocess.run(["objcopy", "--strip-debug", f"--add-gnu-debuglink={debug}", program], check=True)
    assert counted(program, f"src/main.c:{BODY}") == [[45]]


def test_a_debug_file_by_build_id(program, tmp_path):
    own = Image.open(str(program)).debug_info.lines("src/main.c")
    notes = subprocess.run(["readelf", "-n", program], check=True, capture_output=True, text=True).stdout
    digits = notes.partition("Build ID: ")[2].split()[0]
    debug = tmp_path / "installed" / ".build-id" / digits[:2] / f"{digits[2:]}.debug"
    debug.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["objcopy", "--strip-debug", program], check=True)
    image = Image.open(str(program), debug_roots=(str(tmp_path / "installed"),))
    assert image.debug_info.lines("src/main.c") == own
    assert len(own) == 1


def test_lines_under_conditions_and_in_traces(program, capfd):
    """Handlers at lines have the registers; what a line does is not done yet."""
    spec = f"src/main.c:{SINK}"
    assert main(["count", spec, "--when", "u32(ctx.regs.rdi) >= 7", "--json", "--", str(program)]) == 0
    (site,) = json.loads(capfd.readouterr().err)["sites"]
    assert (site["hits"], site["function"], site["notes"]) == (3, "work", [spec])
    assert main(["trace", spec, "--quiet", "--", str(program)]) == 0
    assert capfd.readouterr().err.count("program:work") == 10


def test_a_line_of_a_library_that_comes_later(tmp_path):
    (tmp_path / "plugin.c").write_text("int plugged(int n)\n{\n    return n * 3;\n}\n")
    (tmp_path / "loads.c").write_text(
        "#include <dlfcn.h>\nint main(int c, char **v) { void *l = dlopen(v[c - 1], 2);\n"
        'int (*f)(int) = dlsym(l, "plugged"); for (int i = 0; i < 7; i++) f(i); return 0; }\n'
    )
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", "plugin.so", "plugin.c"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-o", "loads", "loads.c", "-ldl"], cwd=tmp_path, check=True)
    with anyprobe.run([str(tmp_path / "loads"), str(tmp_path / "plugin.so")], pending="modules") as session:
        session.count("plugin.so:plugin.c:3")
        assert session.wait(180) == 0
        assert session.snapshot().hits == 7
        assert Path(session.snapshot().sites[0].module).name == "plugin.so"
