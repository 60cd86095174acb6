"""A Python program that probes itself: this one."""

import ctypes
import gc
import linecache
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

import anyprobe
from anyprobe import Count, HandlerError, Hist, Map, SpecError, TargetError, UsageError, emit, ptr, u64
from anyprobe.kprobes import Kprobe, register_kprobe
from support.driver import build, wait_until

pytestmark = pytest.mark.live
UMATH = "_multiarray_umath*"
THREADS, CALLS = 4, 2_000
LIMIT = 12_345


class Bounds:
    """What a handler captures from a class."""

    ODD = LIMIT


def is_odd_size(size):
    return size == Bounds.ODD


@pytest.fixture(scope="module")
def libc():
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


def allocate(library, size, calls=CALLS, threads=THREADS):
    """Allocate in several threads at once."""

    def work():
        for _ in range(calls):
            library.free(library.malloc(size))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def code_of(library):
    """Return the first bytes of ``malloc`` as they are now."""
    return ctypes.string_at(ctypes.cast(library.malloc, ctypes.c_void_p).value, 32)


def test_inner_functions_of_numpy_and_zlib_are_timed_from_within():
    with anyprobe.attach_self() as session:
        session.time("libz:deflate", "libz:inflate", f"{UMATH}:DOUBLE_fill", f"{UMATH}:DOUBLE_add*")
        packed = [zlib.compress(bytes(1 << 20)) for _ in range(5)]
        for _ in range(30):
            np.arange(1000.0)
        big = np.ones(1 << 16)
        for _ in range(40):
            big = big + 1.0
        assert len(zlib.decompress(packed[0])) == 1 << 20
        timings = {each.function: each for each in session.snapshot().functions}
    assert timings["deflate"].count == 5
    assert timings["inflate"].count >= 1
    assert timings["DOUBLE_fill"].count == 30
    adding = [each for name, each in timings.items() if name.startswith("DOUBLE_add") and each.count]
    assert max(each.count for each in adding) == 40
    for each in (timings["deflate"], timings["DOUBLE_fill"], *adding):
        assert each.unmatched == each.nmissed == 0
        assert 0 < each.min_ns <= each.sum_ns / each.count <= each.max_ns


def test_malloc_is_counted_while_several_threads_allocate(libc):
    before = code_of(libc)
    sizes, odd = Hist("sizes"), Count("odd", by=("tid",))
    with anyprobe.attach_self() as session:
        (probe,) = session.count("libc:malloc")

        @session.entry("libc:malloc")
        def on_malloc(ctx, size: u64):
            sizes.add(size)
            if is_odd_size(size):
                odd.add(key=(ctx.tid,))

        assert probe.armed
        assert code_of(libc) != before
        allocate(libc, LIMIT)
        result = odd.result()
        assert sorted(cell.count for cell in result.entries.values()) == [CALLS] * THREADS
        assert sizes.result().total.count >= THREADS * CALLS
        snapshot = session.snapshot()
        assert all(site.hits >= THREADS * CALLS and not site.nmissed for site in snapshot.sites)
        assert snapshot.aggregation("odd").total.count == THREADS * CALLS
        session.remove(probe)
        assert not probe.armed
        session.enable(probe)
        assert probe.armed
        # the memory itself, cells of all threads
        assert sizes.views[0].live("buckets").sum() >= THREADS * CALLS
        odd.clear()
        assert odd.result().total.count == session.snapshot().aggregation("odd").total.count == 0
        allocate(libc, LIMIT, 5, 2)
        assert odd.result().total.count == 10
    assert code_of(libc) == before
    assert sizes.result().total.count >= THREADS * CALLS
    assert inspect_from_outside() == ""


def inspect_from_outside():
    """Return what ``anyprobe probes`` finds in this process."""
    module = "anyprobe.probes.providers.function.outside.listing"
    program = f"import sys; from {module} import inspect; print(*inspect(int(sys.argv[1])).sites)"
    run = subprocess.run(
        [sys.executable, "-c", program, str(os.getpid())], capture_output=True, text=True, timeout=180, check=True
    )
    return run.stdout.strip()


def test_calls_records_and_maps(libc):
    seen = Map("seen", by=("size",))
    with anyprobe.attach_self() as session:

        @session.call("libc:malloc", when=lambda size: size == LIMIT)
        def on_call(ctx, size: u64):
            ctx.data.size = size

        @on_call.ret
        def on_return(ctx):
            if ctx.data.size == LIMIT:
                seen.set((ctx.data.size,), u64(ctx.retval))
                emit("allocated", address=u64(ctx.retval))

        address = libc.malloc(LIMIT)
        libc.free(address)
        assert [(name, row["address"]) for name, row in session.rows()] == [("allocated", address)]
        assert seen.views[0].items() == {(LIMIT,): address}
        libc.free(libc.malloc(LIMIT))
    # what was not read before the end is still there
    assert len(session.records()["allocated"]) == 1
    assert not session.records()
    with pytest.raises(UsageError, match="detached"):
        session.count("libc:malloc")


