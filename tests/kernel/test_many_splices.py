"""Thousands of splices at once in the scheduler, file systems, pipes and TCP, while work there has right results."""

import subprocess
import time
from collections import Counter
from typing import NamedTuple

import pytest

import anyprobe
from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.isa.decode import decode_range
from anyprobe.probes.providers.kernel import code as code_of
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.driver.device import BatchRefused, Driver
from anyprobe.target.kernel.driver.layout import MAX_WRITES
from support import checked_work, flows, kernel_patches
from support.kernel_patches import ManyPatches, call_getppid, fixups, text

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
WHOLE = (
    "__schedule", "schedule*", "try_to_wake_up", "ttwu_*", "*_task_fair", "*_entity", "pick_*", "wake_*",
    "vfs_*", "ksys_*", "do_sys_*", "do_filp_open", "path_*", "link_path_walk*", "lookup_*", "walk_*", "d_*", "dput",
    "file_*", "filemap_*", "generic_*", "iov_*", "folio_*", "pipe_*", "do_pipe*",
    "tcp_[arsw]*", "tcp_v4*", "tcp_clean*", "tcp_data*", "tcp_event*", "__tcp_*", "ip_[loqr]*", "__ip_[lq]*",
    "__netif_*", "skb_*", "seq_*",
)  # fmt: skip


class Batches(list):
    """What each batch took: writes, seconds, the last stop in nanoseconds, tries; and the tasks before the first."""

    before = None


@pytest.fixture
def applied(monkeypatch):
    """Return what batches took."""
    whole, took = Driver.apply, Batches()

    def apply(self, writes, fixups=(), **options):
        took.before = took.before or flows.tasks()
        writes = list(writes)
        began = time.monotonic()
        result = whole(self, writes, fixups, **options)
        took.append((len(writes), time.monotonic() - began, result.stopped_ns, result.tries))
        return result

    monkeypatch.setattr(Driver, "apply", apply)
    return took


def single_sites(driver, places, most):
    """Return patches, and writes of single instructions in some functions, as far as the driver accepts them."""
    patches, faulting = ManyPatches(driver), fixups()
    low, high = kernel_patches.whole_text()
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
    accepted = []
    for part in parts_of(made):
        left = part
        while refused := refused_by(driver, left):
            left = [each for each in left if each.write.address not in refused]
        put_back(driver, left)
        accepted += left
    return patches, accepted


def parts_of(made):
    """Return patches in parts that one batch takes."""
    return [made[at : at + MAX_WRITES] for at in range(0, len(made), MAX_WRITES)]


def refused_by(driver, made):
    """Put patches in force at once, or return where the driver refuses them."""
    try:
        driver.apply([each.write for each in made], [fixup for each in made for fixup in each.fixups])
    except BatchRefused as refusal:
        if not refusal.verdicts:
            raise
        return refusal.verdicts
    return {}


def put_back(driver, made):
    driver.apply([each.write.undone() for each in made])


def functions(patterns):
    """Return the functions of the kernel itself that fit, in the patterns' order."""
    found = [each for pattern in patterns for each in symbols.running().matching(pattern)]
    return list({each.address: each for each in found if each.module == symbols.KERNEL}.values())


