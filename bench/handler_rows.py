"""What compiled handlers cost per call, and how long they take to be compiled."""

import statistics
import tempfile
import time
from collections.abc import Callable
from unittest import mock

from measure import call_target, pairs
from rows import Report

import anyprobe
from anyprobe import Count, Hist, Sum, cstr, emit, i32, ptr

CALLS, PAIRS = 50_000_000, 11


def handler_rows(report: Report, scale: float) -> None:
    """Print the rows."""
    _compiling(report)
    calls = max(int(CALLS * scale), 100_000)
    counter = _added(calls, "nothing but a counter", report, _counted)
    report.add("a counter, for comparison", f"{counter!s} ns")
    large, sizes, keyed = Count("large"), Hist("sizes"), Count("keyed", by=("n",))

    def compare(x: i32):
        if x > 64:
            large.add()

    def histogram(x: i32):
        sizes.add(x & 0xFFFF)

    def by_key(x: i32):
        keyed.add(key=((x & 0xFFFF) % 1000,))

    def record(x: i32):
        emit("record", a=x, b=x + 1, c=x + 2)

    for name, handler, must in (
        ("compare an argument and count", compare, 3.0),
        ("histogram of an argument", histogram, 6.0),
        ("keyed map update, 1 000 keys", by_key, 25.0),
        ("record of 4 fields", record, None),
    ):
        added = _added(calls, name, report, lambda session, handler=handler: _placed(session, handler))
        holds = None if must is None or added is None else float(str(added).split()[0]) <= must
        report.add(f"handler: {name}", f"{added!s} ns", "" if must is None else f"<= {must:g} ns", holds)
    for name, place in (("a good pointer", _image), ("a pointer to the thread's stack", None)):
        added = _added(max(calls // 20, 100_000), name, report, lambda session, place=place: _reading(session, place))
        report.add(f"handler: cstr of {name}", f"{added!s} ns")
    latency = _added(calls, "latency", report, _latency)
    report.add("handler: entry + return latency histogram", f"{latency!s} ns", "<= two rdtsc + 20 ns")
    _callback(report, max(int(20_000 * scale), 500))


def _added(calls: int, name: str, report: Report, arm: Callable[[anyprobe.Session], Callable[[], object]]) -> object:
    try:
        with call_target(1) as target, anyprobe.attach(target.pid) as session:
            return pairs(target, "work", calls, PAIRS, lambda: arm(session))[0]
    except RuntimeError as reason:
        report.skip(name, reason)
        return None


def _counted(session: anyprobe.Session) -> Callable[[], object]:
    probes = session.count("a.out:work")
    return lambda: session.remove(*probes)


def _placed(session: anyprobe.Session, handler: Callable[..., object]) -> Callable[[], object]:
    known = session.probes_of(handler)
    if known:
        session.enable(*known)
    else:
        session.entry("a.out:work")(handler)
        known = session.probes_of(handler)
    if session.refused:
        raise RuntimeError(f"refused: {session.refused}")
    return lambda: session.remove(*known)


def _image(session: anyprobe.Session) -> int:
    """Return the address of a text of the program: the first bytes of its image."""
    return next(each.start for each in session.mappings() if each.path == session.exe) + 1


def _reading(session: anyprobe.Session, place: Callable[[anyprobe.Session], int] | None) -> Callable[[], object]:
    found, start = Sum("found"), 0 if place is None else place(session)

    def read(ctx):
        text = cstr(ptr(ctx.regs.rsp if start == 0 else start), 16)
        if text is not None:
            found.add(len(text))

    return _placed(session, read)


def _latency(session: anyprobe.Session) -> Callable[[], object]:
    spent = Hist("spent")

    @session.call("a.out:work")
    def enter(ctx):
        ctx.data.t0 = ctx.now

    @enter.ret
    def leave(ctx):
        spent.add(ctx.now - ctx.data.t0)

    probes = [*enter.entry, *enter.returns]
    return lambda: session.remove(*probes)


def _callback(report: Report, calls: int) -> None:
    """Print how long a hit waits for a Python function in the controller."""
    with call_target(1) as target, anyprobe.attach(target.pid) as session:

        @session.callback("a.out:work", timeout=1)
        def waited_for(hit):
            return hit.regs.rdi

        found = [target.run("work", calls)[0] / 1e3 for _ in range(5)]
        lost = session.snapshot().missing
    middle = statistics.median(found)
    report.add("synchronous Python callback, round trip", f"{middle:.1f} us", "<= 60 us", middle <= 60, str(lost or ""))


def _compiling(report: Report) -> None:
    begin = time.process_time()
    from llvmlite import binding, ir  # noqa: F401 - their import is what is measured

    imported = time.process_time() - begin
    from anyprobe.handlers.compiler import native
    from anyprobe.handlers.frontend.lowering import Setting

    sizes, calls = Hist("sizes"), Count("calls")

    def ten_lines(ctx, fd: i32, n: i32):
        big = n > 4096
        if fd < 3:
            return
        size = min(n, 1 << 20)
        if big and ctx.tid != 0:
            size //= 2
        for _ in range(3):
            size += fd
        sizes.add(size)
        calls.add()

    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", XDG_CACHE_HOME=folder):
        moments = []
        for _ in range(6):
            begin = time.process_time()
            native(ten_lines, Setting())
            moments.append(1e3 * (time.process_time() - begin))
    note = f"llvmlite imported in {1e3 * imported:.0f} ms, not counted"
    report.add("compile a ten-line handler, the first", f"{moments[0]:.1f} ms", "<= 60 ms", moments[0] <= 60, note)
    kept = statistics.median(moments[1:])
    report.add("the same, kept from before", f"{kept:.1f} ms", "<= 5 ms", kept <= 5)
