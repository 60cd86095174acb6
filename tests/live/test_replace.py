"""Functions that are replaced while a program runs, in the situations of libpulp's tests, and what is left of that."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import anyprobe
from anyprobe import SharedObject
from anyprobe.probes.providers.function.replacing.loading import load
from anyprobe.target.system.gateway import FaultPlan, faults
from support.driver import build, wait_until
from support.dying_controller import dies

pytestmark = pytest.mark.live

SOURCE = r"""
#include <pthread.h>
long (*anyprobe_original_price)(long);
long (*anyprobe_original_fee)(long);
long (*anyprobe_original_depth)(long);
long *anyprobe_address__ZL5pipes;
static __thread long own = 40;
long new_price(long n) { return anyprobe_original_price(n) + 1000; }
long new_fee(long n) { return anyprobe_original_fee(n + 1); } /* by a jump */
long new_depth(long n) { return n <= 0 ? 0 : (5 * anyprobe_original_depth(n - 1) + 2) % 1001; }
long new_counted(long n) { return own += n; }
long new_crossing(long n) { return anyprobe_address__ZL5pipes ? n + 2000 : 0; }
"""
RELIANT = r"""
#include <stdio.h>
static long counter;
__attribute__((noinline)) static void bump(void) { if (++counter & 1) __asm__ volatile("" ::: "memory"); }
__attribute__((noipa)) long kept_across(long a, long b, long c, long d) {
    bump(); bump();
    return a + 3 * b + 5 * c + 7 * d;
}
__attribute__((noipa)) long other(void) { return 7; }
int main(int n, char **v) { puts("ready"); fflush(stdout); getchar(); return v ? kept_across(n, 2, 3, 4) : other(); }
"""
NEW = ("price", "fee", "depth", "counted", "crossing")
CONTROLLER = """
import sys, time
import anyprobe
session = anyprobe.attach(int(sys.argv[1]), unsafe=True)
session.replace({"a.out:price": anyprobe.SharedObject(sys.argv[2], "new_price"), "a.out:fee": "a.out:fee_new"})
print("replaced", flush=True)
time.sleep(600)
"""


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.said()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def maps(self) -> str:
        return Path(f"/proc/{self.pid}/maps").read_text()

    def text(self) -> bytes:
        """Return the program's own text as it is in memory."""
        line = next(each for each in self.maps().splitlines() if " r-xp " in each and each.endswith("/replaced"))
        low, high = (int(each, 16) for each in line.split()[0].split("-"))
        with open(f"/proc/{self.pid}/mem", "rb") as memory:
            memory.seek(low)
            return memory.read(high - low)


@contextmanager
def running() -> Iterator[Program]:
    path = build("replaced.cpp")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        program = Program(process)
        assert program.said() == "ready"
        try:
            yield program
        finally:
            process.kill()


@pytest.fixture
def program() -> Iterator[Program]:
    with running() as made:
        yield made


@pytest.fixture(scope="module")
def fix() -> str:
    return os.fspath(SharedObject.compiled(SOURCE, "new_price").path)


