"""Libraries and programs whose code the loader relocates: what it writes is left alone, everything else is probed."""

import json
import subprocess

import pytest

import anyprobe
from live.test_command_line import anyprobe as command

LIBRARY = """
extern long shared_var; long shared_var = 41;
static long table[4] = {1, 2, 3, 4};
long calls;
__attribute__((noinline)) long *where(void) { return &shared_var; }
__attribute__((noinline)) long textrel_work(long x) { calls++; return *where() + table[x & 3] + x; }
__attribute__((noinline)) long plain_work(long x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
"""
MAIN = """
#include <stdio.h>
long textrel_work(long); long plain_work(long); extern long calls;
int main(void) {
    long sum = 0;
    for (long i = 0; i < 1000; i++) sum += textrel_work(i) + plain_work(i);
    printf("%ld %ld\\n", sum, calls);
    fflush(stdout);
    getchar();
    for (long i = 0; i < 1000; i++) sum += textrel_work(i) + plain_work(i);
    printf("%ld %ld\\n", sum, calls);
    return 0;
}
"""
FIRST, SECOND = "1043500 1000\n", "2087000 2000\n"
FLAGS = ("-O2", "-Os", "-O0")


@pytest.fixture(scope="module", params=FLAGS)
def program(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("textrel")
    flags = (request.param, "-fno-pic", "-mcmodel=large")
    for source, name, more in (
        (LIBRARY, "libtextrel.so", ("-shared", "-Wl,-z,notext")),
        (MAIN, "textrel", (f"-L{folder}", "-ltextrel", f"-Wl,-rpath,{folder}", "-pie", "-Wl,-z,notext")),
    ):
        path = folder / f"{name}.c"
        path.write_text(source)
        subprocess.run(["gcc", *flags, path, "-o", folder / name, *more], check=True, capture_output=True)
    return folder / "textrel"


@pytest.mark.parametrize("kind", ["entry", "return", "insn"])
def test_started(program, kind, tmp_path):
    """Armed before the loader relocates."""
    results = tmp_path / "results.json"
    specs = [f"pid:{module}:*:{kind}" for module in ("libtextrel", "a.out")]
    found = command("count", *specs, "--json", "-o", str(results), "--exit-status", "--", str(program), input="\n")
    assert (found.returncode, found.stdout) == (0, FIRST + SECOND)
    sites = json.loads(results.read_text())["sites"]
    assert {site["hits"] for site in sites if site["function"] == "plain_work" and site["armed"]} == {2000}


@pytest.mark.parametrize("kind", ["entry", "return", "insn"])
def test_attached(program, kind):
    """Memory differs from the file where the loader has relocated it; that is no other patcher."""
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == FIRST
        with anyprobe.attach(process.pid) as session:
            session.count(f"pid:libtextrel:*:{kind}")
            output, _ = process.communicate("\n")
            snapshot = session.snapshot()
        assert (process.returncode, output) == (0, SECOND)
        reasons = {refused.reason for refused in snapshot.refused}
        assert "memory-differs-from-file" not in reasons
        if kind == "insn":
            assert "text-relocation" in reasons
        assert {site.hits for site in snapshot.sites if site.function == "plain_work"} == {1000}
