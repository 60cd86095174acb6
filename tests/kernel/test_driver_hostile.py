"""A client that asks for everything that is wrong: told by errno, and the kernel goes on as if nothing had been."""

import ctypes
import errno
import mmap
import os
import random
import select
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.driver import layout
from anyprobe.target.kernel.driver.device import PATH, BatchRefused, Driver
from anyprobe.target.kernel.driver.layout import MAX_LENGTH, MAX_WRITES, Fixup, Verdict, Write
from anyprobe.target.system import gateway
from support.kernel_patches import Patches, call_getppid, function, jump, text, warnings, writes_of
from support.late_memory import memory_that_is_late

FUNCTIONS = "vfs_read", "vfs_write", "ksys_read", "__do_sys_getppid", "do_sys_openat2"
ROUNDS = 400
MAX_FIXUPS = 4096


@pytest.fixture
def driver(loaded):
    """Open the device; text and the kernel's log are the same afterwards."""
    before, log = {name: whole(name) for name in FUNCTIONS}, warnings()
    with Driver() as opened:
        yield opened
    with Driver() as again:
        assert again.live == 0
    assert {name: whole(name) for name in FUNCTIONS} == before
    call_getppid(10)
    assert warnings() == log


@pytest.fixture
def patches(driver):
    return Patches(driver)


def whole(name):
    body = function(name)
    return text(body[0].address, body[-1].end - body[0].address)


def verdict(driver, *writes, fixups=()):
    with pytest.raises(BatchRefused) as caught:
        driver.apply(writes, fixups, tries=1)
    return caught.value.verdict


def batch(**changed):
    """Return a batch as the driver reads it: without writes, but for what is changed."""
    fields = dict.fromkeys(
        ("writes", "fixups", "write_count", "fixup_count", "tries", "failed", "reason", "tried", "ns", "told"), 0
    )
    return layout.BATCH.pack(*(fields | changed).values())


def error_of(fd, request, content):
    try:
        gateway.ioctl(fd, request, bytearray(content))
    except OSError as failure:
        return failure.errno
    return 0


def test_what_a_jump_may_lead_to(driver, patches):
    (write, other) = writes_of(patches, ["vfs_read"], 2)
    length = len(write.old)

    def led(to):
        return replace(write, new=jump(write.address, to) + write.new[5:])

    for to in (
        write.address + 64,
        patches.start + patches.size,
        driver.patches - 1,
        patches.start - 1,
        0xFFFFFFFF81000000,
    ):
        assert verdict(driver, led(to)) is Verdict.STRAY, hex(to)
    for new in (
        b"\xcc" * length,
        b"\xc3" + b"\x90" * (length - 1),
        b"\xe9" + bytes(length - 1),
        b"\x0f\x05" + write.new[2:],
    ):
        assert verdict(driver, replace(write, new=new)) is Verdict.STRAY, new.hex()
    with Driver() as another:
        theirs = another.reserve(4096)
        assert verdict(driver, led(theirs)) is Verdict.STRAY
    assert verdict(driver, led(other.address), other) is Verdict.STRAY, "one may be taken out before the other"
    driver.apply([write])
    assert verdict(driver, replace(led(write.address + 64), old=write.new, boundaries=())) is Verdict.STRAY
    assert driver.live == 1
    driver.apply([other])
    driver.apply([write.undone(), other.undone()])


def test_instructions_begin_where_others_did(driver, patches):
    write = next(each for each in writes_of(patches, FUNCTIONS, 10) if len(each.old) >= 6 and 1 not in each.boundaries)
    there = b"\x90" + jump(write.address + 1, patches.start)
    for new in (
        there + b"\x90" * (len(write.old) - len(there)),
        b"\x90" + write.old[1:],
        b"\xf0\x0f\x1f\x00" + b"\x90" * (len(write.old) - 4),
    ):
        assert verdict(driver, replace(write, new=new)) is Verdict.STRAY, new.hex()
    driver.apply([write])


