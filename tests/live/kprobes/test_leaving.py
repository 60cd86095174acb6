"""Functions that exceptions leave, and one that ends the program: return probes lose and leak nothing."""

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.kprobes import Kprobe, Kretprobe, register_kretprobes, unregister_kretprobes
from support.driver import build, started

pytestmark = pytest.mark.live


def counting(name, maxactive=0):
    """Return a return probe, and what counts its entries and returns."""
    entries, returns = Count(f"{name} entered"), Count(f"{name} returned")

    def entry(ri, regs):
        entries.add()
        return 0

    def handler(ri, regs):
        returns.add()

    return Kretprobe(Kprobe(symbol_name=name), handler, entry, maxactive=maxactive), entries, returns


def total(*counts):
    return [count.result().total.count for count in counts]


@pytest.mark.parametrize("maxactive", [0, 1, 8])
def test_exceptions(maxactive):
    """Each second call is left by an exception, through one more function: no instance leaks, no return is made up."""
    with started(build("exceptions.cpp")) as target, anyprobe.attach(target.pid) as session:
        names = ("thrower", "passer", "catcher")
        made = [counting(name, maxactive) for name in names]
        assert register_kretprobes([rp for rp, _, _ in made]) == 0, [rp.kp.error for rp, _, _ in made]
        counts = target.go(200)
        session.snapshot()
        for name, (rp, entries, returns) in zip(names, made, strict=True):
            assert total(entries, returns) == [counts.calls[name], counts.returns[name]]
            assert rp.nmissed == 0
        unregister_kretprobes([rp for rp, _, _ in made])
        target.go(2)
        target.finish()


@pytest.mark.parametrize("maxactive", [0, 1])
def test_exit_itself(maxactive):
    """It never comes back; the program ends as it would."""
    with started(build("kprobed.c", "-O2", "-pthread")) as target, anyprobe.attach(target.pid):
        made = [counting(name, maxactive) for name in ("exit", "_exit")]
        assert register_kretprobes([rp for rp, _, _ in made]) == 0, [rp.kp.error for rp, _, _ in made]
        target.go(1)
        target.finish()
        leaving = [total(entries, returns) for _, entries, returns in made]
        assert [returns for _, returns in leaving] == [0, 0]
        assert [entered for entered, _ in leaving] == [1, 2]  # a vfork child has left by _exit, too
        assert [rp.nmissed for rp, _, _ in made] == [0, 0]
