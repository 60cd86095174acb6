"""Source lines of a compiled program, as the compiler and ``objdump`` say them."""

import re
import subprocess

import pytest

from anyprobe.binary.dwarf.debug_info import DebugInfo
from anyprobe.binary.dwarf.lines import lines_of
from anyprobe.binary.objects.elf import ElfFile

SOURCE = """\
int global;

__attribute__((noinline)) int work(int number)
{
    global += number;
    if (number > 3)
        global *= 2;
    return global;
}

int main(int argc, char **argv)
{
    return work(argc) + work(argc + 1);
}
"""


@pytest.fixture(params=[2, 3, 4, 5])
def program(request, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "lines.c").write_text(SOURCE)
    command = ["gcc", f"-gdwarf-{request.param}", "-O1", "-o", "lines", "folder/lines.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path / "lines"


def told_by_objdump(program):
    """Return where control comes to lines of the program's own file: where the statement before is of another line."""
    told = subprocess.run(["objdump", "--dwarf=decodedline", program], check=True, capture_output=True, text=True)
    at = {}
    for line, address in re.findall(r"^lines\.c +(\d+) +(0x[0-9a-f]+)(?: +\d+)? +x$", told.stdout, re.MULTILINE):
        at.setdefault(int(address, 16), set()).add(int(line))
    found, before = {}, set()
    for address in sorted(at):
        for line in at[address] - before:
            found.setdefault(line, []).append(address)
        before = at[address]
    return found


def test_lines_are_those_that_objdump_tells(program):
    dwarf = DebugInfo.open(ElfFile.open(str(program)), (), "").dwarf
    wanted = told_by_objdump(program)
    assert {5, 6, 8, 13} <= set(wanted)
    for name in ("lines.c", "folder/lines.c", "./folder/../folder/lines.c", str(program.parent / "folder" / "lines.c")):
        (lines,) = lines_of(dwarf, name).values()
        assert lines == wanted
    assert lines_of(dwarf, "ines.c") == {}
    assert lines_of(dwarf, "other/lines.c") == {}
