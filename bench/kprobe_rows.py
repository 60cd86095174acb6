"""The kprobes document's own table of overheads, for our engine on this machine, in microseconds per hit.

b: a kprobe with a pre handler, by a trap; k: the same with a post handler, too, for which the kernel has to single-step
behind the trap, and we have not; o: by a jump; j: a jprobe; r: a kretprobe by traps, ro: by jumps; kr, jr: two on one
function. The document has 0.99 for k, 0.43 for b, 0.06 for o, 1.24 for r, 0.68 for it boosted, 0.30 for ro.
"""

# ruff: noqa: ARG001 - a kernel handler has all its parameters

import statistics
import subprocess
from collections.abc import Callable

import peers
from measure import HERE, Estimate, call_target, compiled, pairs
from rows import Report

import anyprobe
from anyprobe import Count, Hist, i32
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    debugfs,
    register_jprobe,
    register_kprobe,
    register_kretprobe,
    regs_return_value,
    unregister_jprobe,
    unregister_kprobe,
    unregister_kretprobe,
)

CALLS, PAIRS, TRAP_CALLS = 20_000_000, 11, 100_000
DOCUMENT = 0.05
"""Microseconds: the best figure for o that the document has."""
Arm = Callable[[], Callable[[], object]]


class Probes:
    """Probes on one function, as the table's letters say."""

    def __init__(self) -> None:
        """Make the handlers."""
        hits = Count("hits")

        def pre(p, regs):
            hits.add()
            return 0

        def entry(x: i32):
            hits.add()

        def handler(ri, regs):
            hits.add()

        def post(p, regs, flags):
            hits.add()

        self._pre, self._post, self._entry, self._handler = pre, post, entry, handler
        sizes, results = Hist("sizes"), Hist("results")

        def measures(p, regs):
            sizes.add(regs.di)
            return 0

        def remembers(ri, regs):
            ri.data.size = regs.di
            return 0

        def compares(ri, regs):
            results.add(regs_return_value(regs) - ri.data.size)

        self._measures, self._remembers, self._compares = measures, remembers, compares

    def counter(self) -> Callable[[], object]:
        """Arm a kprobe without handlers: an inlined counter."""
        return self._kprobe(Kprobe(symbol_name="work"))

    def kprobe(self) -> Callable[[], object]:
        """Arm a kprobe with a compiled handler."""
        return self._kprobe(Kprobe(symbol_name="work", pre_handler=self._pre))

    def around(self) -> Callable[[], object]:
        """Arm a kprobe with handlers before and behind the instruction."""
        return self._kprobe(Kprobe(symbol_name="work", pre_handler=self._pre, post_handler=self._post))

    @staticmethod
    def _kprobe(kp: Kprobe) -> Callable[[], object]:
        _demand(register_kprobe(kp), kp)
        return lambda: unregister_kprobe(kp)

    def jprobe(self) -> Callable[[], object]:
        """Arm a jprobe."""
        jp = Jprobe(Kprobe(symbol_name="work"), self._entry)
        _demand(register_jprobe(jp), jp.kp)
        return lambda: unregister_jprobe(jp)

    def kretprobe(self) -> Callable[[], object]:
        """Arm a kretprobe."""
        rp = Kretprobe(Kprobe(symbol_name="work"), self._handler)
        _demand(register_kretprobe(rp), rp.kp)
        return lambda: unregister_kretprobe(rp)

    def called(self) -> Callable[[], object]:
        """Arm a kprobe whose handler the patch calls."""
        return self._kprobe(Kprobe(symbol_name="work", pre_handler=self._measures))

    def called_kretprobe(self) -> Callable[[], object]:
        """Arm a kretprobe whose handlers are called, with data of each call."""
        rp = Kretprobe(Kprobe(symbol_name="work"), self._compares, self._remembers)
        _demand(register_kretprobe(rp), rp.kp)
        return lambda: unregister_kretprobe(rp)

    def both(self, first: Arm, second: Arm) -> Arm:
        """Arm two probes."""

        def arm() -> Callable[[], object]:
            disarm = first(), second()
            return lambda: [each() for each in disarm]

        return arm


def _demand(status: int, kp: Kprobe) -> None:
    if status:
        raise RuntimeError(f"refused: {kp.error}")


