"""Sessions without stops, when the journal is nearly full."""

import pytest

import anyprobe
from anyprobe.kprobes import Kprobe, register_kprobe, unregister_kprobe

pytestmark = pytest.mark.live


def test_a_change_that_the_journal_has_no_room_for_is_made_in_a_stop(target):
    with anyprobe.attach(target.pid, live=True) as session:
        kp = Kprobe(symbol_name="stepped")
        assert register_kprobe(kp) == 0
        target.run_freely()
        rooms = [
            (arena.journal, arena.journal._free, arena.journal._unused) for arena in session.splicing.holdings.arenas
        ]
        for journal, *_ in rooms:  # as if all had been written
            journal._free, journal._unused = [], journal.capacity
        unregister_kprobe(kp)
        assert kp.registration is None
        counts = target.halt()
        assert counts.calls["stepped"] > 0
        assert session.process.mem.read(session.resolve("a.out:stepped")[0][0].address, 1) != b"\xcc"
        for journal, free, unused in rooms:
            journal._free, journal._unused = free, unused
        target.go(1)
        target.finish()
