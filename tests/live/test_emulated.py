"""Programs that an emulator or a translator runs are refused by name, before anything is written."""

import shutil
import subprocess

import pytest

from live.driver import build, wait_until
from live.test_command_line import anyprobe

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