def kprobe_rows(report: Report, scale: float) -> None:
    """Print the table."""
    bare = float(_bare_signal(max(int(TRAP_CALLS * scale), 10_000)))
    report.add("kprobes: an int3 and its handler, without anyprobe", f"{bare / 1000:.3f} us")
    trapped: dict[str, float] = {}
    traps = (
        ("k", "around", "k, by a trap, a post handler, too"), ("b", "kprobe", "b, by a trap"),
        ("b0", "counter", "b, by a trap, a counter"), ("r", "kretprobe", "r, by traps"),
    )  # fmt: skip
    for letter, name, shown in traps:
        found = _added(name, traps=True, calls=max(int(TRAP_CALLS * scale), 10_000))
        must = f"<= {1.5 * bare / 1000:.3f} us (1.5 signals)" if name in ("kprobe", "counter") else ""
        holds = found.median <= 1.5 * bare if must else None
        report.add(f"kprobes: {shown}", _microseconds(found), must, holds)
        trapped[letter] = found.median
    calls = max(int(CALLS * scale), 200_000)
    jumps = (
        ("o", "counter", "o, a counter", 0.001), ("o2", "kprobe", "o, a compiled handler", 0.004),
        ("j", "jprobe", "j", 0.004), ("ro", "kretprobe", "ro", 0.010), ("kr", "kprobe kretprobe", "kr, by jumps", None),
        ("jr", "jprobe kretprobe", "jr, by jumps", None), ("oc", "called", "o, a handler that is called", None),
        ("rc", "called_kretprobe", "ro, handlers that are called, and data", None),
        ("krc", "called called_kretprobe", "kr, the same two", None),
    )  # fmt: skip
    for letter, name, shown, must in jumps:
        found = _added(name, traps=False, calls=calls)
        limit = "" if must is None else f"<= {must:.3f} us"
        holds = None if must is None else found.median <= must * 1000
        report.add(f"kprobes: {shown}", _microseconds(found), limit, holds)
        trapped[letter] = found.median
    report.add(
        "kprobes: the document's best o by ours",
        f"{DOCUMENT * 1000 / max(trapped['o'], 0.05):.0f}",
        ">= 50 times less",
        DOCUMENT * 1000 / max(trapped["o"], 0.05) >= 50,
    )
    order = f"{trapped['o2']:.2f} < {trapped['b']:.0f} ns"
    report.add("kprobes: o < b, with one handler", order, "", trapped["o2"] < trapped["b"])
    _kernel(report, max(int(20_000 * scale), 2000))


def _added(names: str, *, traps: bool, calls: int) -> Estimate:
    """Return what some probes on one function add to a call."""
    with call_target(1) as target, anyprobe.attach(target.pid):
        probes = Probes()
        debugfs.set_optimization(not traps)
        arms = [getattr(probes, name) for name in names.split()]
        arm = arms[0] if len(arms) == 1 else probes.both(*arms)
        return pairs(target, "work", calls, PAIRS, _checked(arm, traps=traps))[0]


def _checked(arm: Arm, *, traps: bool) -> Arm:
    """Arm what is reached as the row says, or fail."""

    def armed() -> Callable[[], object]:
        disarm = arm()
        if any(("OPTIMIZED" in line.flags) == traps for line in debugfs.listing()):
            raise RuntimeError("not reached as it should be")
        return disarm

    return armed


def _microseconds(found: Estimate) -> str:
    return f"{found.median / 1000:.4f} us ({found.low / 1000:.4f} to {found.high / 1000:.4f})"


def _bare_signal(rounds: int) -> float:
    program = compiled(HERE / "signal.c")
    found = [
        float(subprocess.run([program, str(rounds)], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return statistics.median(found)


def _kernel(report: Report, calls: int) -> None:
    """Print the kernel's uprobes, beside."""
    for name, returns in (("uprobe", False), ("uretprobe", True)):
        try:
            with peers.tracefs(), call_target(1) as target:
                found = pairs(
                    target,
                    "work",
                    calls,
                    5,
                    lambda target=target, returns=returns: peers.uprobe(target, "work", returns=returns),
                )[0]
        except (peers.Missing, OSError, RuntimeError) as reason:
            report.skip(f"kprobes: the kernel's {name}", reason)
            continue
        report.add(f"kprobes: the kernel's {name}", _microseconds(found))
