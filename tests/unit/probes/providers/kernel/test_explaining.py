"""``explain`` for places in a small kernel."""

import pytest

from anyprobe.core.errors import SiteRefused, UsageError
from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.kernel import code as code_module
from anyprobe.probes.providers.kernel import explaining, mechanisms
from anyprobe.probes.providers.kernel.code import RunningCode
from anyprobe.probes.providers.kernel.explaining import explain
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.probes.providers.kernel.places.specs import parse
from anyprobe.probes.providers.kernel.session import KernelSession
from anyprobe.target.kernel.symbols import Symbols
from support.builder import Builder
from support.small_kernel import SmallKernel, key

ENTRY = ".byte 0x0f, 0x1f, 0x44, 0, 0"
CODE = (
    f"{ENTRY}\n push rbx\n mov rbx, rdi\n push rbp\n key_at: {ENTRY}\n call helper\n pop rbp\n pop rbx\n ret\n on: ret"
)


def asked(kernel, monkeypatch, black=0):
    """Return what explains places in a kernel; two bytes of it, from ``black`` on, are on the list of no kprobes."""
    monkeypatch.setattr(mechanisms.preemption, "is_preemptible", lambda: False)
    monkeypatch.setattr(explaining.tracefs, "blacklist", lambda: [(black, black + 2, "helper")])
    monkeypatch.setattr(KernelNames, "type_of", lambda self, site: None)
    monkeypatch.setattr(code_module.release, "running", lambda: (6, 12))
    names = KernelNames()
    names.__dict__["symbols"] = Symbols(kernel.listing)
    code = RunningCode(names.symbols, kernel.memory)
    return lambda text: explain(parse(text), names, code)


@pytest.fixture
def build_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernel = SmallKernel.made(
        Builder(tmp_path), ("__x64_sys_getppid", f"{ENTRY}\n xor eax, eax\n ret"), ("next", "ret")
    )
    return kernel, asked(kernel, monkeypatch)


@pytest.fixture
def explained(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernel = SmallKernel.made(
        Builder(tmp_path), ("reads", CODE), ("helper", "mov eax, 1\n 1: dec eax\n jne 1b\n ret\n ud2\n nop\n nop"),
        keys=key("key_at", "on"),
    )  # fmt: skip
    return kernel, asked(kernel, monkeypatch, kernel.at("helper") + 7)


def marks(explanation):
    return [line.marks for line in explanation.disassembly if line.marks]


def test_an_instruction_with_what_the_optimiser_moves(explained):
    kernel, say = explained
    found = say("kernel::reads:0x5")
    assert (found.module, found.function, found.address) == ("vmlinux", "reads", kernel.at("reads") + 5)
    assert marks(found) == [("IA", "DCR"), ("DCR", "JTPR"), ("DCR", "JTPR")]
    assert dict(found.verdicts)["kprobe"] == "chosen"
    assert any("3 instructions of 5 bytes move" in note for note in found.notes)
    assert found.summary.startswith("would be placed by a kprobe")
    assert any(line.text == "call helper" for line in found.disassembly)
    assert all(line.address > 1 << 63 for line in found.disassembly)


def test_an_entry_is_the_function_tracer_s(explained):
    _, say = explained
    found = say("kernel::reads")
    assert dict(found.verdicts) == {
        "fentry": "not used: BTF has no type of this function alone", "kprobe.multi": "chosen", "kprobe": "possible",
    }  # fmt: skip
    assert any("function tracer" in note for note in found.notes)


def test_a_place_that_the_kernel_rewrites_is_refused(explained):
    _, say = explained
    found = say("kernel::reads:0xa")
    assert found.strategy is None
    assert found.summary.startswith("refused: a static key")
    assert Reason.STATIC_KEY.value in found.summary


def test_why_the_optimiser_leaves_a_kprobe_alone(explained):
    _, say = explained
    found = say("kernel::helper:0x0")
    notes = " ".join(found.notes)
    assert "leaves a kprobe as it is" in notes
    assert "helper+0x7" in notes
    assert "helper+0x5 may be entered" not in notes
    assert dict(found.verdicts)["kprobe.multi"].startswith("not used")


def test_the_blacklist_is_a_refusal(explained):
    _, say = explained
    assert Reason.KPROBE_BLACKLIST.value in say("kernel::helper:0x7").summary


def test_returns_are_seen_where_the_function_ends(explained):
    kernel, say = explained
    found = say("kernel::helper:return")
    assert found.address == kernel.at("helper") + 9
    assert [name for name, _ in found.verdicts] == ["fexit", "kretprobe.multi", "kretprobe"]


def test_system_calls_are_explained_at_the_functions_that_implement_them(build_calls):
    kernel, say = build_calls
    found = say("syscall::getppid")
    assert (found.function, found.address) == ("__x64_sys_getppid", kernel.at("__x64_sys_getppid"))


def test_what_is_no_instruction_and_what_has_no_code(explained):
    kernel, say = explained
    with pytest.raises(SiteRefused, match="0x6, 0x9") as caught:
        say("kernel::reads:0x7")
    assert caught.value.refusal.address == kernel.at("reads") + 7
    with pytest.raises(UsageError, match="no place in the code"):
        say("rawtracepoint:sched_switch")


def test_sessions_explain_by_what_they_know_of_the_kernel(monkeypatch):
    asked = []
    monkeypatch.setattr(explaining, "explain", lambda *what: asked.append(what) or "explained")
    session = object.__new__(KernelSession)
    session._last, session._names = None, object()
    assert session.explain("kernel::vfs_read:0x5") == "explained"
    assert asked == [(parse("kernel::vfs_read:0x5"), session._names)]
