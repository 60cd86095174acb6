"""Thousands of splices at once in the scheduler, file systems, pipes and TCP, while work there has right results."""

import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

import anyprobe
from anyprobe.isa.decode import decode_range
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.driver.device import BatchRefused, Driver
from support import checked_work
from support.kernel_patches import ManyPatches, call_getppid, fixups, text, warnings

ENTRIES = (
    "sched*", "*_fair", "*_rt", "vfs_*", "ksys_*", "do_*", "__do_*", "__x64_sys_*", "pipe_*", "file_*", "filemap_*",
    "generic_*", "__generic_*", "d_*", "dentry_*", "path_*", "inode_*", "iov_*", "copy_*", "page_*", "folio_*", "tcp_*",
    "__tcp_*", "ip_*", "__ip_*", "inet_*", "sock_*", "sk_*", "skb_*", "__skb_*", "dev_*", "netif_*", "wake_*", "get_*",
    "put_*", "set_*", "shmem_*", "simple_*", "seq_*", "proc_*", "mm_*", "vma_*", "unmap_*", "blk_*", "bio_*",
    "security_*",
)  # fmt: skip
BLOCKS = (
    "__schedule", "try_to_wake_up", "ttwu_do_activate", "wake_up_process", "vfs_read", "vfs_write", "ksys_read",
    "ksys_write", "new_sync_read", "new_sync_write", "pipe_read", "pipe_write", "tcp_*", "ip_queue_xmit",
    "ip_local_deliver", "do_sys_openat2", "do_filp_open", "path_openat", "link_path_walk*", "shmem_*", "generic_file_*",
    "filemap_*",
)  # fmt: skip


@pytest.fixture
def applied(monkeypatch):
    """Return what each batch took: writes, seconds, the last stop in nanoseconds, tries."""
    whole, took = Driver.apply, []

    def apply(self, writes, fixups=(), **options):
        writes = list(writes)
        began = time.monotonic()
        result = whole(self, writes, fixups, **options)
        took.append((len(writes), time.monotonic() - began, result.stopped_ns, result.tries))
        return result

    monkeypatch.setattr(Driver, "apply", apply)
    return took


@pytest.fixture
def folder(tmp_path):
    """Return a folder of an ext4 file system, of another kind where there is none."""
    image, place = tmp_path / "image", tmp_path / "ext4"
    place.mkdir()
    mounted = False
    if shutil.which("mkfs.ext4"):
        subprocess.run(["truncate", "-s", "64M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        mounted = not subprocess.run(["mount", "-o", "loop", image, place], check=False, capture_output=True).returncode
    yield place
    if mounted:
        subprocess.run(["umount", place], check=True)
        subprocess.run(["fsck.ext4", "-nf", image], check=True, capture_output=True)


def whole_text():
    """Return where the kernel's own text is."""
    low, high = (symbols.running().named(name) for name in ("_stext", "_etext"))
    end = high[0].address if high else symbols.running().data("_etext")
    assert end is not None
    return low[0].address, end


@contextmanager
def unharmed():
    """Check that text and log are the same afterwards."""
    low, high = whole_text()
    before, log = text(low, high - low), warnings()
    yield
    with Driver() as driver:
        assert driver.live == 0
    after = text(low, high - low)
    changed = [low + at for at in range(len(before)) if before[at] != after[at]] if after != before else []
    assert [hex(at) for at in changed[:10]] == []
    assert warnings() == log


def single_sites(driver, places, most):
    """Return patches, and writes of single instructions in some functions, as far as the driver accepts them."""
    patches, faulting = ManyPatches(driver), fixups()
    low, high = whole_text()
    content = text(low, high - low)
    table = symbols.running()
    made = []
    for found in places:
        end = table.next_after(found)
        if end is not None and low <= found.address < end <= high and len(made) < most:
            body = decode_range(content[found.address - low : end - low], found.address)
            made += patches.single(body[2:], most - len(made), faulting)
    patches.write()
    made.sort(key=lambda each: each.write.address)
    while True:
        try:
            driver.apply([each.write for each in made], [fixup for each in made for fixup in each.fixups])
        except BatchRefused as refusal:
            left = [each for each in made if each.write.address not in refusal.verdicts]
            if len(left) == len(made):
                raise
            made = left
        else:
            driver.apply([each.write.undone() for each in made])
            return patches, made


def functions(patterns):
    """Return the functions of the kernel itself that fit, in the patterns' order."""
    found = [each for pattern in patterns for each in symbols.running().matching(pattern)]
    return list({each.address: each for each in found if each.module == symbols.KERNEL}.values())


@pytest.mark.parametrize(
    ("places", "most"),
    [
        ([name for name in BLOCKS if "*" not in name], 100),
        pytest.param(BLOCKS, 3000, marks=pytest.mark.thorough),
        pytest.param((*BLOCKS, *ENTRIES), 20000, marks=[pytest.mark.thorough, pytest.mark.timeout(3600)]),
    ],
    ids=["some", "thousands", "twenty thousand"],
)
def test_single_instructions(loaded, folder, applied, places, most):
    for each in (checked_work.ping_pong, checked_work.echo):
        each(5)  # static keys that flip once have flipped
    checked_work.files(folder, 2)
    with unharmed(), Driver() as driver:
        patches, made = single_sites(driver, functions(places), most * 5 // 4)
        writes = [each.write for each in made]
        faulting = [fixup for each in made for fixup in each.fixups]
        for _ in range(3):
            with checked_work.going_on(folder):
                before = patches.hits()
                driver.apply(writes, faulting)
                checked_work.ping_pong()
                checked_work.files(folder)
                checked_work.echo()
                assert patches.hits() - before > checked_work.ROUNDS
                driver.apply([write.undone() for write in writes])
        for number, seconds, stopped, tries in applied[-6:]:
            print(f"{number} writes in {seconds:.3f} s at try {tries}, stopped for {stopped / 1e6:.3f} ms")
        assert len(writes) >= most


def armed_and_worked(specs, folder, applied, least):
    """Splice, and work while all of it counts."""
    for each in (checked_work.ping_pong, checked_work.echo):
        each(5)  # static keys that flip once have flipped
    checked_work.files(folder, 2)
    with unharmed(), checked_work.going_on(folder), anyprobe.kernel(mechanism="splice") as session:
        began = time.monotonic()
        probes = session.count(*specs)
        took = time.monotonic() - began
        checked_work.ping_pong()
        checked_work.files(folder)
        checked_work.echo()
        call_getppid(1000)
        reasons = {}
        for probe in probes:
            for _, why in probe.refused:
                reasons[why.reason.value] = reasons.get(why.reason.value, 0) + 1
        sites = [site for probe in probes for site in probe.results()]
        armed = [site for site in sites if site.armed]
        writes, seconds, stopped, tries = applied[-1]
        print(f"{len(sites)} sites, {len(armed)} armed in {took:.1f} s, refused: {reasons}")
        print(f"{writes} writes applied in {seconds:.3f} s at try {tries}, stopped for {stopped / 1e6:.3f} ms")
        print(f"{sum(site.hits for site in sites)} hits at {sum(site.hits > 0 for site in sites)} sites")
        assert len(armed) >= least
        assert sum(site.hits > 0 for site in sites) >= least // 20


@pytest.mark.thorough
@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_all_blocks_of_functions(loaded, folder, applied):
    names = [name for name in BLOCKS if "*" not in name and symbols.running().named(name)]
    armed_and_worked([f"kernel:vmlinux:{name}:block" for name in names], folder, applied, 150)
