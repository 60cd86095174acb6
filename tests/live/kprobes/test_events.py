"""Events by lines of ``kprobe_events``: the kernel's own tests for user space."""

import errno
import re

import pytest

import anyprobe
from anyprobe import KprobeError
from anyprobe.kprobes.events.errors import DefinitionError, Problem
from anyprobe.kprobes.events.table import Events
from support.driver import build, started

pytestmark = pytest.mark.live


@pytest.fixture
def target():
    with started(build("traced.c", "-O2")) as running:
        yield running


@pytest.fixture
def events(session):
    return Events()


def traced(target, events, line, event="ev", rounds=1):
    """Define and enable an event, run, remove it; return the arguments of its lines."""
    assert events.write(line) == 0, events.error_log[-1]
    events.enable(event)
    target.go(rounds)
    events.enable(event, on=False)
    lines = [re.sub(r"^.*?: \w+: \([^)]*\) ?", "", each) for each in events.lines(final=True)]
    assert events.write(f"-:{event}") == 0
    return lines


def test_add_and_remove(target, events):
    assert events.write("p:mine fetched arg=%di") == 0
    assert events.write("p another") == 0
    assert str(events) == "p:kprobes/mine fetched arg=%di\np:kprobes/p_another_0 another\n"
    assert events.write("-:mine\n-:kprobes/p_another_0") == 0
    assert str(events) == ""
    assert events.write("-:mine") == -errno.ENOENT
    target.go(1)
    target.finish()


def test_an_enabled_event_cannot_be_removed(events):
    assert events.write("p:mine fetched") == 0
    events.enable("mine")
    assert events.write("-:mine") == -errno.EBUSY
    assert events.clear() == -errno.EBUSY
    events.enable("kprobes/", on=False)
    assert events.clear() == 0
    with pytest.raises(KprobeError):
        events.enable("mine")


def test_arguments_of_every_type(target, session, events):
    found = traced(
        target,
        events,
        "p:ev fetched %si:s64 %si:u8 %si:s8 %si:x16 $arg2 $arg4:s32 $arg7:u64 +0(%di):char +2(%di):x16 "
        "+2(%di):b4@4/16 +16(%di):u8[4] n=+0(+8(%di)):s32",
    )
    missing = "(fault)"
    first = "arg1=-2 arg2=254 arg3=-2 arg4=0xfffe arg5=0xfffffffffffffffe arg6=4 arg7=7"
    second = "arg1=-3 arg2=253 arg3=-3 arg4=0xfffd arg5=0xfffffffffffffffd arg6=4 arg7=7"
    assert found == [
        f"{first} arg8='t' arg9=0xabcd arg10=12 arg11={{1,2,3,254}} n=-5",
        f"{second} arg8={missing} arg9={missing} arg10={missing} arg11={{{','.join([missing] * 4)}}} n={missing}",
    ]
    target.finish()


def test_texts_and_names(target, session, events):
    found = traced(target, events, 'p:ev fetched +0(%dx):string s=+0(+8(+8(%di))):ustring $comm \\"fixed" \\7:u8')
    name = session.exe.rpartition("/")[2][:15]
    assert found == [
        f'arg1="some text" s="inside" arg3="{name}" arg4="fixed" arg5=7',
        f'arg1=(fault) s=(fault) arg3="{name}" arg4="fixed" arg5=7',
    ]
    target.finish()


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_types_agree(target, session, events, width):
    (found, _) = traced(
        target, events, f"p:ev fetched $stack0:s{width} $stack0:u{width} $stack0:x{width} $stack0:b4@4/{width}"
    )
    signed, unsigned, hexadecimal, bits = (word.partition("=")[2] for word in found.split())
    value = int(unsigned)
    assert int(signed) % (1 << width) == value == int(hexadecimal, 16)
    assert int(bits) == value >> 4 & 15
    target.finish()


