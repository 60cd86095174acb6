"""The kernel's ftrace selftests of kprobes, one by one under their own names, on the guest's kernel."""

import errno
import os
import re
import subprocess
import time

import pytest

import anyprobe
from anyprobe.kprobes import debugfs
from anyprobe.kprobes.events.table import Events
from anyprobe.target.kernel import kprobelist, symbols, tracefs

PATIENCE = 120.0
PLACES = 40
"""How many bytes of a function are tried; the original tries 256."""
TEXT = b"\x81\x02\xfe\xffhello kernel\0"


@pytest.fixture
def session():
    with anyprobe.kernel(pids=[os.getpid()]) as opened:
        yield opened


@pytest.fixture
def events(session):
    return Events()


@pytest.fixture
def write():
    """Return what has the kernel's ``vfs_write`` run, with known parameters."""
    with open("/dev/null", "wb", buffering=0) as file:

        def run(times=1):
            for _ in range(times):
                os.write(file.fileno(), TEXT)

        yield run


def text_of(path):
    with open(path) as file:
        return file.read()


def kernels_own(line):
    """Return the error number with which the kernel's own interface takes a line, 0 for none."""
    descriptor = os.open(f"{tracefs.root()}/kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)
    return 0


def unique(pattern):
    """Return a function of which the kernel has one, by its name, where kprobes may be set."""
    known = symbols.running()
    forbidden = {each[2] for each in tracefs.blacklist()}
    return next(
        each
        for each in sorted(known.names())
        if re.fullmatch(pattern, each) and len(known.named(each)) == 1 and each not in forbidden
    )


def test_add_and_remove_and_busy_check(events):
    assert events.write("p:mine kernel_clone") == 0
    assert str(events) == "p:kprobes/mine kernel_clone\n"
    events.enable("mine")
    assert events.clear() == events.write("-:mine") == -errno.EBUSY
    events.enable("mine", on=False)
    assert events.write("-:mine") == 0
    assert str(events) == ""
    assert not kprobelist.kprobes()


def test_kprobe_args(events, write):
    """Of each kind and type; after another definition there are none."""
    arguments = {
        "count=%dx:u64": len(TEXT), "third=$arg3:u32": len(TEXT), "comm=$comm": f'"{text_of("/proc/self/comm")[:-1]}"',
        "text=+4(%si):string": '"hello kernel"', "user=+u4($arg2):ustring": '"hello kernel"',
        "char=+4(%si):char": "'h'", "chars=+4(%si):char[3]": "{'h','e','l'}", "u8=+0(%si):u8": 0x81,
        "s8=+0(%si):s8": 0x81 - 256, "x16=+0(%si):x16": "0x281", "u32=+0(%si):u32": 0xFFFE0281,
        "s32=+0(%si):s32": -130431,
        "low=+0(%si):b4@0/8": 1, "high=+0(%si):b4@4/8": 8, "pair=+0(%si):u16[2]": "{641,65534}",
        "banner=@linux_banner:string": None, "where=%ip:symbol": None,
    }  # fmt: skip
    given = list(arguments)
    for first in range(0, len(given), 5):  # as many as need no LLVM, which is slow in a guest
        some = given[first : first + 5]
        assert events.write(f"p:mine vfs_write {' '.join(some)}") == 0, events.error_log
        events.enable("mine")
        write(2)
        lines = list(events.lines())
        assert len(lines) == 2
        for each in some:
            name, shown = each.partition("=")[0], arguments[each]
            if shown is not None:
                assert f" {name}={shown}" in lines[0]
        assert ": mine: (vfs_write) " in lines[0] or ": mine: (vfs_write+" in lines[0]
        events.enable("mine", on=False)
        assert events.write("-:mine") == 0
    banner = text_of("/proc/version")
    assert f'banner="{banner[:40]}' in lines[0]
    assert "where=vfs_write" in lines[0]
    assert events.write("p:mine vfs_write") == 0
    events.enable("mine")
    write()
    assert not re.search(r"\w=", next(events.lines()))


@pytest.mark.thorough
def test_kretprobe_args_entry_arg_and_return_suffix(events, write):
    assert (
        events.write("r:letter vfs_write ret=$retval:s64 count=$arg3:u64\np:suffix vfs_write%return $retval:u64") == 0
    )
    events.enable("kprobes/")
    write(3)
    lines = list(events.lines())
    letter, suffix = ([line for line in lines if f": {name}: " in line] for name in ("letter", "suffix"))
    expected = [f"(vfs_write%return) ret={len(TEXT)} count={len(TEXT)}"] * 3
    assert [line.partition(": letter: ")[2] for line in letter] == expected
    assert [line.partition(": suffix: ")[2] for line in suffix] == [f"(vfs_write%return) arg1={len(TEXT)}"] * 3
    assert [line.split()[1:] for line in events.profile().splitlines()] == [["3", "0"], ["3", "0"]]


def second_instruction(events, function):
    """Return where the second instruction of a function begins: kernels differ in their first ones."""
    offset = next(at for at in range(1, 16) if events.write(f"p:found {function}+{at}") == 0)
    assert events.write("-:found") == 0
    return offset


def test_kprobe_eventname(events):
    dotted = unique(r"[a-z_]+\.(isra|constprop)\.0")
    offset = second_instruction(events, "vfs_read")
    assert events.write(f"p vfs_read\np:group/mine vfs_read\np vfs_read+{offset}\nr vfs_read\np {dotted}") == 0
    assert [line.split()[0] for line in str(events).splitlines()] == [
        "p:kprobes/p_vfs_read_0", "p:group/mine", f"p:kprobes/p_vfs_read_{offset}", "r:kprobes/r_vfs_read_0",
        f"p:kprobes/p_{dotted.replace('.', '_')}_0",
    ]  # fmt: skip
    assert events.clear() == 0


@pytest.mark.thorough
def test_kprobe_insn_boundary(events, write):
    """What is accepted is what the kernel itself accepts; all of it runs together, and goes without a trace."""
    accepted = [at for at in range(PLACES) if events.write(f"p:at_{at} vfs_write+{at}") == 0]
    expected = []
    for at in range(PLACES):
        if kernels_own(f"p:own_at_{at} vfs_write+{at}") == 0:
            expected.append(at)
            assert kernels_own(f"-:own_at_{at}") == 0
    assert accepted == expected
    assert 5 <= len(accepted) < PLACES
    events.enable("kprobes/")
    write(10)
    hits = {line.split()[0]: int(line.split()[1]) for line in events.profile().splitlines()}
    assert hits["at_0"] == 10
    assert sum(each >= 10 for each in hits.values()) >= 3
    events.enable("kprobes/", on=False)
    assert events.clear() == 0
    assert not kprobelist.kprobes()


@pytest.mark.thorough
def test_kprobe_opt_types(events):
    """At least one place becomes a jump, and none is left when the events are disabled."""
    function = unique("__(do|x64)_sys_getppid")
    accepted = [at for at in range(64) if events.write(f"p {function}+{at}") == 0]
    assert accepted
    events.enable("kprobes/")
    deadline = time.monotonic() + PATIENCE
    while not any("OPTIMIZED" in line.flags for line in debugfs.listing()):
        assert time.monotonic() < deadline
        os.getppid()
    events.enable("kprobes/", on=False)
    assert not any("OPTIMIZED" in line.flags for line in debugfs.listing())
    assert events.clear() == 0


def test_kprobe_multiprobe(events, write):
    one, other = "p:kprobes/testevent vfs_read", "p:kprobes/testevent vfs_write"
    assert events.write(f"{one}\n{other}") == 0
    assert str(events).splitlines() == [one, other]
    assert events.write(one) == events.write("r:testevent vfs_open") == -errno.EEXIST
    assert events.write("p:testevent vfs_open $stack") == -errno.EEXIST
    assert events.write("-:testevent vfs_read") == 0
    assert str(events).splitlines() == [other]
    events.enable("testevent")
    write(4)
    assert events.profile().split() == ["testevent", "4", "0"]


def test_kprobe_non_uniq_symbol(events):
    known = symbols.running()
    name = next(each for each in sorted(known.names()) if each.isidentifier() and len(known.named(each)) > 1)
    assert events.write(f"p {name}") == -errno.EADDRNOTAVAIL
    assert "unique" in events.error_log[-1]


@pytest.mark.thorough
def test_kprobe_module(events):
    """An event in a module that is loaded; events cannot wait for one, as ``follow=True`` has handlers do."""
    subprocess.run(["modprobe", "-r", "loop"], check=True)
    assert events.write("p:mine loop:loop_control_ioctl") == -errno.ENOENT
    subprocess.run(["modprobe", "loop"], check=True)
    assert events.write("p:mine loop:loop_control_ioctl") == 0
    assert str(events) == "p:kprobes/mine loop:loop_control_ioctl\n"
    assert events.clear() == 0
    subprocess.run(["modprobe", "-r", "loop"], check=True)


@pytest.fixture
def function_tracer():
    """Return what has the kernel's function tracer watch a function."""
    root = tracefs.root()

    def watch(name):
        with open(f"{root}/current_tracer", "w") as file:
            file.write("nop")
        with open(f"{root}/set_ftrace_filter", "w") as file:
            file.write(f"{name}\n")
        if name:
            with open(f"{root}/current_tracer", "w") as file:
                file.write("function")

    yield watch
    watch("")


@pytest.mark.thorough
def test_kprobe_ftrace(session, events, function_tracer, tmp_path):
    """Events, programs by type and the function tracer at one function, each before and after the others."""
    function = "vfs_mkdir"
    assert events.write(f"p:mine {function}") == 0
    for first in (True, False):
        if first:
            function_tracer(function)
        before = [int(line.split()[1]) for line in events.profile().splitlines()]
        events.enable("mine")
        probes = [*session.count(f"fentry:{function}"), *session.count(f"fexit:{function}")]
        if not first:
            function_tracer(function)
        for number in range(5):
            (tmp_path / f"{first} {number}").mkdir()
        (line,) = events.profile().splitlines()
        assert [int(line.split()[1])] == [each + 5 for each in before]
        assert [site.hits + site.nmissed for probe in probes for site in probe.results()] == [5, 5]
        assert text_of(f"{tracefs.root()}/current_tracer") == "function\n"
        events.enable("mine", on=False)
        session.remove(*probes)
        function_tracer("")


@pytest.mark.thorough
def test_probepoint(events):
    function = symbols.running().named("vfs_write")[0]
    offset = second_instruction(events, "vfs_write")
    inside = f"vfs_write+{offset:#x}"
    for place in ("vfs_write", f"{function.address:#x}", f"{function.address}", "vfs_write+0", inside):
        assert events.write(f"p:mine {place}") == 0, events.error_log
        (line,) = debugfs.listing()
        assert line.address == function.address + offset * (place == inside)
        assert events.write("-:mine") == 0
    for place in ("vfs_write-1", "vfs_write+4294967296", "vfs_write+99999", "no_such_function", "0x1000"):
        assert events.write(f"p:mine {place}") < 0
    assert str(events) == ""


@pytest.mark.thorough
def test_kretprobe_maxactive_and_profile(events, write):
    assert events.write("p1:mine vfs_write") == events.write("r1a1:mine vfs_write") == -errno.EINVAL
    assert events.write("r100000:mine vfs_write") == -errno.E2BIG
    assert events.write("r10:mine vfs_write\np:idle vfs_read\np:called vfs_write") == 0
    assert str(events).splitlines()[0] == "r10:kprobes/mine vfs_write"
    events.enable("mine")
    events.enable("called")
    write(7)
    rows = {line.split()[0]: line.split()[1:] for line in events.profile().splitlines()}
    assert rows == {"mine": ["7", "0"], "idle": ["0", "0"], "called": ["7", "0"]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "caret"),
    [
        ("r vfs_read+10", 2), ("p:/bar vfs_read", 2),
        ("p vfs_read $retval", 11), ("p vfs_read %none_such", 11), ("p vfs_read +10(%di", 18),
        ("p vfs_read a=%di a=%si", 17),
        ("p vfs_read arg1=%di:none", 20), ("p vfs_read =%di", 11),
        ("p vfs_read+6", 2),
    ],
)  # fmt: skip
def test_kprobe_syntax_errors(events, line, caret):
    """The error number is the kernel's own, and the caret where the selftest wants it."""
    number = events.write(line)
    assert number < 0
    assert kernels_own(line) == -number
    shown = events.error_log[-1].splitlines()
    command = next(each for each in shown if "Command:" in each)
    assert shown[-1].index("^") - command.index(line) == caret


@pytest.mark.thorough
def test_symbols_that_there_are_not(events):
    """The kernel itself has the two numbers the other way round."""
    assert events.write("p no_such_function") == -errno.ENOENT
    assert events.write("p vfs_read @no_such_symbol") == -errno.EINVAL
    assert events.error_log[-1].splitlines()[-1].index("^") == len("  Command: p vfs_read ")
    assert str(events) == ""


@pytest.mark.thorough
def test_multiple_kprobes(events):
    """256 functions, defined, enabled and disabled at once."""
    can = tracefs.Restrictions()
    functions = [
        each
        for name in sorted(symbols.running().names())
        if name.startswith(("vfs_", "__x64_sys_"))
        for each in symbols.running().named(name)[:1]
        if can.traceable.has(each.address, (name,)) is not False
    ]
    made = 0
    for number, each in enumerate(functions):
        made += made < 256 and events.write(f"p:probe_{number} {each.name}") == 0
    assert made == 256
    events.enable("kprobes/")
    assert len(kprobelist.kprobes()) == 256
    events.enable("kprobes/", on=False)
    assert not kprobelist.kprobes()
    assert events.clear() == 0
