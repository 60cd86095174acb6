"""``doctor --kernel`` in the guest: each mechanism is tried, and what does not count is named with its reason."""

import json
import subprocess
import sys

import pytest

from anyprobe.cli import main
from anyprobe.target.kernel import bpf, switches

COMMAND = ("doctor", "--kernel", "--json")
NOBODY = 65534
OF_FUNCTIONS = {"fentry", "kprobe", "fexit", "kretprobe"}
MULTI = {"kprobe.multi", "kretprobe.multi"}


@pytest.fixture
def doctor(capsys):
    """Return what runs the command: the findings about the kernel by name, what to try next, and the exit status."""

    def run():
        status = main([*COMMAND])
        return *_read(capsys.readouterr().out), status

    return run


def _read(text):
    document = json.loads(text)
    return {each["name"]: each for each in document["kernel"]}, document["next"]


def test_every_mechanism_is_tried_and_nothing_is_left(doctor):
    found, following, status = doctor()
    assert status == 0, found
    for name in (*OF_FUNCTIONS, "raw_tp", "tracepoint", "software events", "uprobe"):
        assert found[name]["verdict"] == "ok", found[name]
        assert "20 of 20" in found[name]["detail"]
    assert found["timers"]["verdict"] == found["ring buffer"]["verdict"] == "ok"
    for name in MULTI:  # not in all kernels; what does the same is named there
        if found[name]["verdict"] != "ok":
            assert "CONFIG_FPROBE" in found[name]["detail"]
            assert "works still" in found[name]["remedy"]
    assert "count" in following
    assert bpf.next_number(11, 0) is None


def test_switched_off_kprobes_are_said_so(doctor):
    with switches.ARMED.held(on=False):
        found, _, status = doctor()
    assert switches.ARMED.read()
    assert status == 0
    assert found["kprobe"]["verdict"] == "limited"
    assert "switched off" in found["kprobe"]["detail"]
    assert "fentry" in found["kprobe"]["remedy"]
    assert found["kprobes switch"]["remedy"] == "anyprobe enable --kernel --all"
    assert found["fentry"]["verdict"] == "ok"


@pytest.mark.thorough
def test_an_ordinary_user_is_told_what_is_lacking():
    user = ["setpriv", "--reuid", str(NOBODY), "--clear-groups"]
    done = subprocess.run([*user, sys.executable, "-m", "anyprobe", *COMMAND], capture_output=True, text=True)
    found, following = _read(done.stdout)
    assert done.returncode == 1
    assert "CAP_BPF and CAP_PERFMON" in found["privileges"]["detail"]
    assert all(found[name]["verdict"] == "no" for name in OF_FUNCTIONS)
    assert "sudo" in following
    assert not any("CONFIG" in found[name]["detail"] for name in OF_FUNCTIONS)
