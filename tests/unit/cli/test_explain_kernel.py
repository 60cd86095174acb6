"""``explain`` with a spec of the kernel: no process is asked for."""

import json

import pytest

from anyprobe.cli import main
from anyprobe.data.findings.explanation import Explanation, Line
from anyprobe.probes.providers.kernel import explaining

START = 0xFFFF_FFFF_8145_7340
NOTE = "the kernel's optimiser puts a jump in the place of a kprobe's trap: 2 instructions of 5 bytes move"
FOUND = Explanation(
    "kernel:vmlinux:vfs_read:0x9", "vmlinux", "vfs_read", START + 9, START,
    (
        Line(START + 9, b"\x41\x57", "push r15", ("IA", "DCR")),
        Line(START + 11, b"\x41\x56", "push r14", ("DCR", "JTPR")),
    ),
    ("rdi",), ("rax",), (), False,
    (("fentry", "not used: it sees entries and returns of functions"), ("kprobe", "chosen")), notes=(NOTE,),
)  # fmt: skip


@pytest.fixture
def explained(monkeypatch):
    asked = []
    monkeypatch.setattr(explaining, "explain", lambda spec: asked.append(spec) or FOUND)
    return asked


def test_the_code_the_mechanisms_and_the_optimiser_are_shown(explained, capsys):
    assert main(["explain", "kernel::vfs_read:0x9"]) == 0
    shown = capsys.readouterr().out
    assert [spec.text for spec in explained] == ["kernel::vfs_read:0x9"]
    assert "would be placed by a kprobe, 290 to 720 instructions a hit" in shown
    assert "vmlinux:vfs_read+0x9" in shown
    assert "push r15" in shown
    assert "IA DCR" in shown
    assert NOTE in shown


def test_as_json(explained, capsys):
    assert main(["explain", "kernel::vfs_read:0x9", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["address"] == START + 9
    assert document["verdicts"][1] == {"strategy": "kprobe", "verdict": "chosen"}


def test_what_is_of_processes_only_is_said(explained, capsys):
    assert main(["explain", "kernel::vfs_read", "--for", "time"]) == 2
    assert "not of the kernel" in capsys.readouterr().err
    assert not explained
