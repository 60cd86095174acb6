"""Headers of provider files in C and C++ programs: what anyprobe, bpftrace and gdb read is what the programs pass."""

import os
import re
import shutil
import subprocess
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe import Count, cstr, emit, f32, f64
from anyprobe.usdt.header import header
from anyprobe.usdt.providerfile import parse_provider_file
from support.driver import PATIENCE
from support.results import counts

pytestmark = pytest.mark.live
ROUNDS = 20

PROVIDER = """
typedef unsigned int txid;
provider myapp {
    probe transaction-start(txid id, const char *name);
    probe done(int);
    probe nothing();
    probe ints(char, unsigned char, short, uint16_t, long long, bool, mine_t, int);
    probe floats(double d, float f, int after);
    probe twelve(int, int, int, int, int, int, long, long, long, char *, struct thing *, uint8_t);
    probe unasked();
};
"""
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef signed char mine_t;
#include "myapp.h"
#include "myapp.h"
static int counter = 77, asked, unasked;
struct thing { int a; };
void other(int n);
inline __attribute__((always_inline)) static void inlined(int n) { MYAPP_DONE(n); }
__attribute__((noinline)) void fire(int n) {
    struct thing t = {n};
    char text[32];
    snprintf(text, sizeof text, "text %d", n);
    if (MYAPP_TRANSACTION_START_ENABLED()) { asked++; MYAPP_TRANSACTION_START(n, text); }
    if (MYAPP_UNASKED_ENABLED()) { unasked++; MYAPP_UNASKED(); }
    MYAPP_DONE(counter);
    MYAPP_NOTHING();
    MYAPP_INTS(-n, 255 - n, -n * 100, 65535 - n, -n * 10000000000LL, n & 1, -n, 12345);
    MYAPP_FLOATS(n / 4.0, n / 2.0f, n);
    MYAPP_TWELVE(n, n+1, n+2, n+3, n+4, n+5, -n, n+7, n+8, text, &t, n);
    DTRACE_PROBE3(adhoc, thing__here, n, text, (short)-n);
    DTRACE_PROBE(adhoc, empty);
    inlined(n);
    other(n);
    counter++;
}
int main(int argc, char **argv) {
    if (argc > 2) { char line[8]; puts("ready"); fflush(stdout); if (!fgets(line, sizeof line, stdin)) return 1; }
    for (int n = 1; n <= atoi(argv[1]); n++) fire(n);
    printf("%d %d %d\\n", asked, unasked, MYAPP_DONE_ENABLED());
    return 0;
}
"""
OTHER = """
typedef signed char mine_t;
#include "myapp.h"
void other(int n);
void other(int n) { MYAPP_DONE(-n); }
"""
FLAGS = ("-O0", "-O2", "-O2 -static", "-O2 -no-pie", "-Os -flto")


def built(folder, compiler="gcc", flags="-O2", *, link=()):
    """Return the program, of two files that share the probes."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    (folder / "myapp.h").write_text(header(parse_provider_file(PROVIDER, "myapp.d"), "myapp.d"))
    suffix = "cc" if compiler.endswith("++") else "c"
    sources = []
    for name, text in (("program", PROGRAM), ("other", OTHER)):
        path = folder / f"{name}.{suffix}"
        path.write_text(text.replace("void other(int n);", 'extern "C" void other(int n);') if suffix == "cc" else text)
        sources.append(str(path))
    program = folder / "program"
    command = [
        compiler,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        *flags.split(),
        *sources,
        "-o",
        str(program),
        *link,
    ]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return program


