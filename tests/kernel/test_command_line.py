"""The command line in the guest's kernel: exact counts of a known number of system calls.

Commands run in the tests' own process: Python takes long to start in a guest.
"""

import json
import os
import signal
import threading
import time

import jsonschema
import pytest

import anyprobe
from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.target.kernel import preemption, symbols, tracefs
from support.in_kernel import has_multi, numbers_of

NUMBER, COUNT, THREADS = 110, 20_000, 2
CALLS = COUNT * THREADS
FUNCTION = "__x64_sys_getppid"
PATIENCE = 100.0


@pytest.fixture
def program(system_calls):
    return ["--", str(system_calls), str(NUMBER), str(COUNT), str(THREADS)]


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


@pytest.fixture
def document(tmp_path):
    """Run a command and return its document, which is as its schema says."""

    def run(kind, *arguments):
        file = tmp_path / "document"
        before, dashes, program = " ".join(arguments).partition(" -- ")
        assert main([kind, *before.split(), "--json", "--quiet", "-o", str(file), *(dashes + program).split()]) == 0
        found = json.loads(file.read_text())
        jsonschema.Draft202012Validator(json.loads(text_of(kind))).validate(found)
        return found

    return run


def probes_listed():
    with open("/sys/kernel/debug/kprobes/list") as file:
        return file.read()


def attached_anew():
    """Return a condition: something is attached to the kernel by BPF that was not yet.

    Programs that are loaded say nothing: those of the test before go a while after their descriptors.
    """
    before = numbers_of("link")
    return lambda: not set(numbers_of("link")) <= set(before)


def interrupt_when(condition):
    """Send SIGINT to this process as soon as a condition holds, and a command has its own handler."""
    before = signal.getsignal(signal.SIGINT)

    def wait():
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if signal.getsignal(signal.SIGINT) is not before and condition():
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def assert_exact(site):
    """Assert that all hits were counted; where fentry misses some, that is told."""
    assert site["hits"] + site["nmissed"] == CALLS
    assert site["nmissed"] == 0 or (preemption.is_preemptible() and site["strategy"] in {"fentry", "fexit"})


def test_counts_of_a_started_command_are_exact(document, program):
    specs = [f"kprobe:{FUNCTION}", f"fexit:{FUNCTION}", "syscall::getppid", "tracepoint:syscalls:sys_exit_getppid"]
    found = document("count", *specs, *program)
    assert found["target"] == {"kernel": os.uname().release, "without": [os.getpid()]}
    assert [each["spec"] for each in found["sites"]] == [
        f"kprobe:vmlinux:{FUNCTION}",
        f"fexit:vmlinux:{FUNCTION}",
        "syscall::getppid:entry",
        "tracepoint:syscalls:sys_exit_getppid",
    ]
    for site in found["sites"]:
        assert_exact(site)


def test_table_says_by_which_mechanism(capsys, program):
    assert main(["count", f"kernel::{FUNCTION}:return", "--mechanism", "kprobe", *program]) == 0
    shown = capsys.readouterr().err
    assert shown.startswith("Linux ")
    row = next(line.split() for line in shown.splitlines() if f"{FUNCTION}%return" in line)
    assert row[0] == f"{CALLS:,}"
    assert row[row.index("vmlinux") + 1] == "kretprobe"  # notes may follow, of what this kernel does not tell


def test_without_a_command_it_ends_after_for_seconds(capsys):
    arguments = ["tracepoint:sched:sched_sw*", "--for", "0.5", "--every", "0.2", "--json", "--zero"]
    assert main(["count", *arguments]) == 0
    *between, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert all(each["interval"]["duration_s"] > 0 for each in between)
    assert last["duration_s"] >= 0.5
    assert {each["function"]: each["hits"] for each in last["sites"]}["sched_switch"] > 0


def test_ctrl_c_ends_it_with_results(capsys):
    thread = interrupt_when(attached_anew())
    assert main(["count", "rawtracepoint:sched_switch", "--for", str(PATIENCE)]) == 130
    thread.join()
    assert "1 site" in capsys.readouterr().out


def test_ctrl_c_while_it_is_arming_leaves_nothing(capsys):
    thread = interrupt_when(lambda: "vfs_" in probes_listed())
    assert main(["count", "kernel::vfs_*", "--mechanism", "kprobe"]) == 130
    thread.join()
    assert "vfs_" not in probes_listed()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["kernel::vfs_reed"], 2, "nearest: vfs_read"),
        (["tracepoint:skhed:sched_switch"], 2, "nearest: sched"),
        (["kernel::do_exit:return"], 1, "no-exit"),
        (["rawtracepoint:sched_switch", "--mechanism", "kprobe"], 2, "possible: raw_tp"),
    ],
)
def test_what_cannot_be_counted(capsys, arguments, status, message):
    assert main(["count", *arguments]) == status
    shown = capsys.readouterr()
    assert message in shown.out + shown.err
    assert len(shown.err.splitlines()) <= 4