def test_what_cannot_be_told_is_not_done(driver, patches):
    write, *_ = writes_of(patches, ["vfs_read"], 1)
    content = ctypes.create_string_buffer(write.packed())
    good = {"writes": ctypes.addressof(content), "write_count": 1, "tries": 1}
    assert error_of(driver._fd, layout.APPLY, batch(**good, told=8)) == errno.EFAULT
    assert driver.live == 0
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.mmap(-1, mmap.PAGESIZE)
    page.write(batch(**good))
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    assert libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ) == 0
    assert libc.ioctl(driver._fd, ctypes.c_ulong(layout.APPLY), address) == -1
    assert ctypes.get_errno() == errno.EFAULT
    assert driver.live == 0
    assert error_of(driver._fd, layout.APPLY, batch(**good)) == 0
    assert driver.live == 1


def test_landing_pads_stay(driver):
    start = function("__do_sys_getppid")[0]
    if start.raw != b"\xf3\x0f\x1e\xfa":
        pytest.skip("no landing pads in this kernel")
    assert verdict(driver, Write(start.address, start.raw, start.raw)) is Verdict.LANDING_PAD


def test_changed_batches(driver, patches):
    chance = random.Random(28)
    good = writes_of(patches, FUNCTIONS, 10)
    assert len(good) >= 15
    seen = set()
    for _ in range(ROUNDS):
        write = chance.choice(good)
        kind = chance.randrange(6)
        if kind == 0:
            wrong = replace(write, address=write.address ^ 1 << chance.randrange(64))
        elif kind == 1:
            at = chance.randrange(len(write.old))
            wrong = replace(
                write, old=write.old[:at] + bytes([write.old[at] ^ 1 << chance.randrange(8)]) + write.old[at + 1 :]
            )
        elif kind == 2:
            wrong = replace(write, boundaries=tuple(sorted({*write.boundaries} ^ {chance.randrange(1, MAX_LENGTH)})))
        elif kind == 3:
            size = chance.choice([size for size in range(1, MAX_LENGTH + 1) if size != len(write.old)])
            wrong = replace(write, old=text(write.address, size), new=write.new[:size].ljust(size, b"\x90"))
        elif kind == 4:
            wrong = replace(write, new=bytes([write.new[0] ^ 1 << chance.randrange(8)]) + write.new[1:])
        else:
            wrong = replace(write, address=write.address + chance.choice([-2, -1, 1, 2]))
        rest = [each for each in chance.sample(good, 3) if abs(each.address - wrong.address) > MAX_LENGTH]
        try:
            driver.apply([*rest, wrong], tries=1)
        except BatchRefused as refusal:
            seen.add(refusal.verdict)
        else:  # a longer piece of whole instructions: as good as the one that was meant
            assert kind == 3
            driver.apply([each.undone() for each in (*rest, wrong)])
        assert driver.live == 0
    assert seen >= {Verdict.BAD_WRITE, Verdict.NOT_BOUNDARY, Verdict.OLD_BYTES, Verdict.STRAY}
    driver.apply(good)
    assert driver.live == len(good)


def test_overlapping_batches(driver, patches):
    write, *_ = writes_of(patches, ["vfs_write"], 1)
    for by in range(1 - len(write.old), len(write.old)):
        moved = replace(write, address=write.address + by)
        assert verdict(driver, *sorted([write, moved], key=lambda each: each.address)) is Verdict.BAD_WRITE
    driver.apply([write])
    for by in (*range(1 - len(write.old), 0), *range(1, len(write.old))):
        assert verdict(driver, replace(write, address=write.address + by)) is Verdict.OVERLAP
    with Driver() as other:
        assert verdict(other, write) is Verdict.OVERLAP
        assert verdict(other, write.undone()) is Verdict.OVERLAP


