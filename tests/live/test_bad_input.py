"""Bad input: each a one-line error that says what to do, the right exit status, and nothing changed in the target."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import anyprobe
from anyprobe.core.address import PAGE
from anyprobe.target.remote import frame
from anyprobe.target.system import procfs
from support.driver import Target, wait_until
from support.image import Image

NOT_PERMITTED, WRONG_USE = 1, 2


def anyprobe_command(*arguments, **options):
    """Run the command line tool."""
    command = [sys.executable, "-m", "anyprobe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, **options)


def assert_refused(outcome, status, *words):
    """The exit status, no traceback, one line (a spec error adds the spec, a caret and the nearest names)."""
    assert outcome.returncode == status, outcome.stderr
    assert "Traceback" not in outcome.stderr
    lines = outcome.stderr.strip().splitlines()
    assert len(lines) <= (5 if "^" in outcome.stderr else 1), outcome.stderr
    for word in words:
        assert word in outcome.stderr, f"{word!r} is not in {outcome.stderr!r}"


@pytest.fixture
def target(run_target):
    """A program, which must be as before at the end and go on rightly."""
    running = run_target("counts.c", "2")
    before = Image.of(running.pid)
    yield running
    before.assert_restored(running.pid)
    running.go(100)
    running.finish()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("a.out:worg", ("^", "work")),
        ("libq:malloc", ("^", "libq")),
        ("a.out:work:nonsense", ("^",)),
        ("pid:a.out:work:entry:more:parts", ("^",)),
        ("pidgin:a.out:work:entry", ("^",)),
        ("a.out:work+0x100000", ()),
        ("a.out:-:entry", ()),
        ("", ()),
        ("a.out:nothing_like_this*", ("^",)),
    ],
)
def test_wrong_spec(target, spec, words):
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "--no-pending", spec)
    assert_refused(outcome, WRONG_USE, *words)


def test_one_wrong_spec_among_right_ones(target):
    """Nothing is armed when one of several specs is wrong."""
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "a.out:work", "a.out:worg")
    assert_refused(outcome, WRONG_USE, "worg")


def test_offset_inside_an_instruction(target):
    """leaf4 is `lea 1(%rdi),%eax` of three bytes."""
    outcome = anyprobe_command("count", "-p", target.pid, "a.out:leaf4+0x1")  # ends without --for: nothing to wait for
    assert outcome.returncode == WRONG_USE
    assert "Traceback" not in outcome.stderr
    assert "no instruction starts here; nearest: +0x0, +0x3" in outcome.stdout
    with anyprobe.attach(target.pid) as session:
        (site,) = session.resolve("a.out:leaf4")[0]
        start = site.function.start
        session.count(f"a.out:-:{start + 1:#x}")
        ((_, why),) = session.refused
        assert why.detail.endswith(f"nearest: {start:#x}, {start + 3:#x}")


def test_ambiguous_symbol(run_target, compiled, tmp_path):
    """Two functions of one name: refused, both places named."""
    (tmp_path / "second.c").write_text(
        "static __attribute__((noinline,noipa)) int twin(int x){volatile int y=x;return y+2;}\n"
        "int other_twin(int x){return twin(x);}\n"
    )
    text = textwrap.dedent("""
        #include "protocol.h"
        static PROBED int twin(int x) { volatile int y = x; return y + 1; }
        int other_twin(int);
        static void one_round(void) { check(twin(1) == 2 && other_twin(1) == 3, "twins"); }
        static void setup(int argc, char **argv) { (void)argc; (void)argv; }
    """)
    target = run_target("twins.c", options=(str(tmp_path / "second.c"),), text=text)
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "a.out:twin")
    assert_refused(outcome, WRONG_USE, "twin", "ambiguous")
    target.go(1)
    target.finish()


def test_pid_that_does_not_exist():
    assert_refused(anyprobe_command("count", "-p", 2**22 - 3, "a.out:main"), NOT_PERMITTED, "no process")


@pytest.mark.parametrize("pid", ["0", "-5", "x"])
def test_pid_that_is_none(pid):
    outcome = anyprobe_command("count", "-p", pid, "a.out:main")
    assert outcome.returncode in (NOT_PERMITTED, WRONG_USE)
    assert "Traceback" not in outcome.stderr


def test_name_that_nobody_has():
    outcome = anyprobe_command("count", "-n", "no-such-program-runs", "a.out:main")
    assert_refused(outcome, NOT_PERMITTED, "no-such-program-runs")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_zombie():
    dead = subprocess.Popen(["true"])
    wait_until(lambda: state_of(dead.pid) == "Z", "the child is a zombie")
    assert_refused(anyprobe_command("count", "-p", dead.pid, "a.out:main"), NOT_PERMITTED, "zombie")
    dead.wait()


def test_kernel_thread():
    status = Path("/proc/2/status")
    if not status.exists() or "kthreadd" not in status.read_text():
        pytest.skip("no kernel threads are visible here")
    assert_refused(anyprobe_command("count", "-p", 2, "a.out:main"), NOT_PERMITTED, "kernel thread")


def test_init():
    assert_refused(anyprobe_command("count", "-p", 1, "*:malloc"), NOT_PERMITTED, "init")


def test_itself():
    with pytest.raises(anyprobe.UnsupportedTarget, match="attach_self"):
        anyprobe.attach(os.getpid())


def test_32_bit_process(tmp_path):
    """A hand-made i386 program that sleeps."""
    source, objects, program = tmp_path / "p.s", tmp_path / "p.o", tmp_path / "p32"
    source.write_text(".globl _start\n_start: mov $29,%eax\nint $0x80\njmp _start\n")
    if subprocess.run(["as", "--32", "-o", objects, source]).returncode:
        pytest.skip("the assembler knows no i386")
    subprocess.run(["ld", "-m", "elf_i386", "-o", program, objects], check=True)
    try:
        process = subprocess.Popen([program])
    except OSError as error:
        pytest.skip(f"this kernel runs no i386 programs: {error}")
    try:
        assert_refused(anyprobe_command("count", "-p", process.pid, "a.out:*"), NOT_PERMITTED, "32-bit")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def library(compiled, version, path):
    """Build a version of the library at a path."""
    built = compiled("library.c", "-shared", "-fPIC", f"-DVERSION={version}")
    shutil.copy(built, path)
    return path


def test_library_replaced_on_disk(compiled, run_target, tmp_path):
    """Analysed against the wrong file a splice would hit the wrong bytes: refused, or read from the mapped file."""
    path = library(compiled, 1, tmp_path / "libreplaced.so")
    target = run_target("loads_library.c", str(path))
    library(compiled, 2, tmp_path / "new.so").rename(path)
    before = Image.of(target.pid)
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "libreplaced:from_library")
    if outcome.returncode:
        assert_refused(outcome, NOT_PERMITTED, "replaced")
    before.assert_restored(target.pid)
    target.go(10)
    target.finish()


def test_library_deleted(compiled, run_target, tmp_path):
    """Works from the mapped file, or is refused in one line."""
    path = library(compiled, 1, tmp_path / "libdeleted.so")
    target = run_target("loads_library.c", str(path))
    path.unlink()
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "libdeleted:from_library")
    assert "Traceback" not in outcome.stderr
    assert outcome.returncode in (0, NOT_PERMITTED)
    target.go(10)
    target.finish()


def test_deleted_executable(compiled, tmp_path):
    """Works from /proc/PID/exe, or is refused in one line."""
    path = Path(shutil.copy(compiled("counts.c"), tmp_path / "vanishing"))
    target = Target([path])
    try:
        path.unlink()
        outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "a.out:work")
        if outcome.returncode:
            assert_refused(outcome, NOT_PERMITTED, "deleted")
        target.go(10)
        target.finish()
    finally:
        target.close()


def test_shared_text(compiled, run_target, tmp_path):
    """Code in a shared mapping is everybody's: refused by name."""
    path = library(compiled, 1, tmp_path / "libshared.so")
    target = run_target("loads_library.c", str(path), "shared")
    content = path.read_bytes()
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "libshared:from_library")
    assert_refused(outcome, NOT_PERMITTED, "shared")
    assert path.read_bytes() == content
    target.go(10)
    target.finish()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("memory", ("mmap", "RLIMIT_AS")),
        ("data", ("mmap", "RLIMIT_DATA")),
        ("files", ("memfd_create", "RLIMIT_NOFILE")),
        pytest.param("locked", ("mmap", "RLIMIT_MEMLOCK"), marks=pytest.mark.root),
        ("moved", ("not mapped from its file",)),
    ],
)
def test_no_room(run_target, what, words):
    """Limits that leave no room for us, and code without a file, as a program has that moves itself to huge pages."""
    target = run_target("limited.c", what)
    before = Image.of(target.pid)
    outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "a.out:work")
    assert_refused(outcome, NOT_PERMITTED, *words)
    assert_same(before, Image.of(target.pid))
    target.go(5)
    target.finish()


