"""Splices as a mechanism: exact beside the kernel's own engines, refused by name, and gone without a trace."""

import fcntl
import json
import os
import subprocess
import sys

import pytest

import anyprobe
from anyprobe import Reason
from anyprobe.cli import main
from support.kernel_patches import function, text

GETPPID = "__do_sys_getppid"
GETPPID_NUMBER = 110
CALLS = 5000
LOOP_CTL_GET_FREE = 0x4C82


@pytest.fixture
def session(splicing):
    return splicing


def whole(name):
    """Return the live text of a function."""
    body = function(name)
    return text(body[0].address, body[-1].end - body[0].address)


def hits(probe):
    return sum(site.hits for site in probe.results())


def read(times):
    zero = os.open("/dev/zero", os.O_RDONLY)
    for _ in range(times):
        os.read(zero, 1)
    os.close(zero)


def call_getppid(times):
    for _ in range(times):
        os.getppid()


def test_an_entry_is_counted_as_fentry_counts_it_and_the_text_is_as_it_was(session):
    before = whole("vfs_read")
    (spliced,) = session.count("kernel::vfs_read:entry")
    assert session.refused == []
    assert whole("vfs_read") != before
    with anyprobe.kernel(mechanism="fentry") as other:
        (traced,) = other.count("kernel::vfs_read:entry")
        for _ in range(3):  # another process may read between two looks
            first = hits(spliced), hits(traced)
            read(CALLS)
            told = hits(spliced) - first[0], hits(traced) - first[1]
            assert min(told) >= CALLS
            if told == (CALLS, CALLS):
                break
        assert told == (CALLS, CALLS)
    session.remove(spliced)
    assert whole("vfs_read") == before
    last = hits(spliced)
    read(10)
    assert hits(spliced) == last >= 3


def test_the_command_counts_and_leaves_nothing(loaded, system_calls, tmp_path):
    before, document = whole(GETPPID), tmp_path / "document"
    asked = ["--mechanism", "splice", "--json", "--quiet", "-o", str(document)]
    program = [str(system_calls), str(GETPPID_NUMBER), str(CALLS), "2"]
    assert main(["count", f"kernel::{GETPPID}", *asked, "--", *program]) == 0
    (site,) = json.loads(document.read_text())["sites"]
    assert (site["strategy"], site["hits"], site["nmissed"]) == ("splice", 2 * CALLS, 0)
    assert whole(GETPPID) == before


def test_each_instruction_of_a_function_is_counted_or_refused_by_name(session):
    body, before = function(GETPPID), whole(GETPPID)
    reasons = {}
    counted = 0
    for index, insn in enumerate(body):
        if index and not body[index - 1].falls_through:
            break  # what fills up behind the function
        offset = insn.address - body[0].address
        (probe,) = session.count(f"kernel::{GETPPID}:{offset:#x}" if offset else f"kernel::{GETPPID}+0x0")
        if probe.refused:
            ((_, why),) = probe.refused
            reasons[offset] = why.reason
        else:
            call_getppid(CALLS)
            assert hits(probe) == CALLS, insn.text
            counted += 1
        session.remove(probe)
        assert whole(GETPPID) == before
    assert counted >= 6
    assert set(reasons.values()) <= {
        Reason.FTRACE_SITE,
        Reason.STATIC_KEY,
        Reason.TOO_SHORT,
        Reason.JUMP_TARGET_IN_JTPR,
        Reason.LANDING_PAD,
    }


def test_a_static_key_and_a_static_call_are_refused(session):
    body = function("__schedule")
    nops = [insn.address - body[0].address for insn in body[2:] if insn.raw == bytes.fromhex("0f1f440000")]
    probes = session.count(*(f"kernel::__schedule:{offset:#x}" for offset in nops[:3]))
    assert {why.reason for probe in probes for _, why in probe.refused} == {Reason.STATIC_KEY}


