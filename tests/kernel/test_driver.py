"""The driver: whole batches or nothing, exact counts, refusals by name, and text as it was when its client is gone."""

import ctypes
import errno
import os
import select
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import anyprobe
from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import preemption, symbols
from anyprobe.target.kernel.driver import loading
from anyprobe.target.kernel.driver.device import BatchRefused, Driver
from anyprobe.target.kernel.driver.layout import NEAR_COUNTERS, Fixup, Verdict, Write
from support import guest_driver
from support.disturbances import live_patched
from support.kernel_patches import Patches, call_getppid, fixups, function, text
from support.late_memory import memory_that_is_late

GETPPID = "__do_sys_getppid"
CALLS = 5000
GROUP = 4711
THUNKS = (
    "__x86_indirect_thunk_rax", "__x86_return_thunk", "srso_return_thunk", "srso_alias_return_thunk",
    "its_return_thunk", "retbleed_return_thunk", "call_depth_return_thunk", "__x86_indirect_its_thunk_array",
    "entry_ibpb",    "ftrace_caller", "ftrace_call", "ftrace_regs_caller", "ftrace_regs_call", "return_to_handler",
    "relocate_kernel", "identity_mapped", "virtual_mapped", "swap_pages", "arch_prepare_optimized_kprobe",
)  # fmt: skip
"""Code that entry code goes through, and what the kernel copies elsewhere as it is."""
IN_USE = Path("/sys/module/anyprobe/refcnt")


def refused(driver, *writes, fixups=(), tries=3):
    """Return what a batch is refused with: the errno's name and the verdict."""
    with pytest.raises(BatchRefused) as caught:
        driver.apply(writes, fixups, tries=tries)
    assert "\n" not in str(caught.value)
    return errno.errorcode[caught.value.errno], caught.value.verdict


def verdict_on(driver, write):
    """Return what the driver says of a write; it is taken out again."""
    try:
        driver.apply([write])
    except BatchRefused as refusal:
        return refusal.verdict
    driver.apply([write.undone()])
    return Verdict.DONE


def spliced(patches, name=GETPPID):
    """Return the first write that is possible in a function, behind its entry."""
    body = function(name)
    return next(made for index in range(3, len(body)) if (made := patches.counting(body, index)) is not None).write


def test_each_instruction_alone_is_counted_exactly(driver, patches):
    body = function(GETPPID)
    counted = 0
    for index, insn in enumerate(body):
        if not body[index - 1].falls_through:
            break  # what fills up behind the function
        made = patches.counting(body, index)
        if made is None:
            continue
        write, slot, _ = made
        verdict = verdict_on(driver, write)
        if verdict is not Verdict.DONE:
            assert verdict in {Verdict.FTRACE, Verdict.NOT_BOUNDARY}, hex(insn.address)
            continue
        driver.apply([write])
        assert text(write.address, len(write.new)) == write.new
        call_getppid(CALLS, threads=2)
        driver.apply([write.undone()])
        assert patches.count(slot) == 2 * CALLS, insn.text
        assert text(write.address, len(write.old)) == write.old
        counted += 1
    assert counted >= 6
    assert driver.live == 0


def test_several_at_once_and_one_wrong_one(driver, patches):
    body = function("vfs_read")
    writes, end = [], 0
    for index in range(3, len(body)):
        if body[index].address < end or len(writes) == 20:
            continue
        made = patches.counting(body, index)
        if made is not None and verdict_on(driver, made[0]) is Verdict.DONE:
            writes.append(made[0])
            end = made[0].address + len(made[0].old)
    assert len(writes) >= 5
    wrong = replace(writes[2], old=bytes(len(writes[2].old)))
    assert refused(driver, *writes[:2], wrong, *writes[3:]) == ("ESTALE", Verdict.OLD_BYTES)
    assert driver.live == 0
    moved = [replace(write, boundaries=(1,) if write.boundaries != (1,) else ()) for write in writes[1:3]]
    with pytest.raises(BatchRefused) as caught:
        driver.apply([writes[0], *moved, *writes[3:]])
    assert caught.value.verdicts == dict.fromkeys([write.address for write in moved], Verdict.NOT_BOUNDARY)
    assert all(text(write.address, len(write.old)) == write.old for write in writes)
    done = driver.apply(writes)
    assert done.tries >= 1
    assert done.stopped_ns > 0
    assert driver.live == len(writes)
    assert Path("/proc/self/stat").read_text()
    driver.apply([write.undone() for write in writes])
    assert driver.live == 0