def test_function_on_the_blacklist(capsys):
    name = next(each[2] for each in tracefs.blacklist() if each[2] == "do_int3" or each[2].startswith("exc_"))
    assert main(["count", f"kprobe:{name}"]) == 1
    assert f"refused: kprobe:vmlinux:{name}" in (shown := capsys.readouterr().out)
    assert "kprobe-blacklist" in shown


def test_an_ordinary_user_is_told_in_one_line(capsys):
    before = os.geteuid()
    os.seteuid(65534)  # all capabilities are not effective then
    try:
        status = main(["count", "kernel::vfs_read"])
    finally:
        os.seteuid(before)
    assert status == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "CAP_BPF" in line


SIZE, WRITES = 777, 300
WRITER = ["--", "dd", "if=/dev/zero", "of=/dev/null", f"bs={SIZE}", f"count={WRITES}", "status=none"]


def test_values_have_a_distribution_by_key(document):
    found = document("hist", "kernel::vfs_write", "--of", "count", "--by", "comm", "--when", f"count=={SIZE}", *WRITER)
    (cell,) = found["aggregations"]["count"]
    assert (cell["key"], cell["count"], cell["sum"]) == (["dd"], WRITES, SIZE * WRITES)


def test_hits_are_counted_under_a_condition(document):
    specs = ["kernel::vfs_write", "fexit:vfs_write", "rawtracepoint:sys_enter"]
    found = document("count", *specs[:2], "--when", "retval==777", *WRITER)
    assert [(each["kind"], each["hits"]) for each in found["sites"]] == [("return", WRITES)] * 2
    found = document("count", *specs[::2], "--when", "comm=='dd'", *WRITER)
    assert all(each["hits"] >= WRITES for each in found["sites"])


def test_calls_are_timed(document):
    (timed,) = document("time", "kernel::vfs_write", "--when", f"count=={SIZE}", *WRITER)["functions"]
    assert timed["count"] == WRITES
    assert timed["sum_ns"] >= WRITES * timed["min_ns"] > 0
    (timed,) = document("time", "kernel::vfs_write", *WRITER)["functions"]
    assert timed["count"] >= WRITES
    assert timed["spec"] == "kernel:vmlinux:vfs_write:entry"
    (timed,) = document("time", "syscall::write", "--when", f"count=={SIZE}", *WRITER)["functions"]
    assert timed["count"] == WRITES


