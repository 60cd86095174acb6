"""bpftrace's own tutorial side by side with the same one-liners here, at the same time, on a workload of known counts.

Each program of bpftrace has several lessons at once, since its compiler takes long in a guest; so has each script.
"""

import json
import shutil
import signal
import subprocess
from contextlib import contextmanager

import pytest

from anyprobe.cli import main

pytestmark = [
    pytest.mark.skipif(shutil.which("bpftrace") is None, reason="bpftrace is not installed"),
    pytest.mark.usefixtures("no_headers"),
]
CALLS, ROUNDS = 700, 4
READS = ROUNDS * sum(range(1, 8))


class Peer:
    """What bpftrace has said: lines that were printed, and its maps by their names."""

    def __init__(self):
        self.printed, self.maps = [], {}

    def take(self, line):
        said = json.loads(line)
        if said["type"] == "printf":
            self.printed.append(said["data"].rstrip("\n"))
        elif said["type"] in {"map", "hist"}:
            self.maps |= said["data"]


@pytest.fixture
def no_headers(tmp_path, monkeypatch):
    """Have bpftrace take the kernel's types from BTF alone, and not from headers that are only partly there."""
    folder = tmp_path / "headers/include/linux"
    folder.mkdir(parents=True)
    (folder / "kconfig.h").write_text("")
    monkeypatch.setenv("BPFTRACE_KERNEL_SOURCE", str(tmp_path / "headers"))


@contextmanager
def bpftrace(program):
    """Yield what bpftrace says while it runs a program, complete when the block is left."""
    command = ["bpftrace", "-f", "json", "-e", 'BEGIN { printf("ready\\n"); } ' + program]
    peer = Peer()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            peer.take(line)
            if peer.printed:
                break
        else:
            pytest.fail(f"bpftrace did not start: {process.stderr.read()}")
        peer.printed.clear()
        try:
            yield peer
        finally:
            process.send_signal(signal.SIGINT)
            for line in filter(str.strip, process.stdout):
                peer.take(line)


@pytest.fixture
def workload(system_calls, reads_sizes, tmp_path):
    """Return a command whose programs call and read a known number of times."""
    script = tmp_path / "workload"
    script.write_text(f"{system_calls} 110 {CALLS} 1\n{reads_sizes} {ROUNDS}\n:\n")
    return ["sh", str(script)]


def run(tmp_path, text, workload):
    """Run a script on the kernel with a workload; return its document."""
    script, document = tmp_path / "lessons.py", tmp_path / "document"
    script.write_text(text)
    assert main(["script", str(script), "--kernel", "--json", "--quiet", "-o", str(document), "--", *workload]) == 0
    return json.loads(document.read_text())


def cells(document, name):
    found = document["aggregations"][name]
    return {(): found} if isinstance(found, dict) else {tuple(each["key"]): each for each in found}


def rows(buckets):
    """Return the rows of a histogram by where each begins."""
    return {int(low): count for low, _, count in buckets if count}


def rows_of_peer(buckets):
    return {each.get("min", -1): each["count"] for each in buckets if each["count"]}


