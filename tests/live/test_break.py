"""``anyprobe break``: the right hit waits, a debugger sees what it sees at a breakpoint of its own, and all goes on."""

import json
import re
import shutil
import signal
import subprocess

import pytest

from anyprobe.cli import main
from live.test_command_line import anyprobe, start
from live.test_inject import text_of as code_of
from support.driver import build, wait_until

pytestmark = pytest.mark.live
REGISTERS = "rax rbx rcx rdx rsi rdi rbp r8 r9 r10 r11 r12 r13 r14 r15"
needs_gdb = pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")

PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
static volatile long sink, ticks;
KEPT long work(long n, long m) { sink += n; if (n != m) abort(); return 2 * n + 1; }
KEPT long outer(long n) { return work(n, n) + 1; }
KEPT void idle(void) { pause(); }
static void *sleeper(void *unused) { for (;;) idle(); return unused; }
static void tick(int number) { ticks++; sink += number; }
int main(int argc, char **words) {
    long count = atol(words[2]);
    pthread_t thread;
    if (strchr(words[1], 't')) pthread_create(&thread, 0, sleeper, 0);
    if (strchr(words[1], 's')) {
        struct itimerval every = {{0, 1000}, {0, 1000}};
        signal(SIGPROF, tick);
        setitimer(ITIMER_PROF, &every, 0);
    }
    for (long i = 1; i <= count; i++) {
        if (outer(i) != 2 * i + 2) abort();
        if (strchr(words[1], 'w')) usleep(2000);
    }
    printf("done %s\\n", ticks ? "with ticks" : "");
}
"""


@pytest.fixture(scope="module")
def program():
    return build("broken.c", "-O1", "-g", "-pthread", text=PROGRAM)


@pytest.fixture
def endless(program):
    """A process that calls five hundred times a second, with another thread."""
    with subprocess.Popen([program, "tw", "100000000"], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: threads_of(process.pid) == 2, "both threads are there")
            yield process.pid
            assert process.poll() is None, "the target died"
        finally:
            process.kill()


def threads_of(pid):
    return int(status(pid, "Threads"))


def status(pid, name):
    with open(f"/proc/{pid}/status") as lines:
        return next(line.split(":")[1].strip() for line in lines if line.startswith(f"{name}:"))


def rows(*arguments):
    found = anyprobe("break", *arguments, "--json")
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


def gdb(*commands, program=()):
    words = ["gdb", "-q", "-nx", "-batch", "-ex", "set debuginfod enabled off"]
    for each in commands:
        words += ["-ex", each]
    return subprocess.run(
        [*words, *program], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    ).stdout


def test_of_ten_million_calls_the_one_is_met_for_which_the_condition_holds(program):
    """And no other one: the second time is not waited for in vain, as the program ends."""
    words = ("a.out:work", "--when", "n == 7654321", "--count", "2", "--json")
    found = anyprobe("break", *words, "--", program, "q", "10000000")
    assert found.returncode == 0
    assert "done" in found.stdout
    (row,) = [json.loads(line) for line in found.stderr.splitlines() if line.startswith("{")]
    assert row["spec"].endswith(":work:entry")
    assert [re.sub(r"\+.*", "", each) for each in row["stack"][:3]] == ["broken:work", "broken:outer", "broken:main"]


@needs_gdb
def test_after_so_many_and_so_often(program, tmp_path):
    words = ("a.out:work", "--when", "n % 10 == 0", "--after", "3", "--count", "2", "--do", "core")
    found = anyprobe("break", *words, "--core-file", str(tmp_path / "core"), "--", program, "q", "1000")
    assert found.returncode == 0, found.stderr
    cores = sorted(tmp_path.glob("core.*"))
    seen = [frames(gdb("bt", program=[program, each]))[0] for each in cores]
    assert [re.search(r"n=n@entry=(\d+)", each)[1] for each in seen] == ["40", "50"]
    assert "done" in found.stdout


@needs_gdb
def test_a_debugger_sees_what_it_sees_at_its_own_breakpoint(program, tmp_path):
    shown = ("bt", "x/3i $pc", f"info registers {REGISTERS}")
    own = gdb("break *work if $rdi == 300", "run", *shown, program=["--args", program, "q", "400"])
    core = tmp_path / "core"
    words = ("a.out:work", "--when", "n == 300", "--do", "core", "--core-file", str(core))
    found = anyprobe("break", *words, "--", program, "q", "400")
    assert found.returncode == 0, found.stderr
    (written,) = tmp_path.glob("core.*")
    ours = gdb(*shown, program=[program, written])
    assert frames(ours) == frames(own)
    assert [each.split()[0] for each in frames(ours)] == ["work", "outer", "main"]
    assert instructions(ours) == instructions(own)
    assert registers(ours) == registers(own)
    assert "done" in found.stdout  # it has gone on


@needs_gdb
def test_flags_are_those_of_the_comparison_before(program, tmp_path):
    listed = gdb("disassemble work", program=[program])
    offset = int(re.search(r"<\+(\d+)>:\s+jn?e", listed)[1])
    shown = ("x/1i $pc", f"info registers {REGISTERS} eflags")
    own = gdb(
        f"break *((char *)work + {offset}) if $rdi == 300", "run", *shown, program=["--args", program, "q", "400"]
    )
    core = tmp_path / "core"
    words = (f"a.out:work+{offset:#x}", "--when", "ctx.regs.rdi == 300", "--do", "core", "--core-file", str(core))
    found = anyprobe("break", *words, "--", program, "q", "400")
    assert found.returncode == 0, found.stderr
    (written,) = tmp_path.glob("core.*")
    ours = gdb(*shown, program=[program, written])
    assert instructions(ours) == instructions(own) != []
    assert registers(ours) == registers(own)
    assert registers(ours)["eflags"] == "0x246"  # equal
    assert "done" in found.stdout


def frames(text):
    """Return the last backtrace, without addresses on the stack, which are others in each run."""
    found = re.findall(r"^#(\d+) .*?(\w+ \(.*\) at .*:\d+)$", text, re.MULTILINE)
    begins = max((at for at, (number, _) in enumerate(found) if number == "0"), default=0)
    return [re.sub("0x7f\\w+", "…", each) for _, each in found[begins:]]


def instructions(text):
    return re.findall(r"<(work[+\d]*)>:\s+(\S+)", text)


def registers(text):
    """Return those that hold no addresses, which are others in each run."""
    found = dict(re.findall(r"^(r\w+|eflags)\s+(0x\w+)", text, re.MULTILINE))
    return {name: value for name, value in found.items() if int(value, 16) < 1 << 32}


def test_the_stacks_of_all_threads(endless):
    (row,) = rows("a.out:work", "-p", str(endless))
    assert row["tid"] == row["pid"] == endless
    (other,) = row["threads"]
    assert any(each.startswith("broken:idle") for each in other["stack"])
    assert any(each.startswith("broken:sleeper") for each in other["stack"])


def test_a_snapshot_has_registers_and_memory(program):
    given = ("--do", "snapshot", "--when", "n == 77", "--json", "-o", "/dev/stdout")
    run = anyprobe("break", "a.out:work", *given, "--", program, "p", "100")
    (row,) = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    registers = row["registers"]
    assert (registers["rdi"], registers["rsi"], registers["rip"]) == (77, 77, row["pc"])
    assert len(registers) == 17
    memory = bytes.fromhex(row["memory"])
    assert len(memory) == 256
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    outer, work = (int(re.search(rf"^(\w+) T {name}$", symbols, re.MULTILINE)[1], 16) for name in ("outer", "work"))
    back = int.from_bytes(memory[:8], "little")  # where outer goes on
    assert 0 < back - (row["pc"] - work + outer) < 32


def test_a_script_runs_at_each_hit(program, tmp_path):
    script = tmp_path / "at_hits.py"
    script.write_text(
        "kept['seen'] = kept.get('seen', 0) + hit.regs.rdi\nprint('seen', kept['seen'], str(hit.stack).split()[0])\n"
    )
    given = ("--do", "script", "--script", str(script), "--when", "n % 10 == 0", "--count", "3")
    run = anyprobe("break", "a.out:work", *given, "--", program, "p", "100")
    found = re.findall(r"seen (\d+) (\S+)", run.stdout)
    assert found == [("10", "broken:work"), ("30", "broken:work"), ("60", "broken:work")]
    assert "done" in run.stdout


def test_a_script_that_fails_is_shown_and_the_program_goes_on(program, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("\n1 / 0\n")
    run = anyprobe("break", "a.out:work", "--do", "script", "--script", str(script), "--", program, "p", "100")
    assert run.returncode == 2
    assert f'"{script}", line 2' in run.stderr
    assert "ZeroDivisionError" in run.stderr
    assert main(["break", "a.out:work", "--do", "script", "--", str(program), "p", "1"]) == 2


def test_each_hit_is_met_once(endless):
    """A thread that goes on from where it was shown arrives there once more, which is no other hit."""
    found = rows("a.out:outer", "--do", "stop", "--count", "1", "--for", "0.5", "-p", str(endless))
    assert len(found) == 1
    wait_until(lambda: status(endless, "State")[0] != "T", "it goes on")


@needs_gdb
def test_it_stays_stopped_until_a_debugger_has_left(endless):
    before = code_of(endless)
    with start("break", "a.out:work", "--do", "stop", "-p", str(endless)) as breaking:
        wait_until(lambda: status(endless, "State")[0] == "T", "it is stopped")
        assert code_of(endless) == before
        seen = gdb("bt", program=["-p", str(endless)])
        assert [each.split()[0] for each in frames(seen)] == ["work", "outer", "main"]
        assert breaking.wait(60) == 0
    wait_until(lambda: status(endless, "State")[0] != "T", "it goes on")
    assert code_of(endless) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_the_program_goes_on(endless, number):
    before = code_of(endless)
    with start("break", "a.out:work", "--do", "stop", "-p", str(endless)) as breaking:
        wait_until(lambda: status(endless, "State")[0] == "T", "it is stopped")
        breaking.send_signal(number)
        breaking.wait(60)
    wait_until(lambda: status(endless, "State")[0] in "SR", "it goes on")
    assert anyprobe("detach", "-p", str(endless)).returncode == 0
    assert code_of(endless) == before


def test_when_it_is_killed_while_a_thread_waits_that_goes_on(endless):
    """The hit that is looked at for longest waits in generated code, until the kernel wakes it."""
    with start("break", "a.out:work", "--count", "1000000", "-p", str(endless)) as breaking:
        assert breaking.stdout.readline()
        breaking.kill()
        breaking.stdout.read()
    assert anyprobe("detach", "-p", str(endless)).returncode == 0
    found = anyprobe("count", "a.out:work", "--for", "0.3", "--json", "-p", str(endless))
    assert json.loads(found.stdout)["sites"][0]["hits"] > 10


@needs_gdb
def test_gdb_has_the_terminal_and_the_thread(endless):
    command = [*start_words(), "break", "a.out:work", "--do", "gdb", "-p", str(endless)]
    found = subprocess.run(command, input="bt\ndetach\nquit\n", capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert re.findall(r"^#[12] .* in (\w+) \(", found.stdout, re.MULTILINE) == ["outer", "main"]
    wait_until(lambda: status(endless, "State")[0] in "SR", "it goes on")


def start_words():
    import sys

    return [sys.executable, "-m", "anyprobe"]


def test_signals_come_while_conditions_are_false(program):
    found = anyprobe("break", "a.out:work", "--when", "n < 0", "--", program, "s", "20000000")
    assert found.returncode == 0
    assert "done with ticks" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.out:work", "--when", "n =="), "invalid syntax"),
        (("a.out:work", "--when", "nothing"), "nothing is not defined"),
        (("a.out:work", "--when", "latency_ns > 3"), "one moment"),
        (("a.out:work", "--do", "nothing"), "--do"),
        (("a.out:wrok",), "no function"),
        (("kernel::vfs_read",), "the kernel cannot be stopped"),
    ],
)
def test_what_means_nothing_is_told_before_anything_changes(program, capfd, arguments, message):
    assert main(["break", *arguments, "--leave", "--", str(program), "q", "3"]) == 2
    assert message in capfd.readouterr().err


def test_without_gdb_it_is_said_what_is_missing(program, capfd, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["break", "a.out:work", "--do", "gdb", "--", str(program), "q", "3"]) == 1
    assert "gdb, which is not installed" in capfd.readouterr().err
