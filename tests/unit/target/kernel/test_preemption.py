"""Whether a kernel is preemptible, from what kernels show."""

import pytest

from anyprobe.target.kernel import preemption


@pytest.mark.parametrize(
    ("realtime", "mode", "version", "expected"),
    [
        ("1\n", "", "#1 SMP PREEMPT_RT Debian 6.1.192-2 (2026-11-16)", True),
        (None, "none voluntary (full) lazy\n", "#1 SMP PREEMPT_DYNAMIC Debian", True),
        (None, "none (voluntary) full\n", "#1 SMP PREEMPT_DYNAMIC Debian", False),
        (None, None, "#1 SMP PREEMPT_DYNAMIC Debian", False),
        (None, None, "#1 SMP PREEMPT Debian", True),
        (None, None, "#1 SMP", False),
    ],
)
def test_modes(monkeypatch, tmp_path, realtime, mode, version, expected):
    for name, content in (("_REALTIME", realtime), ("_MODE", mode), ("_COMMAND_LINE", "ro quiet")):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        monkeypatch.setattr(preemption, name, str(path))
    assert preemption.is_preemptible(version) is expected


def test_chosen_at_the_start(monkeypatch, tmp_path):
    (tmp_path / "cmdline").write_text("ro preempt=full\n")
    for name in ("_REALTIME", "_MODE"):
        monkeypatch.setattr(preemption, name, str(tmp_path / "absent"))
    monkeypatch.setattr(preemption, "_COMMAND_LINE", str(tmp_path / "cmdline"))
    assert preemption.is_preemptible("#1 SMP PREEMPT_DYNAMIC")
