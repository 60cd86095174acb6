"""BPF's test of consumers: probes of four kinds, some before a call begins, others when it ends."""

from collections.abc import Iterable

from anyprobe import Count
from anyprobe.kprobes import (
    Kprobe,
    Kretprobe,
    register_kprobe,
    register_kretprobe,
    unregister_kprobe,
    unregister_kretprobe,
)
from support.driver import Target

KINDS = range(4)
"""An entry; entry and return; entry and a return that the entry declines; a return."""
COMBINATIONS = [(before, after) for before in range(16) for after in range(16)]


class Consumers:
    """The four, each with what it has counted."""

    def __init__(self) -> None:
        self.entries = [Count(f"entry {kind}") for kind in KINDS]
        self.returns = [Count(f"return {kind}") for kind in KINDS]
        self._there: dict[int, Kprobe | Kretprobe] = {}

    def become(self, wanted: int) -> None:
        """Unregister and register what makes the set of bits ``wanted``."""
        for kind in [kind for kind in self._there if not wanted >> kind & 1]:
            probe = self._there.pop(kind)
            unregister_kprobe(probe) if isinstance(probe, Kprobe) else unregister_kretprobe(probe)
        for kind in KINDS:
            if wanted >> kind & 1 and kind not in self._there:
                probe = self._there[kind] = self._made(kind)
                number = register_kprobe(probe) if isinstance(probe, Kprobe) else register_kretprobe(probe)
                assert number == 0, probe

    def counted(self) -> list[tuple[int, int]]:
        """Return the entries and returns that each has seen so far."""
        numbers = [[each.result().total.count for each in counts] for counts in (self.entries, self.returns)]
        return list(zip(*numbers, strict=True))

    def _made(self, kind: int) -> Kprobe | Kretprobe:
        entered, returned = self.entries[kind], self.returns[kind]
        declines = int(kind == 2)

        def pre(p, regs):
            entered.add()
            return 0

        def entry(ri, regs):
            entered.add()
            return declines

        def leaving(ri, regs):
            returned.add()

        kp = Kprobe(symbol_name="consumed")
        if kind == 0:
            kp.pre_handler = pre
            return kp
        return Kretprobe(kp, leaving, entry if kind in (1, 2) else None)


def check(target: Target, combinations: Iterable[tuple[int, int]]) -> None:
    """Go through combinations: each consumer has counted what it was there for, and nothing else."""
    consumers = Consumers()
    expected = [[0, 0] for _ in KINDS]
    for before, after in combinations:
        consumers.become(before)
        target.start(1)
        target.wait_for("inside")
        consumers.become(after)
        target.send("on")
        target.wait_done()
        for kind in KINDS:
            expected[kind][0] += before >> kind & 1 if kind != 3 else 0
            expected[kind][1] += (before & after) >> kind & 1 if kind in (1, 3) else 0
        assert consumers.counted() == [tuple(each) for each in expected], (before, after)
    consumers.become(0)