PEERS = """
tracepoint:syscalls:sys_enter_openat /comm == "reads_sizes"/ { printf("%s %s\\n", comm, str(args->filename)); }
tracepoint:raw_syscalls:sys_enter { @calls[comm] = count(); }
tracepoint:syscalls:sys_exit_read /comm == "reads_sizes"/ { @read = hist(args->ret); }
kretprobe:vfs_read /comm == "reads_sizes"/ { @bytes = lhist(retval, 0, 2000, 200); }
kprobe:vfs_open /comm == "reads_sizes"/ { printf("path: %s\\n", str(((struct path *)arg0)->dentry->d_name.name)); }
"""
OURS = """
from anyprobe import Count, LQuantize, Quantize, cstr, emit, session

calls, read, bytes_ = Count("calls", by=("comm",)), Quantize("read"), LQuantize("bytes", 0, 2000, 200)


def mine(ctx):
    return ctx.comm == "reads_sizes"


@session.entry("tracepoint:syscalls:sys_enter_openat", when=mine)
def opened(ctx, filename):
    emit("said", text=cstr(filename, 64))


@session.entry("tracepoint:raw_syscalls:sys_enter")
def called(ctx):
    calls.add(key=(ctx.comm,))


@session.entry("tracepoint:syscalls:sys_exit_read", when=mine)
def has_read(ctx, ret):
    read.add(ret)


@session.ret("kernel::vfs_read", when=mine)
def returned(ctx):
    bytes_.add(ctx.retval)


@session.entry("kernel::vfs_open", when=mine)
def path_opened(ctx, path):
    emit("paths", name=cstr(path.dentry.d_name.name, 64))
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_lessons_3_to_6_and_12(tmp_path, workload):
    """Files that are opened, system calls by process, sizes of reads as two kinds of histograms, and a member."""
    with bpftrace(PEERS) as peer:
        document = run(tmp_path, OURS, workload)
    records = document["records"]
    assert [f"reads_sizes {each['text']}" for each in records["said"]] == [
        line for line in peer.printed if not line.startswith("path: ")
    ]
    assert [f"path: {each['name']}" for each in records["paths"]] == [
        line for line in peer.printed if line.startswith("path: ")
    ]
    assert "/dev/zero" in [each["text"] for each in records["said"]]
    ours, theirs = cells(document, "calls"), peer.maps["@calls"]
    for program in ("system_calls", "reads_sizes"):
        assert ours[program,]["count"] == theirs[program]
    assert ours["system_calls",]["count"] >= CALLS
    read = rows(cells(document, "read")[()]["buckets"])
    assert read == rows_of_peer(peer.maps["@read"])
    assert {low: read[low] for low in (1 << 14, 1 << 16)} == {1 << 14: 5 * ROUNDS, 1 << 16: 7 * ROUNDS}
    linear = cells(document, "bytes")[()]
    assert linear["count"] == sum(rows_of_peer(peer.maps["@bytes"]).values()) >= READS
    assert rows(linear["buckets"])[1000] == rows_of_peer(peer.maps["@bytes"])[1000] == ROUNDS


PEERS_OF_CALLS = """
kprobe:vfs_read { @start[tid] = nsecs; }
kretprobe:vfs_read /@start[tid]/ { @ns[comm] = hist(nsecs - @start[tid]); delete(@start[tid]); }
tracepoint:sched:sched_process_exec { @probes[probe] = count(); }
tracepoint:sched:sched_process_exit /comm == "reads_sizes"/ { @stacks[kstack(3)] = count(); }
"""
OURS_OF_CALLS = """
from anyprobe import Count, Quantize, session

times, execs, stacks = Quantize("ns", by=("comm",)), Count("probes"), Count("stacks", by=("stack",))


@session.call("kprobe:vfs_read")
def entered(ctx):
    ctx.data.start = ctx.now


@entered.ret
def left(ctx):
    start = ctx.data.start
    if start is not None:
        times.add(ctx.now - start, key=(ctx.comm,))


@session.entry("tracepoint:sched:sched_process_exec")
def executed(ctx):
    execs.add()


@session.entry("tracepoint:sched:sched_process_exit", when=lambda ctx: ctx.comm == "reads_sizes")
def ended(ctx):
    stacks.add(key=(ctx.kstack(3),))
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_lessons_7_8_and_10(tmp_path, workload):
    """How long reads take by process, events by their names, and stacks of the kernel."""
    with bpftrace(PEERS_OF_CALLS) as peer:
        document = run(tmp_path, OURS_OF_CALLS, workload)
    ours, theirs = cells(document, "ns"), peer.maps["@ns"]
    for program in ("system_calls", "reads_sizes"):
        assert ours[program,]["count"] == sum(rows_of_peer(theirs[program]).values())
    executed = peer.maps["@probes"]["tracepoint:sched:sched_process_exec"]
    assert cells(document, "probes")[()]["count"] in {executed, executed - 1}  # the shell may be there before us
    ((stack,),) = cells(document, "stacks")
    ((text, count),) = peer.maps["@stacks"].items()
    assert count == 1
    assert stack.split(" < ")[0].partition("+")[0] in text
