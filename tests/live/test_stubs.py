"""The linker's stubs by name, and code that neither a symbol nor an unwind entry mentions by its address."""

import pytest

import anyprobe
from anyprobe.binary.images.image import Image
from anyprobe.core.refusal import Reason

HOW = {
    "bound late": ("-fno-builtin", "-Wl,-z,lazy"),
    "bound early": ("-fno-builtin", "-Wl,-z,now"),
    "marked": ("-fno-builtin", "-fcf-protection=full", "-Wl,-z,lazy,-z,ibtplt"),
    "at a fixed address": ("-fno-builtin", "-no-pie", "-Wl,-z,lazy"),
}


def hits(session):
    return {(site.function, site.kind): site.hits for site in session.snapshot().sites}


@pytest.mark.parametrize("how", HOW)
def test_stubs_are_counted_by_name(run_target, how):
    target = run_target("stubs.c", options=HOW[how])
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:llabs@plt", "a.out:labs@plt", "a.out:llabs@plt%return")
        assert not session.refused
        counts = target.go(20)
        found = hits(session)
        assert found["llabs@plt", "entry"] == found["llabs@plt", "return"] == counts.calls["llabs"]
        assert found["labs@plt", "entry"] == counts.calls["labs"]
    target.go(1)
    target.finish()


def test_every_stub_that_is_called_can_be_counted(run_target):
    """Those of the program's start are called once before anybody attaches."""
    target = run_target("stubs.c", options=HOW["bound late"])
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("a.out:*@plt")
        counts = target.go(20)
        assert hits(session)["llabs@plt", "entry"] == counts.calls["llabs"]
        assert {why.reason for _, why in session.refused} <= {Reason.NOT_CODE}
        assert probe.armed
    target.finish()


def test_who_asks_for_functions_gets_no_stubs(run_target):
    target = run_target("stubs.c", options=HOW["bound late"])
    with anyprobe.attach(target.pid) as session:
        for spec in ("a.out:*", "*:llabs"):
            sites, _ = session.resolve(spec)
            assert not any(site.function.name.endswith("@plt") for site in sites), spec
    target.finish()


def test_code_without_a_name(run_target):
    target = run_target("stubs.c")
    image = Image.open(f"/proc/{target.pid}/exe")
    (caller,) = image.functions.lookup("by_nameless")
    start = caller.start - 32
    with anyprobe.attach(target.pid) as session:
        for at in (0, 4, 7, 11, 13, 17):
            (probe,) = session.count(f"a.out:-:{start + at:#x}")
            assert probe.armed, session.refused
        counts = target.go(10)
        found = [site.hits for site in session.snapshot().sites]
        calls = counts.calls["nameless"]
        assert found == [calls, calls, calls, calls, calls * 96 // 100, calls]
    with anyprobe.attach(target.pid) as session:
        session.count(f"a.out:-:{start + 18:#x}")
        assert [why.reason for _, why in session.refused] == [Reason.NOT_CODE]  # a table
    target.go(1)
    target.finish()
