"""Commands on the running kernel, with a session on it that is made of nothing."""

import json
import signal
import subprocess
import threading
import time

import jsonschema
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.cli.syntax import options
from anyprobe.core.errors import PermissionDenied, SpecError, TargetError, UnsupportedTarget
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule
from anyprobe.data.findings.explanation import ListedSite
from anyprobe.data.findings.refused import RefusedSite
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.probes.providers.kernel import mechanisms
from anyprobe.probes.providers.kernel import session as kernel_session
from anyprobe.probes.scripts.hooks import Scripted
from anyprobe.target.kernel import attached, kprobelist, loaded_modules
from anyprobe.target.kernel.attached import LoadedProgram
from support.driver import wait_until
from support.sample_snapshots import site

HIT = site(
    "vfs_read", 77, spec="kernel:vmlinux:vfs_read:entry", module="vmlinux", address=(1 << 64) - 4096, strategy="fentry"
)
SWITCH = site(
    "sched_switch", 5, spec="tracepoint:sched:sched_switch", module="sched", address=0, strategy="raw_tp", nmissed=2
)
REFUSED = RefusedSite("kernel:vmlinux:do_int3:entry", 4096, "kprobe-blacklisted", "it is on the way", in_kernel=True)


class Probe:
    armed = True


class FakeKernel(Scripted):
    pid = 0

    def __init__(self):
        self.calls, self.failure, self.mechanism = [], None, None
        self.probes, self.warnings, self.limits = [], (), None
        self.results = Snapshot(
            TargetInfo(0, "", kernel="6.12.1"), 2.0, setup_s={"resolve": 0.1}, sites=(HIT, SWITCH), refused=(REFUSED,)
        )

    def __call__(self, mechanism=None, *, pids=(), include_self=True):
        if self.failure:
            raise self.failure
        self.mechanism, self.pids, self.include_self = mechanism, pids, include_self
        return self

    def choose(self, *pids, children=False):
        if self.limits is not None:
            raise self.limits
        self.pids = [*pids, children]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.calls.append("exit")

    def count(self, *specs):
        self.calls.append(tuple(spec.text for spec in specs))
        self.probes.append(Probe())

    def snapshot(self):
        return self.results

    def detach(self):
        self.calls.append("detach")


@pytest.fixture
def kernel(monkeypatch):
    fake = FakeKernel()
    monkeypatch.setattr(kernel_session, "kernel", fake)
    return fake


def test_without_a_process_specs_of_the_kernel_are_enough(kernel, capsys):
    specs = ("kernel::vfs_read:entry", "tracepoint:sched:sched_switch")
    assert main(["count", *specs, "--for", "0"]) == 0
    assert kernel.calls == [specs, "detach", "exit"]
    shown = capsys.readouterr().out
    assert shown.startswith("Linux 6.12.1: 82 hits at 2 sites in 2.00 s\n")
    rows = [line.split() for line in shown.splitlines()]
    assert ["77", "38", "0", "vfs_read", "vmlinux", "fentry"] in rows
    assert ["5", "2.5", "2", "sched_switch", "sched", "raw_tp"] in rows
    assert "refused: kernel:vmlinux:do_int3:entry at 0x1000: kprobe-blacklisted: it is on the way" in shown
    assert "explain" not in shown