def test_what_is_no_instruction(driver, patches):
    write = spliced(patches)
    moved = replace(write, address=write.address + 1, old=write.old[1:], new=write.new[:-1])
    assert refused(driver, moved) == ("EINVAL", Verdict.NOT_BOUNDARY)
    longer = replace(write, old=text(write.address, len(write.old) + 1), new=write.new + b"\x90")
    assert refused(driver, longer)[1] in {Verdict.NOT_BOUNDARY, Verdict.CALL_INSIDE}
    other = tuple({1, 2, 3} - set(write.boundaries))[:1]
    assert refused(driver, replace(write, boundaries=other)) == ("EINVAL", Verdict.NOT_BOUNDARY)


@pytest.mark.parametrize(
    ("address", "error", "verdict"),
    [
        (0, "EFAULT", Verdict.NOT_TEXT),
        (0x1000, "EFAULT", Verdict.NOT_TEXT),
        (0xFFFF888000000000, "EFAULT", Verdict.NOT_TEXT),
        (0xFFFFFFFFFFFFFFF0, "EFAULT", Verdict.NOT_TEXT),
        ("patches", "EPERM", Verdict.FORBIDDEN),
        ("entry_SYSCALL_64", "EPERM", Verdict.FORBIDDEN),
        ("exc_nmi", "EPERM", Verdict.FORBIDDEN),
        ("exc_page_fault", "EPERM", Verdict.FORBIDDEN),
        ("stop_machine_cpuslocked", "EPERM", Verdict.FORBIDDEN),
        ("secondary_startup_64", "EPERM", Verdict.FORBIDDEN),
        ("native_write_msr", "EPERM", Verdict.FORBIDDEN),
        ("vfs_read", "EPERM", Verdict.FTRACE),
        *((name, "EPERM", Verdict.FORBIDDEN) for name in THUNKS),
        ("__SCT__tp_func_sched_switch", "EPERM", Verdict.FORBIDDEN),
    ],
)
def test_where_nothing_may_be_written(driver, address, error, verdict):
    if address == "patches":
        address = driver.patches
    elif isinstance(address, str):
        if not symbols.running().named(address):
            pytest.skip("this kernel has no such code")
        address = symbols.running().named(address)[0].address
        first = text(address, 4)
        address += 4 if first == b"\xf3\x0f\x1e\xfa" else 0
    found = refused(driver, Write(address, bytes(5), bytes(5)))
    assert found == (error, verdict) or (verdict is Verdict.FORBIDDEN and found == ("EFAULT", Verdict.NOT_TEXT))


def test_odd_batches(driver, patches):
    write = spliced(patches)
    assert refused(driver, write, write) == ("EINVAL", Verdict.BAD_WRITE)
    assert refused(driver, replace(write, old=b"", new=b"")) == ("EINVAL", Verdict.BAD_WRITE)
    assert refused(driver, replace(write, boundaries=(0,))) == ("EINVAL", Verdict.BAD_WRITE)
    assert refused(driver, replace(write, boundaries=(31,))) == ("EINVAL", Verdict.BAD_WRITE)
    assert refused(driver, write, fixups=[Fixup(0, write.address)]) == ("EINVAL", Verdict.BAD_FIXUP)
    assert refused(driver, write, fixups=[Fixup(patches.start, write.address)]) == ("EINVAL", Verdict.BAD_FIXUP)
    for size in (0, 1 << 40):
        with pytest.raises(KernelRefused):
            driver.reserve(size)
        with pytest.raises(KernelRefused):
            driver.share(size)
        with pytest.raises(KernelRefused):
            driver.per_processor(size)
    for address in (driver.patches + driver.patches_size - 1, driver.patches - 1, patches.start + patches.size):
        with pytest.raises(KernelRefused):
            driver.write_patch(address, b"\xcc")
    with pytest.raises(KernelRefused):
        driver.read_per_processor(0, 8)


def test_random_requests_change_nothing(driver):
    import random

    chance = random.Random(20)
    before = text(symbols.running().named(GETPPID)[0].address, 64)
    text_start = symbols.running().named("_stext")[0].address
    for _ in range(300):
        writes = [
            Write(
                chance.choice([chance.getrandbits(64), text_start + chance.randrange(12 << 20)]),
                chance.randbytes(length), chance.randbytes(length),
                tuple(sorted({chance.randrange(32) for _ in range(chance.randrange(3))})),
            )
            for length in [chance.randrange(1, 33) for _ in range(chance.randrange(1, 4))]
        ]  # fmt: skip
        with pytest.raises(BatchRefused):
            driver.apply(writes, tries=1)
    assert text(symbols.running().named(GETPPID)[0].address, 64) == before
    call_getppid(10)


def test_a_static_key_that_flips_beside_a_write(driver, patches):
    body = function("__schedule")
    verdicts = set()
    for index in range(len(body)):
        if body[index].raw == bytes.fromhex("0f1f440000"):
            made = patches.counting(body, index)
            assert made is not None
            verdicts.add(verdict_on(driver, made[0]))
    assert Verdict.STATIC_KEY in verdicts


