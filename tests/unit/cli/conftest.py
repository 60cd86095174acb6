"""A session made of nothing, so that the command line is tested without a process."""

import subprocess
import types
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.findings.explanation import Explanation, Line, ListedSite
from anyprobe.data.findings.leftover import Leftover, RemovalReport
from anyprobe.probes import opening
from anyprobe.probes.providers.function.outside import leftover, listing
from support.sample_snapshots import snapshot, timing


def nothing(*_args, **_named):
    """Do nothing: nothing is loaded, forked or executed here, all callers are known."""


class FakeLoop:
    """Counts the looks at signal handlers."""

    hooks = SimpleNamespace(waits=False, begin=nothing, next=None, look=nothing, end=nothing)
    learn_return_points = look_at_memory = take_out_hit = nothing

    def __init__(self):
        self.looks = 0

    def follow_handlers(self, *, often):
        assert often
        self.looks += 1


class FakeHost:
    """The parts of a session that commands use themselves."""

    modules = SimpleNamespace(may_count=False, look_for_libraries=nothing, permit_absent=nothing)
    child_watch = SimpleNamespace(look=nothing, look_for_new=nothing)
    handlers = SimpleNamespace(used=None)
    became = staticmethod(nothing)
    splicing = SimpleNamespace(
        holdings=SimpleNamespace(inodes=lambda: (), banks=(), goroutine_banks=(), code_regions=())
    )

    def __init__(self, session):
        self._session, self.loop, self.life = session, FakeLoop(), self
        self.gates = SimpleNamespace(
            follow=nothing, missed_execs=lambda: 0, follow_no_more=lambda: session.calls.append("follow no more")
        )

    def hold_handlers(self):
        assert "resume" not in self._session.calls


class FakeSession:
    """Remembers what it was asked for; its snapshot is the one of the test."""

    hooks = FakeLoop.hooks
    pending = ()
    splicing = FakeHost.splicing

    def __init__(self, fakes, pid, settings):
        self.fakes, self.pid, self.settings, self.calls = fakes, pid, settings, []
        self.snapshots = 0
        self.probes = fakes.probes
        self.host = FakeHost(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.calls.append("exit")

    def count(self, *specs):
        self.calls.append(("count", tuple(spec.text for spec in specs)))
        if self.fakes.failure:
            raise self.fakes.failure

    time = count

    def resume(self):
        self.calls.append("resume")

    def detach(self):
        self.calls.append("detach")

    def close(self):
        self.calls.append("close")

    def wait(self, timeout=None):
        return self.fakes.snapshot.target.exited

    @property
    def target_info(self):
        return self.fakes.snapshot.target

    def snapshot(self):
        """Return the test's; of several sessions the first one is from before anything was counted."""
        self.snapshots += 1
        if self.snapshots == 1 and len(self.fakes.sessions) > 1:
            sites = tuple(replace(each, hits=0) for each in self.fakes.snapshot.sites)
            return replace(self.fakes.snapshot, sites=sites, functions=())
        return self.fakes.snapshot

    def explain(self, spec):
        return Explanation(
            spec=spec.text,
            module="libc.so.6",
            function="malloc",
            address=0x1004,
            function_start=0x1000,
            disassembly=(
                Line(0x1000, b"\xf3\x0f\x1e\xfa", "endbr64"),
                Line(0x1004, b"\x55", "push rbp", ("IA", "DCR")),
                Line(0x1005, b"\x48\x89\xe5", "mov rbp,rsp", ("DCR", "JTPR")),
            ),
            live_registers=("rdi", "rsp"),
            dead_registers=("rax", "r11"),
            dead_vectors=("zmm2", "zmm3", "zmm4", "xmm7", "k1"),
            flags_live=False,
            verdicts=(("retarget", "not-a-direct-branch: push"), ("jump", "chosen"), ("punned", "possible")),
            patch=((0x9000, b"\x48\xff\x05\x00\x00\x00\x00", "inc qword [rip]"),),
            notes=("behind endbr64",),
            sites=self.fakes.explained,
        )

    def list(self, *specs):
        refusal = Refusal(Reason.LONE_RET, 0x2000, "nothing but ret")
        return [
            ListedSite("pid:libc.so.6:malloc:entry", "libc.so.6", "malloc", 0, 0x1000, "jump"),
            ListedSite("pid:libc.so.6:nop:entry", "libc.so.6", "nop", 0, 0x2000, None, refusal),
        ]


class Fakes:
    def __init__(self):
        self.snapshot, self.failure, self.sessions = snapshot(functions=(timing(),)), None, []
        self.probes = [types.SimpleNamespace(armed=True)]
        self.explained = ()

    def attach(self, pid, **settings):
        self.sessions.append(FakeSession(self, pid, settings))
        return self.sessions[-1]

    def run(self, argv, **settings):
        self.argv = argv
        return self.attach(self.snapshot.target.pid, **settings)


@pytest.fixture
def fakes(monkeypatch):
    fakes = Fakes()
    line = Leftover(0x1004, "r", "malloc", 4, "libc.so.6", "jump", ("DISABLED",), session="ab12", owner=77)
    site = Leftover(0x1010, "kr", "malloc", 16, "libc.so.6", "jump", ("OPTIMIZED",), session="ab12", owner=77, size=5)
    removal = {"restored": 3, "unmapped_bytes": 8192, "not_quiet": ("7f00-7f10",)}
    monkeypatch.setattr(opening, "attach", fakes.attach)
    monkeypatch.setattr(opening, "run", fakes.run)
    monkeypatch.setattr(listing, "inspect", lambda pid: SimpleNamespace(registered=[line], sites=[site]))
    monkeypatch.setattr(leftover, "remove", lambda pid: RemovalReport((pid,), **removal))
    return fakes


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.fixture
def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