def test_symbols(target, session, events):
    (site,), _ = session.resolve("a.out:another")
    found = traced(target, events, "p:ev another @known_word @known_word:u16 @known_word+1:x8 %ip:symbol \\8:u64")
    module = site.object.name
    assert found == [f"arg1=0x1122334455667788 arg2={0x7788} arg3=0x77 arg4={module}:another arg5=8"]
    assert events.write("p another @no_such_variable") == -errno.EINVAL
    assert events.error_log[-1].endswith("\n" + " " * (len("  Command: p another ")) + "^")
    target.finish()


def test_return_probes_and_their_entry_arguments(target, session, events):
    assert traced(target, events, "r:ev another $retval:s64 $arg1 +0($stack0):x8 ")[0].startswith(
        "arg1=42 arg2=0x29 arg3="
    )
    assert traced(target, events, "p:ev another%return $retval", rounds=2) == ["arg1=0x2a"] * 2
    assert traced(target, events, "r3:ev another") == [""]
    target.finish()


def test_where_an_event_was(target, session, events):
    assert events.write("p:one another\nr:two another") == 0
    events.enable("kprobes/")
    target.go(1)
    entry, leaving = events.lines(final=True)
    module = session.exe.rpartition("/")[2]
    assert f"one: ({module}:another)" in entry
    assert re.search(rf"two: \({module}:\S+ <- another\)", leaving)
    assert re.match(rf" *{target.pid} \[\d\d\d\] \d+\.\d{{6}}: ", entry)
    target.finish()


def test_profile_counts_hits_and_misses(target, events):
    assert events.write("p:one fetched\np:two another\nr1:three fetched") == 0
    events.enable("one")
    events.enable("three")
    target.go(4)
    rows = {line.split()[0]: tuple(map(int, line.split()[1:])) for line in events.profile().splitlines()}
    assert rows == {"one": (8, 0), "two": (0, 0), "three": (8, 0)}
    target.finish()


def test_several_probes_of_one_event(target, session, events):
    assert events.write("p:ev fetched %di:u64\np:ev another %di:u64") == 0
    events.enable("ev")
    target.go(1)
    assert len(list(events.lines(final=True))) == 3
    assert events.write("r:ev another") == -errno.EEXIST
    assert Problem.DIFF_PROBE_TYPE.value in events.error_log[-1]
    assert events.write("p:ev another %di:u32") == -errno.EEXIST
    assert Problem.DIFF_ARG_TYPE.value in events.error_log[-1]
    assert events.write("p:ev another %di:u64") == -errno.EEXIST
    assert Problem.SAME_PROBE.value in events.error_log[-1]
    target.finish()


def test_places(target, session, events):
    (site,), _ = session.resolve("a.out:another")
    path, offset = site.object.path, site.address - site.object.mappings[0].start
    assert events.write(f"p:by_address {site.address:#x}\np:by_file {path}:{offset:#x}\np:by_module a.out:another") == 0
    events.enable("kprobes/")
    target.go(1)
    assert [line.split()[1] for line in events.profile().splitlines()] == ["1"] * 3
    target.finish()


@pytest.mark.parametrize(
    ("marked", "problem", "number"),
    [
        ("p ^non_exist_func", Problem.BAD_PROBE_ADDR, errno.ENOENT),
        ("p ^fetched+1", Problem.BAD_INSN_BNDRY, errno.EILSEQ),
        ("p ^fetched+0x100000", Problem.BAD_PROBE_ADDR, errno.EINVAL),
        ("p ^0x10", Problem.BAD_PROBE_ADDR, errno.EINVAL),
        ("p another ^@no_such_symbol", Problem.BAD_MEM_ADDR, errno.EINVAL),
    ],
)
def test_what_the_process_does_not_have(events, marked, problem, number):
    line = marked.replace("^", "", 1)
    assert events.write(line) == -number
    lead = "  Command: "
    caret = " " * (len(lead) + marked.index("^")) + "^"
    assert events.error_log == [f"trace_kprobe: error: {problem.value}\n{lead}{line}\n{caret}"]


def test_a_strict_session_raises(target):
    with anyprobe.attach(target.pid, strict=True), pytest.raises(DefinitionError, match="Invalid register"):
        Events().write("p another %none")