@pytest.mark.parametrize("given", [[], ["--include-self"]])
def test_anyprobes_own_hits_are_left_out_unless_asked_for(kernel, capsys, given):
    left_out = () if given else (4194305,)
    kernel.results = Snapshot(TargetInfo(0, "", kernel="6.12.1", without=left_out), 2.0, sites=(HIT,))
    assert main(["count", "kernel::vfs_read", "--for", "0", *given]) == 0
    assert kernel.include_self is bool(given)
    assert ("without anyprobe's own" in capsys.readouterr().out) is not bool(given)
    assert main(["count", "kernel::vfs_read", "--for", "0", *given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(text_of("count"))).validate(document)
    assert document["target"].get("without") == (list(left_out) or None)
    assert main(["count", "libc:read", "--include-self", "--for", "0", "-p", "1"]) == 2


def test_many_refusals_are_summed_up_and_said_to_be_in_the_document(kernel, capsys):
    many = tuple(RefusedSite(f"kernel:vmlinux:f{n}:entry", n, "kernel-refuses", "no", in_kernel=True) for n in range(9))
    kernel.results = Snapshot(kernel.results.target, 1.0, sites=(HIT,), refused=many)
    assert main(["count", "kernel::vfs_read", "--for", "0"]) == 0
    shown = capsys.readouterr().out
    assert "refused: 9 sites: 9 kernel-refuses\n" in shown
    assert "the first: kernel:vmlinux:f0:entry: no; --json lists them all\n" in shown


def test_document_is_as_its_schema_says(kernel, capsys):
    assert main(["count", "kernel::vfs_read", "--for", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(text_of("count"))).validate(document)
    assert document["target"] == {"kernel": "6.12.1"}
    assert [each["strategy"] for each in document["sites"]] == ["fentry", "raw_tp"]
    assert document["refused"][0]["reason"] == "kprobe-blacklisted"


def test_a_command_runs_when_all_is_in_place_and_its_end_is_the_end(kernel, tmp_path, capsys):
    file = tmp_path / "written"
    kernel.count = lambda *specs: kernel.probes.append(Probe()) or kernel.calls.append(file.exists())
    command = ["sh", "-c", f"echo here > {file}; exit 7"]
    assert main(["count", "syscall::read", "--json", "--", *command]) == 0
    assert kernel.calls[0] is False
    assert file.read_text() == "here\n"
    document = json.loads(capsys.readouterr().err)
    assert document["target"] == {"kernel": "6.12.1"}
    assert "targets" not in document
    assert main(["count", "syscall::read", "--exit-status", "--quiet", "--", *command]) == 7


def test_a_command_is_ended_after_for_seconds(kernel, capsys):
    began = time.monotonic()
    assert main(["count", "syscall::read", "--for", "0.1", "--", "sleep", "100"]) == 0
    assert time.monotonic() - began < 50
    assert "was told to end (SIGTERM), and has ended" in capsys.readouterr().err


def test_a_command_that_there_is_not(kernel, capsys):
    assert main(["count", "syscall::read", "--", "/no/such/program"]) == 2
    assert "cannot run '/no/such/program'" in capsys.readouterr().err


def test_of_a_wrong_spec_the_command_is_ended(kernel, tmp_path, capsys):
    def fail(*specs):
        raise SpecError("kernel::vfs_reed", 8, "no function has this name")

    kernel.count, file = fail, tmp_path / "written"
    assert main(["count", "kernel::vfs_reed", "--", "touch", str(file)]) == 2
    assert not file.exists()


def test_process_and_kernel_are_measured_together(kernel, fakes, sleeper, capsys):
    arguments = ["libc:read", "kernel::vfs_read", "k:main"]
    assert main(["count", *arguments, "-p", str(sleeper.pid), "--for", "0", "--json"]) == 0
    assert kernel.calls[0] == ("kernel::vfs_read",)
    assert kernel.pids == [sleeper.pid]
    assert fakes.sessions[0].calls[0] == ("count", ("libc:read", "k:main"))  # k is a module of the process
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(text_of("count"))).validate(document)
    assert document["target"]["pid"] == 4194305
    assert [each["target"].get("kernel") for each in document["targets"]] == [None, "6.12.1"]
    assert {each["function"] for each in document["sites"]} >= {"malloc", "vfs_read"}


@pytest.mark.parametrize(("option", "children"), [((), True), (("--children", "ignore"), False)])
def test_beside_probes_in_a_command_the_kernels_are_about_it(kernel, fakes, capsys, option, children):
    assert main(["count", "libc:read", "kernel::vfs_read", "--no-follow", *option, "--for", "0", "--", "true"]) == 0
    assert kernel.pids == [4194305, children]
    assert "all processes" not in capsys.readouterr().err


def test_if_they_cannot_be_that_is_said(kernel, fakes, capsys):
    kernel.limits = UnsupportedTarget("the kernel tells no types")
    assert main(["count", "libc:read", "kernel::vfs_read", "--no-follow", "--for", "0", "--", "true"]) == 0
    why = "in the kernel the hits of all processes count, not the command's alone: "
    assert f"{why}the kernel tells no types" in capsys.readouterr().err


def test_splices_do_not_follow_what_the_command_starts(kernel, fakes, capsys):
    asked = ["count", "libc:read", "kernel::vfs_read", "--mechanism", "splice", "--no-follow", "--for", "0"]
    assert main([*asked, "--children", "ignore", "--", "true"]) == 0
    assert kernel.pids == [4194305, False]
    assert "all processes" not in capsys.readouterr().err
    kernel.limits = AssertionError
    assert main([*asked, "--", "true"]) == 0
    assert "count, not the command's alone: splices do not follow what it starts" in capsys.readouterr().err


def test_hits_in_some_processes_alone_are_counted_until_these_end(kernel, fakes, capsys):
    with subprocess.Popen(["sleep", "100"]) as process:
        kernel.count = lambda *specs: (kernel.probes.append(Probe()), process.kill())
        assert main(["count", "kernel::vfs_read", "-p", str(process.pid), "--for", "100"]) == 0
    assert kernel.pids == [process.pid]
    assert not fakes.sessions


def test_short_names_of_bpftrace_are_read(kernel, capsys):
    assert main(["count", "k:vfs_read", "t:sched:sched_switch", "--for", "0"]) == 0
    assert kernel.calls[0] == ("k:vfs_read", "t:sched:sched_switch")


def test_modules_that_are_loaded_later_are_looked_for(kernel, monkeypatch, capsys):
    asked, looks = [], []
    kernel.count = lambda *specs, follow=False: (
        asked.append((tuple(spec.text for spec in specs), follow)),
        kernel.probes.append(Probe()),
    )
    kernel.reconcile = lambda: looks.append(1)
    monkeypatch.setattr("anyprobe.probes.duties.PROGRAM_LOOKS", 0.05)
    assert main(["count", "kernel:nfs:*", "--pending", "--for", "0.4"]) == 0
    assert asked == [(("kernel:nfs:*",), True)]
    assert len(looks) >= 2


def test_a_mechanism_is_demanded(kernel, capsys):
    assert main(["count", "kernel::vfs_read", "--mechanism", "kprobe", "--for", "0"]) == 0
    assert kernel.mechanism == "kprobe"


def test_every_mechanism_is_offered_and_in_the_schema():
    assert set(options.MECHANISMS) == set(mechanisms.NAMES)
    strategies = json.loads(text_of("count"))["$defs"]["site"]["properties"]["strategy"]["enum"]
    assert set(strategies) > set(mechanisms.NAMES)


def test_a_signal_ends_it_with_results(kernel, capsys):
    before = signal.getsignal(signal.SIGINT)

    def send():
        wait_until(lambda: signal.getsignal(signal.SIGINT) is not before, "the command handles it")
        signal.raise_signal(signal.SIGINT)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    assert main(["count", "kernel::vfs_read"]) == 130
    sending.join()
    assert "82 hits" in capsys.readouterr().out


def test_without_privilege_nothing_is_started(kernel, fakes, capsys):
    kernel.failure = PermissionDenied("bpf(2)", "the kernel takes no probes from this user", "be root")
    assert main(["count", "kernel::vfs_read", "--", "true"]) == 1
    assert capsys.readouterr().err == "anyprobe: the kernel takes no probes from this user (bpf(2)); be root\n"
    assert not fakes.sessions


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel::vfs_read", "-p", "1", "--", "true"], "either running processes (-p, -n) or a command"),
        (["kernel::vfs_read", "--strategy", "trap"], "--strategy is about probes in programs"),
        (["kernel::vfs_read", "--maxactive", "3"], "--maxactive is about probes in programs"),
        (["kernel::vfs_read", "--mechanism", "hope"], "hope"),
        (["libc:read", "--mechanism", "kprobe", "-p", "1"], "--mechanism is about probes in the kernel"),
        (["libc:read", "kernel::vfs_read"], "choose a target"),
        (["fs/read_write.c:463"], "for a line of the kernel, kernel::fs/read_write.c:463"),
        (["kernel::vfs_read", "--kill"], "--kill is about a command"),
    ],
)
def test_a_wrong_command_line_is_exit_status_2(kernel, fakes, capsys, arguments, message):
    assert main(["count", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not kernel.calls


def test_nothing_that_can_be_placed_is_exit_status_1(kernel, capsys):
    kernel.count = lambda *specs: None
    kernel.results = Snapshot(kernel.results.target, 0.0, refused=(REFUSED,))
    assert main(["count", "kprobe:do_int3"]) == 1
    assert "kprobe-blacklisted" in capsys.readouterr().out


def test_what_could_be_probed_is_listed(kernel, capsys):
    refusal = Refusal(Reason.KPROBE_BLACKLIST, 0xFFFFFFFF81000010, "it is on the way")
    arguments = (("file", "struct file *"), ("count", "size_t"))
    kernel.list = lambda *specs: [
        ListedSite(
            "kernel:vmlinux:vfs_read:entry", "vmlinux", "vfs_read", 0, 0xFFFFFFFF81000000, "fentry", None, arguments,
            "ssize_t", in_kernel=True, mechanisms=("fentry", "kprobe"),
        ),
        ListedSite("kernel:vmlinux:do_int3:entry", "vmlinux", "do_int3", 0, 0xFFFFFFFF81000010, None, refusal,
            in_kernel=True),
        ListedSite("tracepoint:sched:sched_switch", "sched", "sched_switch", 0, 0, "raw_tp", in_kernel=True,
            mechanisms=("raw_tp", "tracepoint")),
    ]  # fmt: skip
    assert main(["list", "kernel::*", "tracepoint:sched:*", "--mechanism", "fentry"]) == 0
    assert kernel.mechanism == "fentry"
    lines = capsys.readouterr().out.splitlines()
    place, spec, *rest = lines[1].split()
    assert (place, spec) == ("0xffffffff81000000", "kernel:vmlinux:vfs_read:entry")
    assert " ".join(rest) == "fentry kprobe (file: struct file *, count: size_t) -> ssize_t"
    assert lines[2].split() == ["0xffffffff81000010", "kernel:vmlinux:do_int3:entry", "refused:", "kprobe-blacklisted"]
    assert lines[3].split() == ["-", "tracepoint:sched:sched_switch", "raw_tp", "tracepoint"]
    assert lines[4:] == ["refused: it is on the way", "3 sites: 1 fentry, 1 refused, 1 raw_tp"]
    assert main(["list", "kernel::*", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(text_of("list"))).validate(document)
    found = [each.get("mechanisms") for each in document["sites"]]
    assert found == [["fentry", "kprobe"], None, ["raw_tp", "tracepoint"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel::vfs_read", "-p", "1"], "by itself, please"),
        (["kernel::vfs_read", "libc:read"], "by itself, please"),
        (["kernel::vfs_read", "--strategy", "trap"], "--strategy is about programs"),
        (["kernel::vfs_read", "--inlined"], "--inlined is about programs"),
        (["libc:read", "-p", "1", "--mechanism", "kprobe"], "--mechanism is about probes in the kernel"),
        (["libc:read"], "choose a target"),
    ],
)
def test_what_list_cannot_do_is_exit_status_2(kernel, fakes, capsys, arguments, message):
    assert main(["list", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("readable", "programs", "status"), [(True, True, 0), (False, True, 0), (False, False, 1)])
def test_probes_of_the_kernel_that_cannot_be_read(monkeypatch, capsys, readable, programs, status):
    def unreadable(*_):
        raise TargetError("it cannot be read")

    program = LoadedProgram(7, "kprobe", "counts", 0, None)
    monkeypatch.setattr(attached, "loaded_programs", (lambda: [program]) if programs else unreadable)
    monkeypatch.setattr(kprobelist, "kprobes", list if readable else unreadable)
    monkeypatch.setattr(kprobelist, "events", list)
    assert main(["probes", "--kernel"]) == status
    told = capsys.readouterr()
    assert told.out.startswith("no kprobes (" if readable else "kprobes not readable (")
    assert ("it cannot be read" in told.err) == (not readable)


def test_coverage_of_functions_and_modules_by_short_names(kernel, monkeypatch, capsys):
    covered = CoveredFunction("vfs_read", 4096, {9: 3, 40: 0, 60: None}, sizes={9: 31, 40: 20, 60: 4})
    module = CoveredModule("vmlinux", "vmlinux", "ab12", (covered,), without_lines="they are not told")
    kernel.results = Snapshot(kernel.results.target, 1.0, sites=(HIT,), coverage=Coverage((module,)))
    monkeypatch.setattr(loaded_modules, "loaded", lambda: {"kvm": 7})
    kernel.cover = lambda *specs: kernel.calls.append([spec.text for spec in specs]) or kernel.probes.append(Probe())
    specs = ["kvm", "vfs_*", "kvm:kvm_arch_*", "kernel::vfs_read", "vmlinux:do_open"]
    assert main(["cover", "--kernel", *specs, "--for", "0"]) == 0
    meant = ["kernel:kvm:*", "kernel::vfs_*", "kernel:kvm:kvm_arch_*", "kernel::vfs_read", "kernel:vmlinux:do_open"]
    assert kernel.calls[0] == meant
    shown = capsys.readouterr().out
    assert shown.startswith("Linux 6.12.1: 1 of 3 blocks, 1 of 1 function covered since attach in 1.00 s\n")
    assert "1 block could not be probed to the end: not known" in shown
    assert main(["cover", "kernel:kvm:*", "--json", "--for", "0"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(text_of("cover"))).validate(document)
    assert document["modules"][0]["symbols"][0]["blocks"] == {"9": 3, "40": 0, "60": None}
    assert document["sites"] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--kernel"], "--kernel needs functions or modules"),
        (["--kernel", "vfs_read", "--lazy"], "--lazy is for programs"),
        (["kernel::vfs_read", "--edges"], "--edges is for programs"),
        (["--kernel", "vfs_read", "--pending"], "--pending is for counts"),
        (["--kernel", "vfs_read", "--follow"], "--follow is about probes in programs"),
        (["merge", "--kernel", "a.json"], "of documents, not of programs"),
    ],
)
def test_what_coverage_of_the_kernel_has_not(kernel, capsys, given, said):
    kernel.cover = lambda *specs: kernel.probes.append(Probe())
    assert main(["cover", *given, "--for", "0"]) == 2
    assert said in capsys.readouterr().err