@pytest.fixture(scope="module")
def throwing(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("throwing") / "throwing.so"
    source = path.with_suffix(".cpp")
    source.write_text(
        'extern "C" { long (*anyprobe_original_passes)(long); struct Noted { ~Noted(); }; long noted; }\n'
        "Noted::~Noted() { noted++; }\n"
        'extern "C" long new_passes(long n) {\n'
        "    Noted each; if (n % 7 == 1) throw n; return anyprobe_original_passes(n); }\n"
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-O2", "-o", path, source], check=True)
    return os.fspath(path)


def depth_of(n: int, *, new: bool = False, replaced: bool = False) -> int:
    """Return what a recursive function returns; replaced, the new one calls the old one, which calls the new one."""
    if n <= 0:
        return 0
    inner = depth_of(n - 1, new=replaced and not new, replaced=replaced)
    return (5 * inner + 2 if new else 3 * inner + 1) % 1001


def test_a_set_is_replaced_and_taken_back(program):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        with session.replace({"a.out:price": "a.out:price_new", "a.out:fee": "a.out:fee_new"}) as replaced:
            assert len(replaced) == 2
            assert replaced.active
            assert "a.out:price by" in repr(replaced)
            assert program.ask("p5") == "100 15"
            assert program.ask("f6") == "120 16", "in a fork child"
        assert (replaced.active, program.text()) == (False, before)
        assert program.ask("p5") == "10 6"
        again = session.replace({"a.out:price": "a.out:price_new", "a.out:fee": "a.out:fee_new"}, when_quiet=True)
        assert program.ask("p5") == "100 15"
        again.revert(when_quiet=True)
        assert program.ask("p5") == "10 6"
        session.replace("a.out:fee", "a.out:fee_twice")
        assert program.ask("p5") == "10 6001", "it calls what it replaces"
    assert (program.ask("p5"), program.text()) == ("10 6", before)
    assert "memfd:anyprobe" not in program.maps()


def test_all_of_a_set_or_nothing(program):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        for pairs in (
            {"a.out:price": "a.out:price_new", "a.out:straddling": "a.out:crossing_new"},
            {"a.out:straddling": "a.out:crossing_new", "a.out:price": "a.out:price_new"},
        ):
            with pytest.raises(anyprobe.SiteRefused, match=r"straddling.*nothing was replaced"):
                session.replace(pairs)
            assert (program.text(), session.probes) == (before, [])
        assert program.ask("p5") == "10 6"
        with pytest.raises(anyprobe.SpecError, match="no function 'pric'"):
            session.replace({"a.out:price": "a.out:price_new", "a.out:pric": "a.out:price_new"})
        with pytest.raises(anyprobe.UsageError, match="itself replaced"):
            session.replace({"a.out:price": "a.out:fee", "a.out:fee": "a.out:price"})
        assert program.text() == before
        session.replace("a.out:price", "a.out:price_new")
        for pair, text in (
            (("a.out:price", "a.out:fee"), "replaced already"),
            (("a.out:fee", "a.out:price"), "itself replaced"),
            (("a.out:price_new", "a.out:fee"), "cannot be replaced itself"),
            (({}, None), "at least one"),
            (("a.out:fee", None), "what replaces it"),
        ):
            with pytest.raises(anyprobe.UsageError, match=text):
                session.replace(*pair)
        assert program.ask("p5") == "100 6"


@pytest.mark.parametrize(
    ("line", "name", "there", "old", "new"),
    [
        ("l3", "leaf", "leaf_new", 6, 14),
        ("x3", "crossing", "crossing_new", 29, 1010),
        ("t2", "counted", "counted_new", 7, 205),
        ("d9", "depth", "depth_new", depth_of(9), depth_of(9, new=True, replaced=True)),
    ],
    ids=["red zone", "two pages", "thread-local", "recursion"],
)
def test_situations(program, line, name, there, old, new):
    with running() as other:
        assert int(other.ask(line)) == old
    with anyprobe.attach(program.pid, unsafe=True) as session, session.replace(f"a.out:{name}", f"a.out:{there}"):
        assert int(program.ask(line)) == new


def test_an_exception_passes_through_what_was_replaced(program, throwing):
    plain = sum(1_000_000 if n % 5 == 0 else 3 * n for n in range(100))
    assert int(program.ask("e100")) == plain
    with anyprobe.attach(program.pid, unsafe=True) as session:
        with session.replace("a.out:passes", "a.out:passes_new"):
            assert int(program.ask("e100")) == sum(1_000_000 if n % 5 == 0 else 7 * n for n in range(100))
        with session.replace("a.out:passes", SharedObject(throwing, "new_passes")):
            expected = sum(1_000_000 if n % 5 == 0 or n % 7 == 1 else 3 * n for n in range(100))
            assert int(program.ask("e100")) == expected
            (loaded,) = (each for each in session.objects.objects if each.path == throwing)
            noted = loaded.image.dynamic_table.value_of("noted")
            seen = int.from_bytes(session.process.mem.read(noted + loaded.bias, 8), "little")
            assert seen == 100, "destructors have run, of thrown calls too"
    assert int(program.ask("e100")) == plain


def test_a_function_of_a_shared_object_is_loaded_and_calls_what_it_replaces(program, fix):
    before = program.text()

    def new(name: str) -> SharedObject:
        return SharedObject(fix, f"new_{name}")

    with anyprobe.attach(program.pid, unsafe=True) as session:
        with session.replace({f"a.out:{name}": new(name) for name in NEW}, when_quiet=True):
            assert program.ask("p5") == "1010 7"
            assert program.ask("f6") == "1012 8"
            assert program.ask("t2") == "42"
            assert program.ask("x2") == str(2 + 2000 + 7)
            assert int(program.ask("d9")) == depth_of(9, new=True, replaced=True)
        assert (program.ask("p5"), program.text()) == ("10 6", before)
        session.replace("a.out:price", new("price"))
        assert program.ask("p5") == "1010 6"
    assert (program.ask("p5"), program.text()) == ("10 6", before)
    assert fix in program.maps(), "it stays: a thread may be in it"
    assert "memfd:anyprobe" not in program.maps()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        session.replace("a.out:price", new("price"))
        assert program.ask("p5") == "1010 6"


def test_shared_objects_that_cannot_be_loaded(program, tmp_path):
    text = tmp_path / "text.so"
    text.write_text("no object")
    lost = SharedObject.compiled("void *anyprobe_address_nothing;\nlong f(void) { return 0; }", "f")
    good = SharedObject.compiled("long f(void) { return 1; }", "f")
    needy = SharedObject.compiled("long nowhere(void);\nlong f(void) { return nowhere(); }", "f")
    cases = [
        (SharedObject(text, "f"), anyprobe.UsageError, "not an ELF file"),
        (SharedObject(tmp_path / "none.so", "f"), anyprobe.UsageError, "No such file"),
        (SharedObject("/bin/true", "f"), anyprobe.UsageError, "no shared object"),
        (SharedObject(needy.path, "g"), anyprobe.UsageError, "has no function g"),
        (needy, anyprobe.UnsupportedTarget, "needs nowhere"),
        (lost, anyprobe.UnsupportedTarget, "replaced has no nothing"),
    ]
    with anyprobe.attach(program.pid, unsafe=True) as session:
        for by, error, words in cases:
            with pytest.raises(error, match=words):
                session.replace("a.out:price", by)
        with pytest.raises(anyprobe.UsageError, match="functions, one of a shared object replaces one"):
            session.replace("a.out:p*", needy)
        with pytest.raises(anyprobe.SpecError, match="nothing_new"):
            session.replace({"a.out:price": good, "a.out:fee": "a.out:nothing_new"})
        assert os.fspath(good.path) not in program.maps(), "not before all is known to make sense"
        assert program.ask("p5") == "10 6"
    with pytest.raises(anyprobe.AnyprobeError, match="cannot be compiled"):
        SharedObject.compiled("long f(", "f")
    path = build("static_program.c", "-static")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            linked = pytest.raises(anyprobe.UnsupportedTarget, match="statically linked")
            with anyprobe.attach(process.pid, unsafe=True) as session, linked:
                session.replace("a.out:main", good)
        finally:
            process.kill()


def test_an_object_is_loaded_while_all_threads_allocate(program, fix, tmp_path):
    """Each of them holds the allocator's lock now and then, which the loader needs, too."""
    copies = [shutil.copy(fix, tmp_path / f"fix{number}.so") for number in range(5)]
    with anyprobe.attach(program.pid, unsafe=True) as session:
        program.tell("m1500")
        for copy in copies:
            with session.replace("a.out:price", SharedObject(copy, "new_price")):
                pass
        assert program.said() == "allocated"
        session.replace("a.out:price", SharedObject(copies[-1], "new_price"))
        assert program.ask("p5") == "1010 6"


def test_nothing_is_loaded_into_a_program_that_filters_its_calls(program, fix):
    """The loader's calls would kill it, if its controller died meanwhile."""
    assert program.ask("s") == "0"
    with anyprobe.attach(program.pid, unsafe=True) as session:
        with pytest.raises(anyprobe.UnsupportedTarget, match="filters its system calls"):
            session.replace("a.out:price", SharedObject(fix, "new_price"))
        session.replace("a.out:price", "a.out:price_new", when_quiet=True)
        assert program.ask("p5") == "100 6"
    assert program.ask("p5") == "10 6"


def load_and_die(program: Program, path: str, plan: FaultPlan | None) -> bool:
    """Load an object by a controller that is killed at some call; return whether it was, and see that all is well."""

    def loading():
        with anyprobe.attach(program.pid, unsafe=True) as session:
            faults.install(plan)
            load(session.host, SharedObject(path, "new_price"))
            faults.clear()

    killed = dies(plan, loading)
    assert program.ask("p5") == "10 6", plan
    assert int(program.ask("e100")) == sum(1_000_000 if n % 5 == 0 else 3 * n for n in range(100)), plan
    return killed


def test_a_thread_comes_back_by_itself_from_a_load_whose_controller_was_killed(program, fix, tmp_path):
    """At some calls only; ``tests/torture`` has all of them."""
    copies = [shutil.copy(fix, tmp_path / f"fix{number}.so") for number in range(4)]
    plans = [FaultPlan("kill-after", call) for call in (120, 160, 190, 215)]
    killed = [load_and_die(program, copy, plan) for copy, plan in zip(copies, plans, strict=True)]
    assert any(killed)
    assert program.ask("w") == "waits"
    assert not load_and_die(program, shutil.copy(fix, tmp_path / "last.so"), None)
    assert "last.so" in program.maps()
    assert program.ask("W") == "12"


def test_a_caller_that_relies_on_registers_is_found():
    path = build("reliant.c", text=RELIANT)
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        program = Program(process)
        assert program.said() == "ready"
        with anyprobe.attach(process.pid, unsafe=True) as session:
            with pytest.raises(
                anyprobe.UnsupportedTarget, match=r"kept_across\+0x\w+ may still need r.. after its call of"
            ):
                session.replace("a.out:bump", "a.out:other")
            session.replace("a.out:kept_across", "a.out:other")
        process.kill()


def test_who_is_inside_ends_in_the_old_function(program):
    with anyprobe.attach(program.pid, unsafe=True) as session:
        assert program.ask("w") == "waits"
        replaced = session.replace("a.out:waits", "a.out:waits_new")
        assert program.ask("c3") == "-3"
        assert program.ask("W") == str(1 * 7 + 5), "its system call was not disturbed either"
        replaced.revert()
        assert program.ask("k") == "holds"
        session.replace("a.out:locked", "a.out:locked_new")
        assert program.ask("K4") == "36 3", "the new one waits for the lock that the old one holds"


def test_when_quiet_names_the_thread_that_is_inside(program, fix):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        assert program.ask("w") == "waits"
        (tid,) = set(map(int, os.listdir(f"/proc/{program.pid}/task"))) - {program.pid}
        begin = time.monotonic()
        pairs = {"a.out:price": SharedObject(fix, "new_price"), "a.out:waits": "a.out:waits_new"}
        with pytest.raises(anyprobe.ThreadInside, match=rf"thread {tid} is inside of .*waits; nothing") as caught:
            session.replace(pairs, when_quiet=True, timeout=0.2)
        assert time.monotonic() - begin >= 0.2
        assert (caught.value.tid, program.text()) == (tid, before)
        assert program.ask("p5") == "10 6"
        with pytest.raises(anyprobe.ThreadInside, match="waits"):
            session.replace("a.out:price", "a.out:price_new", outside=["a.out:waits"], timeout=0.2)
        with session.replace("a.out:price", "a.out:price_new", when_quiet=True):
            assert program.ask("p5") == "100 6"
        assert program.ask("W") == "12"
        with session.replace("a.out:waits", "a.out:waits_new", when_quiet=True):
            assert program.ask("c3") == "-3"


def test_fifty_rounds_under_load_tear_nothing(program):
    before = program.text()
    with anyprobe.attach(program.pid, unsafe=True) as session:
        assert program.ask("b") == "busy"
        pairs = {"a.out:packed": "a.out:packed_new", "a.out:unpacked": "a.out:unpacked_new"}
        for _ in range(50):
            session.replace(pairs, outside=["a.out:there_and_back"], timeout=60).revert(
                outside=["a.out:there_and_back"], timeout=60
            )
        assert len(session.probes) == 2
        assert program.ask("B") == "1 0"
    assert program.text() == before


def test_what_a_killed_controller_leaves_is_put_back_by_detach(program, fix):
    before = program.text()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CONTROLLER, str(program.pid), fix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "replaced\n"
        assert program.ask("p5") == "1010 15"
        controller.send_signal(signal.SIGKILL)
    assert program.ask("p5") == "1010 15"
    subprocess.run([sys.executable, "-m", "anyprobe", "detach", "-p", str(program.pid)], check=True)
    assert (program.ask("p5"), program.text()) == ("10 6", before)
    assert "memfd:anyprobe" not in program.maps()


def command(program: Program, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "anyprobe", "replace", *arguments, "-p", str(program.pid)]


def test_command_replaces_until_it_ends(program, tmp_path):
    before = program.text()
    source = tmp_path / "fix.c"
    source.write_text(SOURCE)
    words = ["--unsafe", "a.out:price", "a.out:fee", "--by", f"{source}:new_price", "--by", "a.out:fee_new", "--json"]
    with subprocess.Popen(command(program, *words, "--when-quiet"), stdout=subprocess.PIPE, text=True) as running_one:
        wait_until(lambda: program.ask("p5") == "1010 15", "it is replaced")
        running_one.send_signal(signal.SIGINT)
        document = json.loads(running_one.communicate()[0])
    assert running_one.returncode == 130
    assert (program.ask("p5"), program.text()) == ("10 6", before)
    first, second = document["replaced"]
    assert (first["spec"], second["spec"]) == ("pid:replaced:price:entry", "pid:replaced:fee:entry")
    assert (second["by"], second["loaded"]) == ("pid:replaced:fee_new", None)
    assert re.fullmatch(r"fix-\w+\.so:new_price", first["by"])
    assert first["loaded"] in program.maps().replace(" (deleted)", "")
    assert sum(site["hits"] for site in document["sites"] if site["function"] == "fee") >= 1


def test_command_says_in_one_line_what_is_wrong(program):
    def run(*arguments: str) -> tuple[int, str]:
        ran = subprocess.run(command(program, *arguments), capture_output=True, text=True, check=False)
        assert ran.stdout == ""
        return ran.returncode, ran.stderr

    code, text = run("a.out:price", "--by", "a.out:fee")
    assert (code, text.splitlines()[0]) == (
        2, "anyprobe: replace changes what the program computes; --unsafe says that this is wanted"
    )  # fmt: skip
    code, text = run("--unsafe", "a.out:straddling", "--by", "a.out:crossing_new")
    assert (code, len(text.splitlines())) == (1, 1)
    assert "page-boundary: pid:replaced:straddling:entry: the bytes to write cross a page boundary" in text
    code, text = run("--unsafe", "a.out:main", "--by", "a.out:price", "--when-quiet", "--timeout", "0.1")
    assert (code, len(text.splitlines())) == (1, 1)
    assert f"thread {program.pid} is inside of pid:replaced:main; nothing was changed" in text
    code, text = run("--unsafe", "a.out:price", "--by", "/none.so:price")
    assert (code, text) == (2, "anyprobe: /none.so: cannot be read: No such file or directory\n")


def test_it_is_refused_where_it_was_not_asked_for(program, fix):
    with anyprobe.attach(program.pid) as session, pytest.raises(anyprobe.UsageError, match="unsafe=True"):
        session.replace("a.out:price", SharedObject(fix, "new_price"))
    assert fix not in program.maps()
    with anyprobe.attach(program.pid, unsafe=True, live=True) as session:
        with session.replace("a.out:price", "a.out:price_new"):
            assert program.ask("p5") == "100 6"
        with pytest.raises(anyprobe.UsageError, match="without live"):
            session.replace({"a.out:price": "a.out:price_new", "a.out:fee": "a.out:fee_new"})
    assert re.search(r"^10 6$", program.ask("p5"))
