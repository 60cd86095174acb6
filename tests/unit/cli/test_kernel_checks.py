"""What ``doctor --kernel`` makes of trials."""

import pytest

from anyprobe.cli.commands import doctor
from anyprobe.cli.doctor import kernel_checks
from anyprobe.cli.doctor.finding import Finding
from anyprobe.probes.providers.kernel.trials import FUNCTIONS, HANDLERS, TIME, Trial
from anyprobe.target.kernel import switches
from anyprobe.target.kernel.switches import Switch

REFUSED = "the kernel does not attach a program: Operation not supported (ENOTSUP)"
FORBIDDEN = "the kernel does not load a program: Operation not permitted (EPERM)"


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.setattr(switches, "configuration", lambda: {"KPROBES": "y"})
    monkeypatch.setattr(switches, "lockdown", lambda: "none")
    monkeypatch.setattr(switches, "has_capability", lambda number: True)
    return monkeypatch


def test_what_fails_is_limited_where_something_else_does_the_same():
    works, fails = kernel_checks.judged(
        [
            Trial("fentry", FUNCTIONS, 20, 20),
            Trial("kprobe.multi", FUNCTIONS, problem=REFUSED),
        ]
    )
    assert (works.verdict, works.detail) == ("ok", "works: 20 of 20 hits (functions)")
    assert fails.verdict == "limited"
    assert fails.detail == f"{REFUSED}; the kernel was built without CONFIG_FPROBE"
    assert fails.remedy == "works still for functions: fentry"


def test_what_nothing_else_does_is_no():
    (found,) = kernel_checks.judged([Trial("timers", TIME, 0, 1)])
    assert (found.verdict, found.detail, found.remedy) == ("no", "0 of 1 hits were seen", "")
    (found,) = kernel_checks.judged([Trial("ring buffer", HANDLERS, problem=REFUSED)])
    assert found.verdict == "limited"


@pytest.mark.parametrize("name", ["kprobe", "fentry"])
def test_switched_off(kernel, tmp_path, name):
    (tmp_path / "enabled").write_text("0\n")
    kernel.setattr(switches, "ARMED", Switch(str(tmp_path / "enabled"), "kprobes", ""))
    (found,) = kernel_checks.judged([Trial(name, FUNCTIONS, 0, 20)])
    assert found.detail.startswith("0 of 20 hits were seen")
    assert ("switched off" in found.detail) == (name == "kprobe")


def test_reasons_of_what_is_forbidden(kernel):
    kprobe, fentry = Trial("kprobe", FUNCTIONS, problem=FORBIDDEN), Trial("fentry", FUNCTIONS, problem=FORBIDDEN)
    assert "security module" in kernel_checks.judged([fentry])[0].detail
    kernel.setattr(switches, "lockdown", lambda: "confidentiality")
    assert "locked down (confidentiality)" in kernel_checks.judged([kprobe])[0].detail
    kernel.setattr(switches, "has_capability", lambda number: False)
    (found,) = kernel_checks.judged([kprobe])
    assert found.detail == FORBIDDEN
    assert "CAP_BPF" in found.remedy
    (found,) = kernel_checks.judged([Trial("kprobe", FUNCTIONS, problem=f"{FORBIDDEN}: be root")])
    assert found.remedy == ""


def test_lockdown_for_integrity_is_no_reason_against_probes(kernel):
    kernel.setattr(switches, "lockdown", lambda: "integrity")
    for name in ("kprobe", "tracepoint"):
        assert "locked down" not in kernel_checks.judged([Trial(name, FUNCTIONS, problem=FORBIDDEN)])[0].detail


def test_next_step():
    forbids = Finding("fentry", "no", "forbidden")
    assert "doctor -p PID" in doctor.next_command(None, [forbids], kernel=True)
    assert "kernel::" in doctor.next_command(None, [], kernel=True)
    remedied = Finding("privileges", "no", "", "use sudo")
    assert doctor.next_command(None, [forbids, remedied], kernel=True) == "use sudo; then anyprobe doctor --kernel"