@pytest.mark.thorough
def test_a_kprobe_is_left_alone_and_may_come_later(driver, patches):
    write, slot, _ = next(filter(None, (patches.counting(function(GETPPID), index) for index in range(3, 9))))
    place = f"kernel::{GETPPID}:{write.address - function(GETPPID)[0].address:#x}"
    with anyprobe.kernel(mechanism="kprobe") as session:
        session.count(place)
        assert refused(driver, write) == ("EPERM", Verdict.KPROBE)
    driver.apply([write])
    with anyprobe.kernel(mechanism="kprobe") as session:
        (probe,) = session.count(place)
        before = patches.count(slot)
        call_getppid(CALLS)
        assert patches.count(slot) - before == CALLS
        assert sum(site.hits for site in probe.results()) == CALLS
        assert refused(driver, write.undone()) == ("EPERM", Verdict.KPROBE)
    driver.apply([write.undone()])


def test_faults_of_copies_are_answered_as_at_the_original(driver, patches):
    libc = ctypes.CDLL(None, use_errno=True)

    def bad_open():
        result = libc.open(ctypes.c_void_p(0x1000), 0)
        return result, errno.errorcode[ctypes.get_errno()]

    expected = bad_open()
    assert expected == (-1, "EFAULT")
    tried = 0
    body, faulting = function("strncpy_from_user"), fixups()
    for index in range(3, len(body)):
        made = patches.counting(body, index, faulting)
        if made is None or not made.fixups:
            continue
        assert refused(driver, made.write) == ("EPERM", Verdict.FAULTS)
        for _ in range(20):  # each fault leaves its place on this task's own stack, where nobody is any more
            driver.apply([made.write], made.fixups)
            assert bad_open() == expected
            os.path.exists("/a/path/that/is/read/word/by/word")
            driver.apply([made.write.undone()])
            assert bad_open() == expected
        assert patches.count(made.slot) >= 20
        tried += 1
    assert tried >= 1
    assert bad_open() == expected


def that_may_fault(patches, name):
    """Return the first write in a function with a copy that may fault."""
    body, faulting = function(name), fixups()
    may = [index for index, insn in enumerate(body) if insn.address in faulting]
    # it may be displaced with others
    places = sorted({near for index in may for near in range(max(index - 4, 3), index + 1)})
    found = (patches.counting(body, index, faulting) for index in places)
    return next(made for made in found if made is not None and made.fixups)


def test_copies_that_may_fault_have_fix_ups_also_when_written_anew(driver, patches):
    made, again = (that_may_fault(patches, "strncpy_from_user") for _ in range(2))
    driver.apply([made.write], made.fixups)
    anew = replace(made.write, old=made.write.new, new=again.write.new, boundaries=())
    assert refused(driver, anew) == ("EPERM", Verdict.FAULTS)
    for _ in range(3):
        driver.apply([anew], again.fixups)
        assert ctypes.CDLL(None, use_errno=True).open(ctypes.c_void_p(0x1000), 0) == -1
        assert ctypes.get_errno() == errno.EFAULT
        driver.apply([anew.undone()], made.fixups)
    assert patches.count(again.slot) >= 3
    driver.apply([made.write.undone()])


def test_a_task_that_waits_for_memory_in_a_patch(driver):
    """It has its fix-up though the client is gone. Where it may have found that already, others are not written."""
    other = that_may_fault(Patches(driver), "strnlen_user")
    result = []

    def open_late():
        result.append((ctypes.CDLL(None, use_errno=True).open(ctypes.c_void_p(address), 0), ctypes.get_errno()))

    with Driver() as gone, memory_that_is_late() as (address, waited_for, _, never_come):
        theirs = Patches(gone)
        made = that_may_fault(theirs, "strncpy_from_user")
        gone.apply([made.write], made.fixups)
        before = theirs.count(made.slot)
        waiting = threading.Thread(target=open_late)
        waiting.start()
        assert select.select([waited_for], [], [], 60)[0]
        assert theirs.count(made.slot) == before + 1
        # nothing is written over several instructions while a task is in any patch
        if preemption.is_preemptible() or other.write.boundaries:
            assert refused(driver, other.write, fixups=other.fixups) == ("EAGAIN", Verdict.BUSY)
        else:
            driver.apply([other.write], other.fixups)
            driver.apply([other.write.undone()])
        gone.close()
        assert driver.live == 0
        assert text(made.write.address, len(made.write.old)) == made.write.old
        assert int(IN_USE.read_text()) == 2, "this client and what the task is in"
        never_come()
        waiting.join(60)
    assert result == [(-1, errno.EFAULT)]
    for _ in range(100):
        if int(IN_USE.read_text()) == 1:
            break
        time.sleep(0.1)
    assert int(IN_USE.read_text()) == 1
    driver.apply([other.write], other.fixups)
    driver.apply([other.write.undone()])


