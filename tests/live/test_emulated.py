"""Programs that an emulator or a translator runs are refused by name, before anything is written."""

import os
import shutil
import subprocess
import sys

import pytest

from live.test_command_line import anyprobe
from support.driver import build, wait_until

SOURCE = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) long late(long x) { __asm__ volatile("" : "+r"(x)); return x * 3; }
int main(void) {
    char byte;
    long sum = 0;
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) == 1) sum += late(1);
    printf("%ld\\n", sum);
    return 0;
}
"""
EMULATORS = {
    "valgrind": ["valgrind", "--quiet"],
    "callgrind": ["valgrind", "--tool=callgrind", "--quiet"],
    "qemu-x86_64": ["qemu-x86_64"],
}


@pytest.mark.parametrize("name", EMULATORS)
def test_by_name(name, tmp_path):
    if not shutil.which(EMULATORS[name][0]):
        pytest.skip(f"needs {EMULATORS[name][0]}")
    program = build("late.c", text=SOURCE)
    with subprocess.Popen(
        [*EMULATORS[name], program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        said = "qemu-x86_64" if "qemu" in name else "valgrind"
        for spec in ("late", "a.out:*", "libc:read"):
            found = anyprobe("count", spec, "-p", str(process.pid), "--for", "0.2")
            assert found.returncode == 1
            assert f"is run by {said}, not by the processor" in found.stderr
        doctor = anyprobe("doctor", "-p", str(process.pid))
        assert f"run by {said}" in doctor.stdout
        output, _ = process.communicate("xxx")
        assert output == "9\n"
        assert process.returncode == 0


def test_valgrind_before_it_has_translated_anything():
    """Its tool is a static program; the client's libraries are not mapped yet."""
    if not shutil.which("valgrind"):
        pytest.skip("needs valgrind")
    program = build("late.c", "-static", text=SOURCE)
    with subprocess.Popen(["valgrind", "--quiet", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_until(lambda: "valgrind" in anyprobe("doctor", "-p", str(process.pid)).stdout, "valgrind has begun")
        found = anyprobe("count", "late", "-p", str(process.pid), "--for", "0.2")
        assert "is run by valgrind" in found.stderr
        process.communicate(b"x")
        assert process.returncode == 0


VALGRIND_TOOL = "/usr/libexec/valgrind/memcheck-amd64-linux"
COMMANDS = {
    "qemu-x86_64": (shutil.which("qemu-x86_64"), "qemu-x86_64"),
    "qemu-aarch64": (shutil.which("qemu-aarch64"), "qemu-aarch64"),
    "valgrind's launcher": (shutil.which("valgrind.bin"), "valgrind"),
    "valgrind's tool": (VALGRIND_TOOL if os.path.exists(VALGRIND_TOOL) else None, "valgrind"),
}


@pytest.mark.parametrize("renamed", [False, True], ids=["by name", "renamed"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_an_emulator_is_not_run(name, renamed, tmp_path):
    """A copy under another name is known by what it contains."""
    path, said = COMMANDS[name]
    if path is None:
        pytest.skip(f"needs {name}")
    if renamed:
        path = shutil.copy(path, tmp_path / "renamed")
    mark = tmp_path / "mark"
    for verb in ("count", "time", "trace") if name == "qemu-x86_64" else ("count",):
        found = anyprobe(verb, "libc:malloc", "--", path, "/bin/touch", str(mark))
        assert found.returncode == 1
        assert f"is run by {said}, not by the processor" in found.stderr
    assert not mark.exists()


def test_a_renamed_emulator_is_refused_on_attach(tmp_path):
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("needs qemu-x86_64")
    path = shutil.copy(emulator, tmp_path / "renamed")
    with subprocess.Popen(
        [path, build("late.c", text=SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        found = anyprobe("count", "libc:read", "-p", str(process.pid), "--for", "0.2")
        assert (found.returncode, "is run by qemu-x86_64" in found.stderr) == (1, True)
        assert process.communicate(b"xxx")[0] == b"9\n"


def test_a_command_that_becomes_an_emulated_program():
    """What it was is counted until then, and what it is now is said."""
    if not shutil.which("valgrind"):
        pytest.skip("needs valgrind")
    program = build("late.c", "-static", text=SOURCE)
    argv = [sys.executable, "-m", "anyprobe", "count", "libc:execve", "--", "valgrind", "--quiet", str(program)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        output, errors = process.communicate(b"xxx")
    assert (process.returncode, output) == (0, b"9\n")
    assert b"another anyprobe" not in errors
    assert b"could not be asked" not in errors


def test_a_command_that_executes_another_program(tmp_path):
    """Nothing else has removed its probes, and nothing is done in the new program."""
    results = tmp_path / "results"
    argv = [sys.executable, "-m", "anyprobe", "count", "libc:execve", "--every", "0.1", "-o", str(results)]
    with subprocess.Popen(
        [*argv, "--", "sh", "-c", "exec /bin/cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: results.exists() and results.read_text().count(" at 1 site in ") > 2, "it was looked at")
        _, errors = process.communicate("")
    assert process.returncode == 0
    assert "another anyprobe" not in errors
    assert "could not be asked" not in errors
    assert "): 1 hit at 1 site" in results.read_text()  # of the whole, after the intervals
