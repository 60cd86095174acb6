"""``anyprobe list``: what a program's file has, without running it; and that it is what ``count`` can place."""

import subprocess
import sys

import pytest

import anyprobe
from support.driver import started

pytestmark = pytest.mark.live

PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void early(void) { write(1, "it ran\\n", 7); }
__attribute__((noinline)) int work(int n) { __asm__ volatile(""); return n + 1; }
int main(int argc, char **argv) { return work(argc); }
"""


def listed(*arguments):
    command = [sys.executable, "-m", "anyprobe", "list", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("options", [(), ("-static",), ("-no-pie",)], ids=["dynamic", "static", "fixed"])
def test_functions_of_a_program_are_listed_and_none_of_it_runs(compiled, options):
    told = listed("a.out:work", "a.out:main", compiled("listed.c", "-O1", *options, text=PROGRAM))
    assert (told.returncode, told.stderr) == (0, "")
    assert [line.split(":")[2] for line in told.stdout.splitlines() if "pid:" in line] == ["work", "main"]
    assert "it ran" not in told.stdout


def test_markers_of_a_program_are_listed(compiled):
    told = listed("usdt:*", compiled("marked.c"))
    assert told.returncode == 0
    assert "usdt:" in told.stdout


def test_a_script_is_the_program_that_interprets_it(tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable}\nprint('it ran')\n")
    script.chmod(0o755)
    told = listed("a.out:_start", script)
    assert told.returncode == 0
    assert "it ran" not in told.stdout
    assert ":_start:entry" in told.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [(("-p", "1"), "choose either a running process"), (("/etc/hostname",), "one program, please")],
)
def test_one_target_is_wanted(compiled, more, message):
    told = listed("a.out:work", compiled("listed.c", "-O1", text=PROGRAM), *more)
    assert told.returncode == 2
    assert message in told.stderr


def test_what_is_no_program_is_said_to_be_none(tmp_path):
    path = tmp_path / "library.so"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o644)
    told = listed("a.out:main", path)
    assert told.returncode == 2
    assert f"{path} is no program" in told.stderr


@pytest.mark.parametrize(
    "spec", ["libc:mem*", "libc:strn*%insn", "libc:q*%block", "ld-linux*:strcmp%insn", "libc:a*%return"]
)
def test_list_and_count_refuse_the_same_places(compiled, spec):
    with started(compiled("counts.c")) as target, anyprobe.attach(target.pid) as session:
        listed = session.list(spec)
        session.count(spec)
        counted = session.snapshot()
    assert listed
    refused = {(each.spec, each.address, each.refusal.reason.value) for each in listed if each.refusal is not None}
    assert refused == {(each.spec, each.address, each.reason) for each in counted.refused}
    placed = {(each.spec, each.address) for each in listed if each.refusal is None}
    assert placed == {(each.spec, each.address) for each in counted.sites}