def test_what_a_killed_client_has_written_is_taken_out(loaded):
    before = text(symbols.running().named(GETPPID)[0].address, 64)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            driver = Driver()
            driver.apply([spliced(Patches(driver))])
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(reading, 1) == b"x"
    assert text(symbols.running().named(GETPPID)[0].address, 64) != before
    with pytest.raises(KernelRefused) as caught:
        loading.unload()
    assert "in use" in str(caught.value)
    with Driver() as other:
        assert other.live == 1
        mine = spliced(Patches(other))
        assert refused(other, mine)[1] in {Verdict.OVERLAP, Verdict.OLD_BYTES}
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert text(symbols.running().named(GETPPID)[0].address, 64) == before
    call_getppid(10)


def test_text_of_a_module_that_goes(driver, patches):
    subprocess.run(["modprobe", "loop"], check=True)
    write = spliced(patches, "loop_control_ioctl")
    driver.apply([write])
    assert driver.live == 1
    subprocess.run(["modprobe", "-r", "loop"], check=True)
    assert driver.live == 0
    assert refused(driver, write) == ("EFAULT", Verdict.NOT_TEXT)


def test_each_client_has_counters_of_its_own(driver):
    near = driver.per_processor(8 * NEAR_COUNTERS)
    assert near < 1 << 31
    with Driver() as other:
        far = other.per_processor(64)
        assert far >= near + 8 * NEAR_COUNTERS or far + 64 <= near
        with pytest.raises(KernelRefused):
            other.read_per_processor(near, 8)


def test_what_is_written_is_told_with_the_original_bytes(driver, patches):
    assert driver.changes() == []
    write = spliced(patches)
    driver.apply([write])
    with Driver() as other:
        (told,) = other.changes()
    assert (told.address, told.old, told.new) == (write.address, write.old, write.new)


def test_memory_of_processors(driver):
    offset = driver.per_processor(64)
    assert driver.read_per_processor(offset, 64) == [bytes(64)] * driver.processors
    shared = driver.share(5000)
    assert len(shared.view) == 8192
    shared.view[:4] = b"abcd"
    assert bytes(shared.view[:4]) == b"abcd"


@pytest.mark.parametrize(
    ("member", "capable", "said"),
    [(False, False, "Permission denied"), (True, False, "Operation not permitted"), (False, True, "Permission denied"),
     (True, True, "")],
)  # fmt: skip
def test_users_need_the_group_and_the_capability(loaded, member, capable, said):
    rule = Path(loading.__file__).with_name("70-anyprobe.rules").read_text().split()
    assert 'MODE="0660"' in rule
    Path("/dev/anyprobe").chmod(0o660)
    os.chown("/dev/anyprobe", 0, GROUP)  # what the rule does, by the group's name
    try:
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={GROUP if member else 65534}",
             *(["--inh-caps=+sys_admin,+sys_module", "--ambient-caps=+sys_admin,+sys_module"] if capable else []),
             "sh", "-c", ": <> /dev/anyprobe"],
            capture_output=True, text=True,
        )  # fmt: skip
    finally:
        os.chown("/dev/anyprobe", 0, 0)
        Path("/dev/anyprobe").chmod(0o600)
    assert said in done.stderr
    assert (done.returncode == 0) is (said == "")


def accepted(driver, patches, names):
    """Return at which instructions of some functions something can be written, each by itself."""
    found = []
    for name in names:
        for function_of in symbols.running().named(name):
            body = function(name)
            for index in range(len(body)):
                patches.used, patches.slots = 0, 0
                made = patches.counting(body, index)
                if made is not None and not made.fixups and verdict_on(driver, made.write) is Verdict.DONE:
                    found.append(f"{name}+{body[index].address - function_of.address:#x}")
    return found


def test_static_call_trampolines_of_modules(driver, patches):
    """The kernel rewrites them whenever what they lead to changes."""
    if subprocess.run(["modprobe", "kvm"], check=False).returncode:
        pytest.skip("no kvm for this kernel")
    try:
        names = [each.name for each in symbols.running().matching("__SCT__kvm_x86_*", "kvm")]
        assert len(names) > 50
        assert accepted(driver, patches, names) == []
        done = subprocess.run(["modprobe", "kvm_amd"], check=False)  # which changes them all
        assert driver.live == 0
    finally:
        subprocess.run(["modprobe", "-r", "kvm_amd", "kvm"], check=False)
    assert done.returncode == 0 or driver.live == 0


def test_text_of_a_live_patch(driver, patches):
    """It is relocated when a module that it patches comes or goes."""
    module = guest_driver.module("live_patch", os.uname().release)
    if not module.exists():
        pytest.skip("no live patch for this kernel")
    with live_patched(module):
        names = [each.name for each in symbols.running().matching("patched_*", "live_patch")]
        assert names
        assert accepted(driver, patches, names) == []