def test_the_reader_is_left_out():
    everything = Count("everything")
    with anyprobe.attach_self() as session:
        session.count("libc:recv")  # which only the thread that talks to the attendant calls

        @session.entry("libc:recv")
        def on_recv():
            everything.add()

        session.count("libc:recvmsg")

        def took():
            begin = time.monotonic()
            session.snapshot()
            return time.monotonic() - begin

        for _ in range(50):
            session.snapshot()
        wait_until(lambda: took() < 0.04, "it is found waiting at once")
        assert [(site.hits, site.nmissed) for site in session.snapshot().sites] == [(0, 0)] * 3
        assert everything.result().total.count == 0


def test_errors_travel():
    with anyprobe.attach_self() as session:
        with pytest.raises(SpecError) as spec:
            session.count("libc:mallok")
        assert "malloc" in spec.value.nearest
        with pytest.raises(HandlerError) as handler:

            @session.entry("libc:malloc")
            def on_malloc(size: u64):
                return [size]

        assert handler.value.file == __file__
        assert "return [size]" in handler.value.source
        with pytest.raises(HandlerError, match="nobody_knows is not defined"):

            @session.entry("libc:malloc")
            def on_malloc_again(size: u64):
                return size + nobody_knows  # noqa: F821


def test_a_notebook_cell(libc):
    cell = textwrap.dedent("""
        from anyprobe import Count, u64
        cells = Count("cells")
        @session.entry("libc:malloc")
        def on_malloc(size: u64):
            if size == LIMIT:
                cells.add()
    """)
    name = "/tmp/ipykernel_1/1234567.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    with anyprobe.attach_self() as session:
        space = {"session": session, "LIMIT": LIMIT}
        exec(compile(cell, name, "exec"), space)  # noqa: S102 - as notebooks do
        allocate(libc, LIMIT, 10, 2)
        assert space["cells"].result().total.count == 20


def mapped():
    """Return the mappings of sessions in this process, those of failed tests that are still shown included."""
    with open("/proc/self/maps") as maps:
        return {line for line in maps if "memfd:anyprobe" in line}


def test_the_attendant_is_killed(libc):
    gc.collect()
    before, odd, others = code_of(libc), Count("odd"), mapped()
    with anyprobe.attach_self() as session:

        @session.entry("libc:malloc")
        def on_malloc(size: u64):
            if size == LIMIT:
                odd.add()

        assert code_of(libc) != before
        os.kill(session.attendant, signal.SIGKILL)
        with pytest.raises(TargetError, match="has ended"):
            session.snapshot()
        allocate(libc, LIMIT, 10, 2)  # nobody is harmed
        assert code_of(libc) != before
        assert odd.result().total.count == 20
        with pytest.raises(TargetError, match="has ended"):
            session.count("libc:free")
    assert code_of(libc) == before
    assert odd.result().total.count == 20  # this memory is shared, and is still there
    assert inspect_from_outside() == ""
    allocate(libc, LIMIT, 1, 2)
    gc.collect()  # sessions of other tests, and what they have mapped
    assert mapped() <= others
    assert any("has died" in text for text in session.warnings)
    with anyprobe.attach_self() as again:
        again.count("libc:malloc")
        assert again.snapshot().sites[0].armed


def test_a_fork_child_has_no_session(libc):
    with anyprobe.attach_self() as session:
        session.count("libc:malloc")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                session.snapshot()
            except UsageError:
                session.close()
                libc.free(libc.malloc(LIMIT))
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert session.snapshot().sites[0].armed


def test_the_program_ends_without_a_word():
    program = textwrap.dedent("""
        import anyprobe
        session = anyprobe.attach_self()
        session.count("libc:malloc")
        print(session.attendant)
    """)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    wait_until(lambda: not os.path.exists(f"/proc/{int(run.stdout)}"), "the attendant ends")


def test_one_session_at_a_time():
    with anyprobe.attach_self() as session:
        session.count("libc:malloc")
        with anyprobe.attach_self() as other, pytest.raises(anyprobe.SessionConflict):
            other.count("libc:free")