def assert_same(before: Image, after: Image) -> None:
    """Compare mappings and text; pages of the file may have become copies."""
    assert (after.maps, after.text) == (before.maps, before.text)


@pytest.mark.root
def test_a_program_that_locks_its_memory(run_target):
    """What is mapped there is in memory at once, but for what is counted; restored pages stay copies of the file's."""
    target = run_target("limited.c", "unlimited-locked")
    before, locked = Image.of(target.pid), locked_memory(target.pid)
    for how in ("count", "time"):
        outcome = anyprobe_command(how, "-p", target.pid, "--for", 0.1, "a.out:work", "libc:*printf*")
        assert outcome.returncode == 0, outcome.stderr
        assert_same(before, Image.of(target.pid))
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:work", "libc:*")
        assert locked_memory(target.pid) - locked < 16 << 10
        calls = target.go(5).calls["work"]
        assert session.snapshot().functions[0].count == calls
    assert_same(before, Image.of(target.pid))
    # the pages that the frames of injected calls were on are the stack's own, which has grown by them
    assert locked_memory(target.pid) - locked <= (frame.ROOM + PAGE) >> 10
    target.go(5)
    target.finish()


@pytest.mark.parametrize("options", [{}, {"by_thread": True}])
def test_little_address_space_is_taken(run_target, options):
    """All of it comes to be in memory where the program calls ``mlockall`` later; and there are limits of it."""
    target = run_target("counts.c")
    resource.prlimit(target.pid, resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
    before = address_space(target.pid)
    with anyprobe.attach(target.pid, **options) as session:
        session.time("libc:*str*")
        assert address_space(target.pid) - before < 3 << 20
        target.go(5)
    target.finish()


def address_space(pid: int) -> int:
    """Return how much a process has mapped, in kilobytes."""
    return int(procfs.read_status(pid)["VmSize"].split()[0])


def locked_memory(pid: int) -> int:
    """Return how much memory of a process is locked, in kilobytes."""
    return int(procfs.read_status(pid)["VmLck"].split()[0])


def test_an_executable_that_nobody_may_read(compiled, tmp_path):
    """Its user may not look into it; who may look into everything can probe it."""
    path = Path(shutil.copy(compiled("counts.c"), tmp_path / "unreadable"))
    path.chmod(0o111)
    target = Target([path])
    try:
        outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "a.out:work")
        if outcome.returncode:
            assert_refused(outcome, NOT_PERMITTED)
        target.go(10)
        target.finish()
    finally:
        target.close()