@contextmanager
def running(program, rounds):
    """Start the program, and yield a session in it and what has it go to its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([program, str(rounds), "wait"], stdin=pipe, stdout=pipe, text=True) as process:

        def finish():
            process.stdin.write("\n")
            process.stdin.close()
            assert process.wait(PATIENCE) == 0

        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid) as session:
            yield session, finish


def wrapped(value, bits):
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("compiler", ["gcc", "clang", "g++", "clang++"])
def test_arguments_are_what_the_program_passes(tmp_path, compiler, flags):
    texts, done, things = Count("texts"), Count("done"), Count("things")
    with running(built(tmp_path, compiler, flags), ROUNDS) as (session, finish):

        @session.entry("usdt:myapp:transaction-start")
        def on_start(number, text: cstr):
            texts.add(key=(number, text))

        @session.entry("usdt:myapp:done")
        def on_done(value):
            done.add(key=(value,))

        @session.entry("usdt:adhoc:thing-here")
        def on_thing(number, text: cstr, short):
            things.add(key=(number, text, short))

        @session.entry("usdt:myapp:ints")
        def on_ints(arg0, arg1, arg2, arg3, arg4, arg5, arg6, arg7):
            emit("ints", a=arg0, b=arg1, c=arg2, d=arg3, e=arg4, f=arg5, g=arg6, h=arg7)

        @session.entry("usdt:myapp:floats")
        def on_floats(arg0: f64, arg1: f32, arg2):
            emit("floats", a=arg0, b=arg1, c=arg2)

        @session.entry("usdt:myapp:twelve")
        def on_twelve(arg0, arg1, arg2, arg3, arg4, arg5, arg6, arg7, arg8, arg9: cstr, arg11):
            emit("twelve", a=arg0, b=arg1, c=arg2, d=arg3, e=arg4, f=arg5, g=arg6, h=arg7, i=arg8, j=arg11)

        finish()
        rows = {name: [tuple(row[each].item() for each in rows.dtype.names if len(each) == 1) for row in rows]
                for name, _, rows in session.handling.records(final=True)}  # fmt: skip
    numbers = range(1, ROUNDS + 1)
    assert counts(texts) == {(n, f"text {n}"): 1 for n in numbers}
    assert counts(things) == {(n, f"text {n}", -n): 1 for n in numbers}
    assert counts(done) == {(value,): 1 for n in numbers for value in (76 + n, n, -n)}
    assert rows_of(rows, "ints") == [
        (wrapped(-n, 8), 255 - n, wrapped(-n * 100, 16), 65535 - n, -n * 10**10, n & 1, -n, 12345) for n in numbers
    ]
    assert rows_of(rows, "floats") == [(n / 4, n / 2, n) for n in numbers]
    assert rows_of(rows, "twelve") == [(n, n + 1, n + 2, n + 3, n + 4, n + 5, -n, n + 7, n + 8, n) for n in numbers]


def rows_of(rows, name):
    (found,) = [value for key, value in rows.items() if name in str(key)]
    return found


def test_only_what_is_listened_to_is_asked_for(tmp_path):
    program = built(tmp_path)
    with running(program, 5) as (session, finish):
        session.count("usdt:myapp:transaction-start")
        finish()
        (site,) = session.snapshot().sites
        assert site.hits == 5
    assert subprocess.run([program, "5"], capture_output=True, text=True).stdout == "0 0 0\n"


def test_without_support_the_macros_do_nothing(tmp_path):
    program = built(tmp_path, "gcc", "-O2 -DANYPROBE_NO_USDT -Wno-unused")
    assert "stapsdt" not in subprocess.run(["readelf", "-n", program], capture_output=True, text=True).stdout
    assert subprocess.run([program, "3"], capture_output=True, text=True).stdout == "0 0 0\n"


def test_the_notes_are_those_of_sys_sdt_h(tmp_path):
    """The same provider file by SystemTap's dtrace: names, semaphores and sizes are the same."""
    if not shutil.which("dtrace") or not os.path.exists("/usr/include/x86_64-linux-gnu/sys/sdt.h"):
        pytest.skip("systemtap-sdt-dev is not installed")

    def notes(program):
        shown = subprocess.run(["readelf", "-nW", program], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"Provider: (.*)\n\s+Name: (.*)\n.*Semaphore: (\w+)\n\s+Arguments: ?(.*)", shown)
        return sorted(
            (provider, name, int(guard, 16) > 0, tuple(re.findall(r"-?\d+(?=@)", operands)))
            for provider, name, guard, operands in found
        )

    own = notes(built(tmp_path))
    declarations = tmp_path / "myapp.d"
    declarations.write_text(PROVIDER.replace("transaction-start", "transaction__start"))
    for option, result in (("-h", "myapp.h"), ("-G", "probes.o")):
        command = ["dtrace", option, "-s", str(declarations), "-o", str(tmp_path / result)]
        subprocess.run(command, check=True, capture_output=True)
    program = tmp_path / "program.c"
    program.write_text(
        re.sub(r"DTRACE_PROBE.*", "", program.read_text())
    )  # theirs want semaphores that nobody declares
    command = ["gcc", "-O2", "-w", str(program), str(tmp_path / "other.c"), str(tmp_path / "probes.o")]
    subprocess.run([*command, "-o", str(tmp_path / "theirs")], check=True, capture_output=True)
    theirs = notes(tmp_path / "theirs")
    assert [each[:3] for each in own if each[0] == "myapp"] == [each[:3] for each in theirs if each[0] == "myapp"]
    sizes = [{each[1]: each[3] for each in found} for found in (own, theirs)]
    assert sizes[0]["transaction__start"] == ("4", "8")
    assert sizes[1]["twelve"][9:11] == sizes[0]["twelve"][9:11] == ("8", "8")


def test_gdb_reads_the_arguments(tmp_path):
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    commands = ["info probes stap myapp", "break -probe-stap myapp:twelve", "run"]
    commands += [f"print $_probe_arg{n}" for n in (0, 6, 8, 11)] + ["print (char *)$_probe_arg9"]
    commands += ["break -probe-stap myapp:ints", "continue", *(f"print $_probe_arg{n}" for n in range(8))]
    words = [word for command in commands for word in ("-ex", command)]
    said = subprocess.run(
        ["gdb", "-batch", "-nx", *words, "--args", str(built(tmp_path)), "2"],
        capture_output=True, text=True, timeout=PATIENCE,
    ).stdout  # fmt: skip
    assert len(re.findall(r"^stap +myapp +done ", said, re.MULTILINE)) == 3, said
    values = re.findall(r"^\$\d+ = (.*)$", said, re.MULTILINE)
    assert values[:4] == ["1", "-1", "9", "1"], said
    assert "text 1" in values[4]
    plain = [int(value.split()[0]) for value in values[5:]]
    assert plain == [-2, 253, -200, 65533, -20000000000, 0, -2, 12345], said


@pytest.mark.root
def test_bpftrace_reads_the_arguments(tmp_path):
    if not shutil.which("bpftrace") or os.getuid():
        pytest.skip("bpftrace is not installed, or not permitted")
    program = built(tmp_path)
    text = (
        f'usdt:{program}:myapp:ints {{ printf("i %d %d %d %d %d\\n", arg0, arg1, arg2, arg3, arg5); }}'
        f' usdt:{program}:myapp:twelve {{ printf("t %d %d %d\\n", arg0, arg1, arg5); }}'
    )
    command = ["bpftrace", "-e", text, "-c", f"{program} 3"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout
    lines = [line for line in said.splitlines() if line[:2] in ("i ", "t ")]
    expected = [
        line
        for n in range(1, 4)
        for line in (f"i {-n} {255 - n} {-n * 100} {65535 - n} {n & 1}", f"t {n} {n + 1} {n + 5}")
    ]
    assert lines == expected, said