def test_what_only_other_processes_can_have_is_refused_in_words():
    with anyprobe.attach_self() as session:
        with pytest.raises(AttributeError, match=r"kprobes, .* need anyprobe.attach\(PID\), from another process"):
            register_kprobe(Kprobe(symbol_name="malloc"))
        with pytest.raises(anyprobe.UsageError, match="a function is no spec"):
            session.entry(lambda ctx: None)
        assert set(session.misses().values()) <= {0}


@pytest.mark.skipif(not os.path.exists("/usr/bin/python3.11"), reason="needs a python3.11 with symbols of its own")
def test_the_interpreter_lock_is_timed_and_nobody_needs_privileges():
    program = textwrap.dedent("""
        import os, sys, threading, time
        sys.path[:0] = sys.argv[1].split(":")
        import anyprobe
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            libc = __import__("ctypes").CDLL(None)
            libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: which a change of user clears

        def busy():
            end = time.thread_time() + 0.2
            while time.thread_time() < end:
                pass

        with anyprobe.attach_self() as session:
            session.time("python3.11:take_gil*")
            workers = [threading.Thread(target=busy) for _ in range(2)]
            for each in workers:
                each.start()
            for each in workers:
                each.join()
            (timing, *_) = sorted(session.snapshot().functions, key=lambda each: -each.count)
            print(timing.count, timing.max_ns)
    """)
    with tempfile.TemporaryDirectory() as cache:
        os.chmod(cache, 0o777)  # noqa: S103 - for another user
        environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": cache}
        path = ":".join(str(Path(module.__file__).parents[1]) for module in (anyprobe, np))
        run = subprocess.run(
            ["/usr/bin/python3.11", "-c", program, path],
            capture_output=True, text=True, timeout=180, check=False, env=environment,
        )  # fmt: skip
    if "ModuleNotFoundError" in run.stderr or "PermissionError" in run.stderr:
        pytest.skip(run.stderr.splitlines()[-1])
    assert run.returncode == 0, run.stderr
    count, longest = run.stdout.split()
    assert int(count) > 10
    # who wants the lock waits for five milliseconds before it asks for it
    assert float(longest) > 1e6


def test_an_answer_that_cannot_be_sent_is_an_error_and_no_more():
    with anyprobe.attach_self() as session:
        with pytest.raises(anyprobe.InternalError, match="pickle"):
            session.ask("ask", "engine")
        session.count("libc:malloc")
        assert session.snapshot().sites[0].armed


def test_an_attendant_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr("anyprobe.probes.selfattach.client._START", "raise SystemExit('there is no attendant')")
    with pytest.raises(TargetError, match="did not start: there is no attendant"):
        anyprobe.attach_self()
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(anyprobe.UnsupportedTarget, match="does not name one"):
        anyprobe.attach_self()


def test_debug_information_of_a_library_of_this_process():
    text = """
        struct size { short width; unsigned char height; };
        struct box { long number; struct size *size; };
        __attribute__((noinline, noclone, noipa)) long area(struct box *box, int times) {
            return box->size->width * box->size->height * times;
        }
    """
    library = ctypes.CDLL(str(build("area.c", "-shared", "-fPIC", text=text)))

    class Size(ctypes.Structure):
        _fields_ = (("width", ctypes.c_short), ("height", ctypes.c_ubyte))

    class Box(ctypes.Structure):
        _fields_ = (("number", ctypes.c_long), ("size", ctypes.POINTER(Size)))

    box = Box(7, ctypes.pointer(Size(-3, 200)))
    with anyprobe.attach_self() as session:
        kind = session.type("box", "area")
        with pytest.raises(anyprobe.UnsupportedTarget, match="no type crate"):
            session.type("crate", "area")

        @session.entry("area:area")
        def on_area(box, times):
            emit("area", number=box.number, width=box.size.width, times=times)

        def again(first: ptr[kind]):
            emit("again", height=first.size.height, number=ptr[kind](first).number)

        session.entry("area:area", handler=again)
        assert library.area(ctypes.byref(box), 2) == -1200
        rows = dict(session.rows())
    assert {name: value for name, value in rows["area"].items() if name != "ts"} == {
        "number": 7, "width": -3, "times": 2
    }  # fmt: skip
    assert (rows["again"]["height"], rows["again"]["number"]) == (200, 7)


def test_what_takes_long_is_told_to_a_function(monkeypatch):
    monkeypatch.setattr("anyprobe.probes.selfattach.progress.EVERY", 0.001)
    told = []
    with anyprobe.attach_self(progress=lambda *each: told.append(each)) as session:
        session.count("libc:malloc", "libc:free")
        assert {("attaching", True), ("arming", True)} <= {(what, done) for what, _, done in told}
        assert all(seconds > 0 for _, seconds, _ in told)
    assert ("removing", True) in {(what, done) for what, _, done in told}