def test_already_traced(target):
    """Somebody else's tracer: the error names it."""
    seize = (
        "import ctypes,sys;l=ctypes.CDLL(None);"
        f"r=l.ptrace(0x4206,{target.pid},0,0);print(r,flush=True);sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", seize], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout.readline() == b"0\n"
        outcome = anyprobe_command("count", "-p", target.pid, "--for", 0.1, "a.out:work")
        assert_refused(outcome, NOT_PERMITTED, str(tracer.pid), "traced")


@pytest.mark.root
def test_another_users_process(target):
    """Without the right to trace: which rule, and what would help."""
    if subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", "import anyprobe"]
    ).returncode:
        pytest.skip("nobody may not read this installation")
    command = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", sys.executable]
    outcome = subprocess.run(
        [*command, "-m", "anyprobe", "count", "-p", str(target.pid), "--for", "0.1", "a.out:work"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert_refused(outcome, NOT_PERMITTED, "uid")


@pytest.mark.parametrize(
    "arguments",
    [
        ("count",),
        ("count", "a.out:main"),
        ("count", "-p", "1", "--strategy", "telepathy", "a.out:main"),
        ("count", "-p", "1", "--for", "-3", "a.out:main"),
        ("nonsense",),
        ("count", "a.out:main", "--", "/no/such/program"),
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments):
    outcome = anyprobe_command(*arguments)
    assert outcome.returncode in (NOT_PERMITTED, WRONG_USE)
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.strip()


def test_command_without_execute_permission(tmp_path):
    path = tmp_path / "not-executable"
    path.write_text("no program")
    outcome = anyprobe_command("count", "a.out:main", "--", path)
    assert outcome.returncode in (NOT_PERMITTED, WRONG_USE)
    assert "Traceback" not in outcome.stderr


def test_interrupted_session_still_reports(target):
    """Ctrl-C ends the session with its results and restores everything."""
    command = [sys.executable, "-m", "anyprobe", "count", "-p", str(target.pid), "--json", "a.out:work"]
    text = Image.of(target.pid).text
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as controller:
        wait_until(lambda: Image.of(target.pid).text != text or controller.poll() is not None, "the probe is armed")
        target.go(100)
        controller.send_signal(signal.SIGINT)
        output, error = controller.communicate(timeout=180)
    assert controller.returncode == 130, error
    assert '"hits": 200' in output