def test_places_of_several_probes_share_the_room_there_is(session):
    before = whole(GETPPID)
    second = function(GETPPID)[3].address - function(GETPPID)[0].address
    entries = session.count(f"kernel::{GETPPID}:entry", f"kernel::{GETPPID}:{second:#x}", f"kernel::{GETPPID}:return")
    assert session.refused == []
    call_getppid(CALLS)
    assert [hits(each) for each in entries] == [CALLS] * 3
    (later,) = session.count(f"kernel::{GETPPID}:entry")
    ((_, why),) = later.refused
    assert why.reason is Reason.OVERLAP
    session.remove(entries[0])
    call_getppid(CALLS)
    assert [hits(each) for each in entries] == [CALLS, 2 * CALLS, 2 * CALLS]
    session.remove(*entries[1:])
    assert whole(GETPPID) == before


def test_returns_are_counted_where_functions_end(session):
    entry, leaving = session.count("kernel::vfs_read:entry", "kernel::vfs_read:return")
    assert session.refused == []
    read(CALLS)
    assert CALLS <= hits(leaving) <= hits(entry) + 100, "calls may have been under way"
    (endless,) = session.count("kernel::do_exit:return")
    ((_, why),) = endless.refused
    assert why.reason is Reason.NO_EXIT


def test_hits_in_some_processes_alone(loaded, system_calls):
    def elsewhere():
        subprocess.run([system_calls, str(GETPPID_NUMBER), str(CALLS), "2"], check=True)

    before = whole(GETPPID)
    with anyprobe.kernel(mechanism="splice", pids=[1, os.getpid()]) as session:
        (here,) = session.count(f"kernel::{GETPPID}")
        assert session.refused == []
        call_getppid(CALLS)
        elsewhere()
        assert hits(here) == CALLS
    with anyprobe.kernel(mechanism="splice", pids=[1]) as session:
        several = session.count(f"kernel::{GETPPID}", f"kernel::{GETPPID}:return")
        assert session.refused == []
        call_getppid(CALLS)
        assert [hits(each) for each in several] == [0, 0]
    assert whole(GETPPID) == before


def test_what_processes_start_is_not_followed(loaded):
    with (
        anyprobe.kernel(mechanism="splice", pids=[os.getpid()], children=True) as session,
        pytest.raises(anyprobe.UnsupportedTarget, match="fentry and kprobe do"),
    ):
        session.count("kernel::vfs_read")


@pytest.mark.thorough
def test_another_session_sees_the_text_without_splices(session):
    body = function(GETPPID)
    place = f"kernel::{GETPPID}:{body[3].address - body[0].address:#x}"
    before = [line.bytes.hex() for line in session.explain(place).disassembly]
    session.count(f"kernel::{GETPPID}")
    script = f"import anyprobe; print([line.bytes.hex() for line in anyprobe.kernel().explain({place!r}).disassembly])"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(before)


@pytest.mark.thorough
def test_splices_of_a_module_go_before_it(session):
    subprocess.run(["modprobe", "loop"], check=True)
    (probe,) = session.count("kernel:loop:loop_control_ioctl:entry")
    assert session.refused == []
    with open("/dev/loop-control", "rb", buffering=0) as file:
        for _ in range(5):
            fcntl.ioctl(file, LOOP_CTL_GET_FREE)
    (site,) = probe.results()
    assert (site.hits, site.armed, site.notes) == (5, True, ())
    subprocess.run(["modprobe", "-r", "loop"], check=True)
    (site,) = probe.results()
    assert (site.hits, site.armed) == (5, False)
    assert "[GONE]" in site.notes[0]
    subprocess.run(["modprobe", "loop"], check=True)
    with open("/dev/loop-control", "rb", buffering=0) as file:
        fcntl.ioctl(file, LOOP_CTL_GET_FREE)
    (site,) = probe.results()
    assert (site.hits, site.armed) == (5, False)
    session.remove(probe)
    subprocess.run(["modprobe", "-r", "loop"], check=True)
