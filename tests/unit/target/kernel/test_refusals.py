"""What is said where the kernel refuses something: the reason that holds, and no other."""

import errno
from pathlib import Path

import pytest

from anyprobe.core.errors import KernelRefused, PermissionDenied
from anyprobe.target.kernel import descriptors, perf, probe_events, programs, switches, tracefs

LOCKED = "the kernel is locked down ({}); boot without lockdown= and secure boot"


def forbidden(number=errno.EPERM):
    def make():
        raise OSError(number, "")

    with pytest.raises(KernelRefused) as caught:
        descriptors.made("create a map", make)
    return caught.value.detail


@pytest.mark.parametrize(
    ("mode", "privileged", "detail"),
    [
        ("none", True, ""),
        ("integrity", True, ""),
        ("confidentiality", True, LOCKED.format("confidentiality")),
        ("integrity", False, "be root, or have CAP_BPF and CAP_PERFMON"),
        ("confidentiality", False, "be root, or have CAP_BPF and CAP_PERFMON"),
    ],
)
def test_what_forbids_a_call(monkeypatch, mode, privileged, detail):
    monkeypatch.setattr(switches, "lockdown", lambda: mode)
    monkeypatch.setattr(switches, "has_capability", lambda number: privileged)
    assert forbidden() == detail
    assert forbidden(errno.EINVAL) == ""


def test_lockdown_for_integrity_forbids_switches_and_modules(monkeypatch):
    monkeypatch.setattr(switches, "lockdown", lambda: "integrity")
    assert descriptors.locked_down() == ""
    assert descriptors.locked_down(writing=True) == LOCKED.format("integrity")


@pytest.mark.parametrize(("user", "remedy"), [(0, LOCKED.format("integrity")), (1000, "be root")])
def test_switch_that_may_not_be_written(monkeypatch, user, remedy):
    def forbid(*_):
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(switches, "lockdown", lambda: "integrity")
    monkeypatch.setattr(switches.os, "geteuid", lambda: user)
    monkeypatch.setattr("builtins.open", forbid)
    with pytest.raises(PermissionDenied) as caught:
        switches.Switch("/a/switch", "it", "nothing").write(on=True)
    assert caught.value.remedy == remedy


def test_kernel_without_kprobes_in_tracefs(monkeypatch, tmp_path):
    monkeypatch.setattr(tracefs, "root", lambda: str(tmp_path))
    with pytest.raises(KernelRefused, match=r"does not set a kprobe: .*: it was built without CONFIG_KPROBE_EVENTS"):
        probe_events.define(0x1000)
    Path(tmp_path, "kprobe_events").mkdir()  # there, and not to be read
    with pytest.raises(KernelRefused, match="does not list the kprobes of tracefs"):
        probe_events.define(0x1000)


@pytest.mark.parametrize(("number", "told"), [(errno.ENOENT, True), (errno.EINVAL, False)])
def test_counter_that_the_machine_does_not_have(monkeypatch, number, told):
    def refuse(*_):
        raise OSError(number, "")

    monkeypatch.setattr(perf.gateway, "perf_event_open", refuse)
    with pytest.raises(KernelRefused, match="does not open cache-misses") as caught:
        perf.open_event("cache-misses", 0, 1000)
    assert ("no such counter" in str(caught.value)) == told


def test_function_that_takes_no_program_is_no_raw_tracepoint(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "")

    monkeypatch.setattr(programs.bpf.gateway, "bpf", refuse)
    with pytest.raises(KernelRefused, match="does not attach a program to what it was loaded for"):
        programs.attach_typed(7)
    with pytest.raises(KernelRefused, match="does not attach to a raw tracepoint"):
        programs.attach_raw(7, "sched_switch")