def test_hits_are_traced_with_parameters_results_and_members(capsys):
    name = "cstr(file.f_path.dentry.d_name.name, 16)"
    arguments = ["kernel::vfs_write", "--when", f"count == {SIZE}", "--print", f"size=count, name={name}, retval"]
    assert main(["trace", *arguments, "--json", *WRITER]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert len(lines) == WRITES
    assert {(each["size"], each["name"], each["retval"]) for each in lines} == {(SIZE, "null", SIZE)}
    assert {each["spec"] for each in lines} == {"kernel:vmlinux:vfs_write:return"}
    assert len({each["pid"] for each in lines}) == 1
    assert [each["ts_ns"] for each in lines] == sorted(each["ts_ns"] for each in lines)


def test_system_calls_have_their_parameters_by_name(document, capsys):
    when = f"count=={SIZE}andretval>0".replace("and", " and ")
    assert main(["trace", "syscall::write", "--when", when, "-c", "5", "--json", *WRITER]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert len(lines) == 5
    assert all(each["args"]["fd"] == 1 and each["args"]["count"] == each["retval"] == SIZE for each in lines)
    found = document("hist", "syscall::write", "--of", "count", "--by", "fd", "--when", f"count=={SIZE}", *WRITER)
    (cell,) = found["aggregations"]["count"]
    assert (cell["key"], cell["count"]) == ([1], WRITES)


@pytest.fixture
def quick(tmp_path):
    """Return a command that runs ``true`` twice and ``false`` once."""
    script = tmp_path / "quick"
    script.write_text("/bin/true\n/bin/false\n/bin/true\n:\n")
    return ["--", "sh", str(script)]


@pytest.mark.thorough
def test_fields_of_tracepoints_have_their_names(document, capsys, quick):
    point = "tracepoint:sched:sched_process_exit"
    found = document("hist", point, "--as", "count", "--by", "comm", "--when", "pid>0", *quick)
    cells = {each["key"][0]: each["count"] for each in found["aggregations"]["hits"]}
    assert (cells["true"], cells["false"]) == (2, 1)  # comm and pid are fields of the record
    assert main(["trace", point, "--json", *quick]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    by_name = [each["args"] for each in lines if each["args"]["comm"] == "true"]
    assert len(by_name) == 2
    assert all(each["prio"] == 120 and each["pid"] > 1 for each in by_name)
    assert main(["trace", "rawtracepoint:sched_process_exit", "-c", "2", "--json", *quick]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert all(each["args"]["p"] >= 1 << 63 for each in lines)
    assert main(["trace", point, "--print", "p.comm,code=p.exit_code", "--when", "p.exit_code == 256", *quick]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "code=256" in line]
    assert "false" in line


@pytest.mark.thorough
def test_what_several_specs_mean_is_looked_at_once(document, capsys, quick):
    specs = ["kernel::vfs_write", "kernel::vfs_wr[i]te", "fentry:vfs_write", "kprobe:vfs_write"]
    cell = document("hist", *specs, "--of", "count", "--when", f"count=={SIZE}", *WRITER)["aggregations"]["count"]
    assert (cell["count"], cell["sum"]) == (WRITES, SIZE * WRITES)
    cell = document("hist", *specs, "--of", "retval", "--when", f"count=={SIZE}", *WRITER)["aggregations"]["retval"]
    assert (cell["count"], cell["sum"]) == (WRITES, SIZE * WRITES)
    switch = ["tracepoint:sched:sched_process_ex[ei]*", "rawtracepoint:sched_process_exit"]
    found = document("hist", *switch, "--as", "count", "--by", "ctx.comm", *quick)
    assert {each["key"][0]: each["count"] for each in found["aggregations"]["hits"]}["true"] == 4
    assert main(["trace", *specs[:3], "--when", f"count == {SIZE}", "--quiet", *WRITER]) == 0
    assert sum("vfs_write" in line for line in capsys.readouterr().err.splitlines()) == WRITES
    counted = document("count", *specs, "--when", f"count=={SIZE}", *WRITER)["sites"]
    assert [(each["strategy"], each["hits"]) for each in counted if each["function"] == "vfs_write"] == [
        (counted[0]["strategy"], WRITES), ("fentry", WRITES), ("kprobe", WRITES)
    ]  # fmt: skip


def test_script_has_a_session_on_the_kernel(tmp_path, document):
    file = tmp_path / "sizes.py"
    file.write_text(f"""
from anyprobe import Sum, emit, session

written = Sum("written", by=("comm",))


@session.entry("kernel::vfs_write", when=lambda ctx, count: count == {SIZE})
def entered(ctx, count):
    written.add(count, key=(ctx.comm,))
    if ctx.comm == "dd":
        emit("seen", size=count)
""")
    found = document("script", str(file), "--kernel", *WRITER)
    (cell,) = found["aggregations"]["written"]
    assert (cell["key"], cell["sum"]) == (["dd"], SIZE * WRITES)
    assert len(found["records"]["seen"]) == WRITES


def in_order(typed, *others):
    """Return mechanisms in the order of preference of this kernel, as docs/kernel.md has it, the first one typed."""
    there = [each for each in others if has_multi() or not each.endswith(".multi")]
    return [*there, typed] if preemption.is_preemptible() else [typed, *there]


def test_what_is_listed_is_possible(capsys, session):
    assert main(["list", "kernel::vfs_read", "kernel::vfs_read%return", "syscall::getppid", "--json"]) == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert [each["mechanisms"] for each in sites] == [
        in_order("fentry", "kprobe.multi", "kprobe"),
        in_order("fexit", "kretprobe.multi", "kretprobe"),
        in_order("fentry", "kprobe.multi", "kprobe", "tracepoint"),
    ]
    for site in sites:
        for mechanism in site["mechanisms"]:
            (probe,) = session.count(site["spec"], mechanism=mechanism)
            assert probe.mechanisms == [mechanism]
    names = [each["name"] for each in sites[0]["arguments"]]
    assert names == ["file", "buf", "count", "pos"]


def test_functions_that_ftrace_does_not_know_are_listed_as_they_are_counted(session):
    """At the first instruction of some there is what the kernel changes itself."""
    traceable = tracefs.Restrictions().traceable
    running = symbols.running()
    unknown = [
        each for each in running.matching("*.constprop.0", "vmlinux") if not traceable.has(each.address, (each.name,))
    ]
    alone = [each for each in unknown if len(running.named(each.name)) == 1][:8]
    assert alone
    for each in alone:
        spec = f"kernel:vmlinux:{each.name}:entry"
        (listed,) = session.list(spec)
        (probe,) = session.count(spec)
        assert bool(probe.refused) is (listed.refusal is not None), spec
        session.forget(probe)


def test_names_of_arguments_are_listed(capsys):
    assert main(["list", "syscall::openat", "tracepoint:sched:sched_switch"]) == 0
    _, call, event, _ = capsys.readouterr().out.splitlines()
    assert call.endswith("(dfd: int, filename: const char *, flags: int, mode: umode_t) -> long")
    assert event.split("sched_switch")[1].split()[:3] == ["raw_tp", "tp_btf", "tracepoint"]
    assert "(prev_comm: char[16], prev_pid: pid_t, prev_prio: int" in event


def test_instructions_and_the_blacklist_are_listed(capsys):
    name = next(each[2] for each in tracefs.blacklist() if each[2] == "do_int3" or each[2].startswith("exc_"))
    specs = [f"kernel::{FUNCTION}+{offset}" for offset in range(4, 12)]
    assert main(["list", f"kprobe:{name}", *specs, "--json"]) == 0
    blacklisted, *inside = json.loads(capsys.readouterr().out)["sites"]
    assert blacklisted["refusal"]["reason"] == "kprobe-blacklisted"
    assert {each["strategy"] for each in inside} >= {"kprobe", None}
    assert FUNCTION not in probes_listed()