@pytest.mark.parametrize(
    ("places", "most"),
    [
        pytest.param([name for name in BLOCKS if "*" not in name], 100, marks=pytest.mark.thorough),
        pytest.param(BLOCKS, 3000, marks=pytest.mark.thorough),
        pytest.param((*BLOCKS, *ENTRIES), 20000, marks=[pytest.mark.thorough, pytest.mark.timeout(3600)]),
    ],
    ids=["some", "thousands", "twenty thousand"],
)
def test_single_instructions(loaded, folder, applied, places, most):
    checked_work.warm_up(folder)
    with kernel_patches.unharmed(), Driver() as driver:
        patches, made = single_sites(driver, functions(places), most * 5 // 4)
        parts = parts_of(made)
        for _ in range(3):
            with checked_work.going_on(folder):
                before = patches.hits()
                for part in parts:
                    assert refused_by(driver, part) == {}
                told("applied", applied[-len(parts) :])
                checked_work.ping_pong()
                checked_work.files(folder)
                checked_work.echo()
                assert patches.hits() - before > checked_work.ROUNDS
                for part in parts:
                    put_back(driver, part)
                told("taken back", applied[-len(parts) :])
        assert len(made) >= most


def told(what, batches):
    """Print what some batches took."""
    numbers, seconds, stops, tries = zip(*batches, strict=True)
    print(
        f"{sum(numbers)} writes {what} in {len(stops)} stops, {max(tries)} tries at most and {sum(seconds):.2f} s; "
        f"stopped for {max(stops) / 1e6:.2f} ms at most, {sum(stops) / 1e6:.1f} ms together"
    )


class Unequal(NamedTuple):
    """Counts of blocks in a function of which as many have not been left as entered."""

    function: str
    surplus: int
    """How much more has been left than entered."""
    asleep: int
    """How many tasks more than at the beginning were in what is left."""
    unsure: int
    """By how many that may differ."""


def flow_of(probes, before, after):
    """Return the number of equations of flow, of those without calls, those that do not hold, and unknown functions."""
    code = code_of.running(symbols.running())
    blocks, counted, names = {}, {}, {}
    for probe in probes:
        for site in probe.sites:
            key = site.function.module, site.function.address - BIAS
            blocks.setdefault(key, set()).add(site.address - BIAS)
            names[key] = site.function.name
        for site in probe.results():
            if site.armed:
                key = site.module, site.address - site.offset - BIAS
                counted.setdefault(key, {})[site.address - BIAS] = site.hits
    plain, every, unequal, unknown = 0, 0, [], []
    for key, counts in counted.items():
        module = code.module(key[0])
        function = module.code.function_at(key[1])
        graph = flows.graph_of(code, module, function, blocks[key])
        if graph is None:
            unknown.append(names[key])
            continue
        was, now = (each.within(blocks[key], function.end) for each in (before, after))
        unsure = now.total() + was.total()
        if flows.is_of_scheduling(function) and not graph.switching:
            unsure += before.number + after.number
        now.update(dict.fromkeys(graph.switching, after.born - before.born))  # they begin elsewhere, and end here
        for part in graph.components(counts):
            surplus = sum(counts[block] for block in part.left) - sum(counts[block] for block in part.entered)
            asleep = sum(now[block] - was[block] for block in part.left)
            if part.is_outside:
                asleep -= now.total() - was.total()
            calls = part.is_outside or not graph.calling.isdisjoint(part.left)
            every, plain = every + 1, plain + (not calls)
            if surplus != asleep:
                unequal.append(Unequal(names[key], surplus, asleep, unsure if calls else 0))
    return every, plain, unequal, unknown


def armed_and_worked(specs, folder, applied, least):
    """Splice, and work while all of it counts; what has been counted conserves flow."""
    checked_work.warm_up(folder)
    with kernel_patches.unharmed(), anyprobe.kernel(mechanism="splice") as session:
        flows.tasks()  # what it needs is known then
        began = time.monotonic()
        probes = session.count(*specs)
        took = time.monotonic() - began
        batches = len(applied)
        with checked_work.going_on(folder):
            checked_work.ping_pong()
            checked_work.files(folder)
            checked_work.echo()
            checked_work.build(folder)
            call_getppid(1000)
        for probe in probes:
            probe.note_armed()
        ended = time.monotonic()
        session.remove(*probes)
        removed, after = time.monotonic() - ended, flows.tasks()
        reasons = Counter(why.reason.value for probe in probes for _, why in probe.refused)
        sites = [site for probe in probes for site in probe.results()]
        armed = [site for site in sites if site.armed]
        print(f"{len(sites)} sites, {len(armed)} armed in {took:.1f} s, removed in {removed:.1f} s, refused: {reasons}")
        told("applied", applied[:batches])
        told("taken back", applied[batches:])
        print(f"{sum(site.hits for site in sites)} hits at {sum(site.hits > 0 for site in sites)} sites")
        every, plain, unequal, unknown = flow_of(probes, applied.before, after)
        print(
            f"{every} sums of flow, {plain} of blocks without calls; functions left out: {len(unknown)} {unknown[:9]}"
        )
        print(f"not equal: {unequal}")
        assert len(armed) >= least
        assert sum(site.hits > 0 for site in sites) >= least // 20
        # a task of the kernel's may have gone to sleep elsewhere between the look at the stacks and the stop
        assert [each for each in unequal if abs(each.surplus - each.asleep) > each.unsure] == []


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_all_blocks_of_functions(loaded, folder, applied):
    names = [name for name in BLOCKS if "*" not in name and symbols.running().named(name)]
    armed_and_worked([f"kernel:vmlinux:{name}:block" for name in names], folder, applied, 150)


@pytest.mark.thorough
@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_all_blocks_of_the_scheduler_files_pipes_and_tcp(loaded, folder, applied):
    subprocess.run(["modprobe", "ext4"], check=True)
    specs = [f"kernel:vmlinux:{pattern}:block" for pattern in WHOLE if functions([pattern])]
    armed_and_worked([*specs, "kernel:ext4:ext4_[dfr]*:block"], folder, applied, 20000)
