"""What a probe adds to a call, beside what the same target costs under other tools."""

from collections.abc import Callable

import peers
from measure import CallTarget, Estimate, call_target, pairs
from rows import Report

import anyprobe

CALLS = 100_000_000
PAIRS = 21
PEER_CALLS = 20_000
PEER_PAIRS = 7
FRIDA_CALLS = 500_000


def counting(session: anyprobe.Session, function: str) -> Callable[[], Callable[[], object]]:
    """Return what arms a counter at a function's entry."""

    def arm() -> Callable[[], object]:
        probes = session.count(f"a.out:{function}")
        if len(probes) != 1:
            raise RuntimeError(f"{function} was refused: {session.refused}")
        return lambda: session.remove(*probes)

    return arm


def timing(session: anyprobe.Session, function: str) -> Callable[[], Callable[[], object]]:
    """Return what arms timing of a function."""

    def arm() -> Callable[[], object]:
        probes = session.time(f"a.out:{function}")
        if not probes:
            raise RuntimeError(f"{function} was refused: {session.refused}")
        return lambda: session.remove(*probes)

    return arm


def ours(
    threads: int,
    function: str,
    kind: Callable[..., Callable[[], Callable[[], object]]],
    share: float,
    **options: bool,
) -> Estimate:
    """Return what our probe adds; ``options`` are the session's."""
    settings = anyprobe.SessionOptions(**options)  # type: ignore[arg-type] # its flags
    with call_target(threads) as target, anyprobe.attach(target.pid, settings) as session:
        return pairs(target, function, int(CALLS * share), max(PAIRS, 20), kind(session, function))[0]


def theirs(report: Report, name: str, function: str, arm: peers.Peer, *, calls: int, threads: int = 1) -> float | None:
    """Print a peer's row and return what it adds."""
    try:
        with call_target(threads) as target:
            added, bare, probed = pairs(target, function, calls, PEER_PAIRS, lambda: arm(target, function))
    except (peers.Missing, RuntimeError, OSError) as reason:
        report.skip(name, reason)
        return None
    report.add(name, f"{added} ns", "", None, f"{bare:.2f} -> {probed:.2f} ns per call")
    return added.median


def frida(callbacks: str) -> peers.Peer:
    """Return Frida's way of arming, looked for only when it is used."""

    def arm(target: CallTarget, function: str) -> Callable[[], object]:
        return peers.Frida(callbacks)(target, function)

    return arm


def bpftrace(*, returns: bool) -> peers.Peer:
    """Return bpftrace's way of arming, looked for only when it is used."""

    def arm(target: CallTarget, function: str) -> Callable[[], object]:
        return peers.Bpftrace()(target, function, returns=returns)

    return arm


def kernel(*, returns: bool) -> peers.Peer:
    """Return the kernel's uprobes."""
    return lambda target, function: peers.uprobe(target, function, returns=returns)


def measure_peers(report: Report, function: str, *, returns: bool, threads: int = 1) -> dict[str, float | None]:
    """Measure all peers at one function."""
    what = f"{function}, {'entry + return' if returns else 'entry'}, {threads} thread{'s' if threads > 1 else ''}"
    found: dict[str, float | None] = {}
    try:
        with peers.tracefs():
            found["uprobe"] = theirs(
                report, f"  kernel uprobe: {what}", function, kernel(returns=returns), calls=PEER_CALLS, threads=threads
            )
    except peers.Missing as reason:
        report.skip(f"  kernel uprobe: {what}", reason)
    forms = (
        {"frida": ("Frida CModule", peers.FRIDA_BOTH)}
        if returns
        else {
            "frida": ("Frida CModule listener", peers.FRIDA_LISTENER),
            "frida_probe": ("Frida CModule probe", peers.FRIDA_PROBE),
        }
    )
    for key, (name, callbacks) in forms.items():
        found[key] = theirs(report, f"  {name}: {what}", function, frida(callbacks), calls=FRIDA_CALLS, threads=threads)
    found["bpftrace"] = theirs(
        report, f"  bpftrace: {what}", function, bpftrace(returns=returns), calls=PEER_CALLS, threads=threads
    )
    return found


def ratio(report: Report, name: str, ours: Estimate, theirs: float | None, must: float | None) -> None:
    """Print how many times less we add; the upper end of our interval is what is compared when the median is tiny."""
    if theirs is None:
        report.skip(name, "the other tool was not measured")
        return
    least, likely = theirs / max(ours.high, 0.01), theirs / max(ours.median, 0.05)
    figure = f"{likely:.0f} (at least {least:.0f})"
    if must is None:
        report.add(name, figure)
    else:
        report.add(name, figure, f">= {must:.0f} times less", likely >= must)


def entry_rows(report: Report, share: float) -> None:
    """One thread, two threads, and a function of four bytes."""
    one = ours(1, "work", counting, share)
    report.add("counter at entry, one thread", f"{one} ns added", "<= 1 ns", one.median <= 1.0)
    found = measure_peers(report, "work", returns=False)
    ratio(report, "  times less than a kernel uprobe", one, found.get("uprobe"), 500)
    ratio(report, "  times less than Frida's CModule listener", one, found.get("frida"), 200)
    ratio(report, "  times less than Frida's CModule probe", one, found.get("frida_probe"), None)
    two = ours(2, "work", counting, share)
    report.add(
        "counter at entry, two threads, one function",
        f"{two} ns added",
        f"<= 1.3 x one thread ({one.median:.2f})",
        two.median <= max(1.3 * one.median, one.high),
    )
    measure_peers(report, "work", returns=False, threads=2)
    four = ours(1, "leaf4", counting, share)
    report.add("counter in a function of 4 bytes", f"{four} ns added", "<= 1 ns, by a jump", four.median <= 1.0)
    measure_peers(report, "leaf4", returns=False)


def timing_row(report: Report, share: float) -> None:
    """Entry and return timing, beside the cost of reading the clock."""
    with call_target() as target:
        clock = min(target.run("rdtsc", 10_000_000)[0] for _ in range(5))
    both = ours(1, "work", timing, share * 0.1)
    limit = 2 * clock + 15
    report.add(
        "entry + return timing",
        f"{both} ns added",
        f"<= {limit:.1f} (2 rdtsc of {clock:.1f} + 15)",
        both.median <= limit,
    )
    more = ours(1, "work", timing, share * 0.1, self_time=True)
    within = more.median <= both.median + 5
    report.add("the same with self times", f"{more} ns added", f"<= {both.median + 5:.1f} (without + 5)", within)
    cpu = ours(1, "work", timing, share * 0.1, clock="cpu")
    within = cpu.median <= both.median + 1.5
    report.add(
        "the same by the thread's own clock", f"{cpu} ns added", f"<= {both.median + 1.5:.1f} (without + 1.5)", within
    )
    tree = ours(1, "work", timing, share * 0.1, call_tree=True)
    report.add("the same with a call tree", f"{tree} ns added", "", None)
    measure_peers(report, "work", returns=True)


def disarmed_row(report: Report, share: float) -> None:
    """A disarmed site: the same bytes, hence the same time."""
    from bytes_of import text_bytes

    with call_target() as target, anyprobe.attach(target.pid) as session:
        before = text_bytes(target.pid)

        def arm_and_remove() -> Callable[[], object]:
            session.remove(*session.count("a.out:work"))
            return lambda: None

        added, _, _ = pairs(target, "work", int(CALLS * share * 0.5), PAIRS, arm_and_remove)
        equal = text_bytes(target.pid) == before
    report.add("a disarmed site", f"bytes equal: {equal}; {added} ns", "bytes equal", equal)