def test_huge_and_unreadable_batches(driver):
    fd = os.open(PATH, os.O_RDWR)
    with suppress(OSError), os.fdopen(fd, "rb", buffering=0, closefd=True):
        for most, field in ((MAX_WRITES, "write_count"), (MAX_FIXUPS, "fixup_count")):
            for count in (most + 1, 1 << 31, (1 << 32) - 1):
                assert error_of(fd, layout.APPLY, batch(**{field: count})) == errno.E2BIG
        assert error_of(fd, layout.APPLY, batch(tries=(1 << 32) - 1)) == errno.E2BIG
        for address in (0, 8, 1 << 63, (1 << 64) - 1, 0xFFFFFFFF81000000, driver.patches):
            for field, count in (("writes", "write_count"), ("fixups", "fixup_count")):
                assert error_of(fd, layout.APPLY, batch(**{field: address, count: 4})) == errno.EFAULT
            assert error_of(fd, layout.LIST, layout.CHANGES.pack(address, 8, 0)) == 0, "there is nothing to write"
        many = b"".join(Write(0xFFFFFFFF81000000 + 16 * each, b"x", b"y").packed() for each in range(MAX_WRITES))
        space = ctypes.create_string_buffer(many)
        content = batch(writes=ctypes.addressof(space), write_count=MAX_WRITES, told=8)
        assert error_of(fd, layout.APPLY, content) in {errno.EPERM, errno.EINVAL, errno.EFAULT}


@pytest.mark.parametrize("field", ["writes", "fixups"])
def test_a_batch_in_memory_that_is_late_holds_up_nobody(driver, field):
    fd = os.open(PATH, os.O_RDWR)
    told = []

    def late():
        told.append(error_of(fd, layout.APPLY, batch(**{field: address, f"{field[:-1]}_count": 1})))

    def others():
        with Driver() as other:  # it maps memory, as the one that waits might
            told.append(len(other.share(4096).view) + other.live)

    with memory_that_is_late() as (address, waited_for, come, _):
        waiting, beside = threading.Thread(target=late), threading.Thread(target=others, daemon=True)
        waiting.start()
        assert select.select([waited_for], [], [], 60)[0]
        beside.start()
        beside.join(60)
        assert told == [4096]
        come()
        waiting.join(60)
    os.close(fd)
    assert told[1:] == [errno.EINVAL]


def test_random_requests(driver):
    chance = random.Random(4)
    fd = os.open(PATH, os.O_RDWR)
    sizes = [form.size for form in (layout.INFO, layout.REGION, layout.MEMORY, layout.BATCH, layout.CHANGES)]
    refused = 0
    for _ in range(ROUNDS):
        size = chance.choice([*sizes, chance.randrange(1 << 14)])
        request = chance.randrange(4) << 30 | size << 16 | ord("y") << 8 | chance.randrange(16)
        words = [chance.choice([0, 1, chance.getrandbits(64), chance.getrandbits(16)]) for _ in range(size // 8 + 1)]
        if request == layout.SHARE and words[0] <= 1 << 30:
            words[0] = chance.randrange(1 << 16)  # a gigabyte would be given
        content = b"".join(word.to_bytes(8, "little") for word in words).ljust(1 << 14, b"\0")
        refused += error_of(fd, request, content) != 0
        with suppress(OSError):
            os.pwrite(
                fd,
                b"\xcc" * chance.randrange(1, 64),
                chance.choice([chance.getrandbits(62), chance.randrange(9 << 20)]),
            )
            refused -= 1
        with suppress(OSError, ValueError, OverflowError):
            mmap.mmap(fd, chance.randrange(1, 1 << 16), offset=chance.getrandbits(40) & ~4095).close()
    assert refused > 0
    os.close(fd)


def test_wrong_fixups(driver, patches):
    write, *_ = writes_of(patches, ["vfs_read"], 1)
    faulting = symbols.running().named("copy_user_generic_string") or symbols.running().named("rep_movs_alternative")
    original = faulting[0].address
    for copy in (0, original, driver.patches - 1, patches.start + patches.size, (1 << 64) - 1):
        assert verdict(driver, write, fixups=[Fixup(copy, original)]) is Verdict.BAD_FIXUP
    with pytest.raises(KernelRefused):
        driver.apply([write], [Fixup(patches.start, original)] * 5000)
