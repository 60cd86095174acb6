"""Single instructions of a Go program, which nothing else may move with: each alone, and all ends at once."""

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from live.test_offsets import boundaries
from support.driver import MissingTool, Target, build


@pytest.fixture
def target():
    try:
        path = build("go_program.go")
    except MissingTool as missing:
        pytest.skip(f"{missing} is not installed")
    started = Target([str(path)])
    started.path = path
    yield started
    started.close()


def test_each_instruction_of_a_function_alone(target):
    with anyprobe.attach(target.pid) as session:
        for offset in boundaries(target.path, "main.Work"):
            before = target.go(1).calls["main.Work"]
            (probe,) = session.count(f"a.out:main.Work+{offset:#x}")
            assert probe.armed, session.refused
            counts = target.go(1)
            (hits,) = [site.hits for site in session.snapshot().sites if site.armed and site.offset == offset]
            assert hits in (0, counts.calls["main.Work"] - before), hex(offset)
            session.remove(probe)
    target.finish()


def test_every_entry_and_exit(target):
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:*", "a.out:*%return")
        before = target.go(1).calls["main.Work"]
        snapshot = session.snapshot()
        # a function whose one exit is refused has none of them, and some never return
        refused = [why for _, why in session.refused if why.reason not in (Reason.NO_EXIT, Reason.EXIT_REFUSED)]
        assert len(refused) < 0.01 * sum(site.armed for site in snapshot.sites), refused  # 0.002 before Go 1.21
        hits = {kind: sum(s.hits for s in snapshot.sites if (s.function, s.kind) == ("main.Work", kind))
                for kind in ("entry", "return")}  # fmt: skip
        counts = target.go(20)
        after = session.snapshot()
        for kind, then in hits.items():
            now = sum(s.hits for s in after.sites if (s.function, s.kind) == ("main.Work", kind))
            assert now - then == counts.calls["main.Work"] - before
    target.go(2)
    target.finish()


@pytest.mark.parametrize("specs", [("a.out:main.Safe*:insn", "a.out:main.D*:insn"), ("a.out:*", "a.out:*%return")])
def test_panics_by_faults_in_displaced_code_are_recovered_from(run_target, specs):
    """The function that recovers returns where nothing branches to, and is seen to."""
    target = run_target("go_recovers.go")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:main.Safe", "a.out:main.Safe%return", *specs)
        before = target.go(1).calls["main.Safe"] - 400
        calls = target.go(5).calls["main.Safe"] - before
        snapshot, times = session.snapshot(), 1 + ("a.out:*" in specs)  # as often as it is probed
        hits = {kind: sum(s.hits for s in snapshot.sites if (s.function, s.kind) == ("main.Safe", kind))
                for kind in ("entry", "return")}  # fmt: skip
        assert hits == {"entry": times * calls, "return": times * calls}
    target.go(1)
    target.finish()
