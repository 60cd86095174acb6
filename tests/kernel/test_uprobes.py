"""Uprobes in all processes: functions and markers of programs that nobody traces."""

import ctypes
import errno
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Count, Hist, Sum
from anyprobe.cli import main
from anyprobe.probes.providers.usdt.checking import checked
from anyprobe.probes.providers.usdt.descriptions import known_descriptions
from anyprobe.target.kernel import symbols

COUNT = 2000


@pytest.fixture
def program(probed_everywhere):
    return probed_everywhere


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


def run(program):
    """Run it; return the sum of the results of its function, and how often it saw that somebody listens."""
    done = subprocess.run([program, str(COUNT)], check=True, capture_output=True, text=True)
    return tuple(map(int, done.stdout.split()))


def test_function_of_a_program_by_path(session, program):
    session.count(f"uprobe:{program}:work", f"uretprobe:{program}:work")
    run(program)
    entry, ret = session.snapshot().sites
    assert [entry.hits + entry.nmissed, ret.hits + ret.nmissed] == [COUNT, COUNT]
    assert [entry.strategy, ret.strategy] == ["uprobe", "uretprobe"]
    assert entry.function == ret.function == "work"
    run(program)  # also in processes that are started later
    assert [site.hits + site.nmissed for site in session.snapshot().sites] == [2 * COUNT, 2 * COUNT]


def test_program_of_another_user_that_may_not_be_traced(session, program):
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # noqa: S103 - for the other user
    public = shutil.copy(program, folder)
    session.count(f"uprobe:{public}:work")

    def become_nobody():
        os.setgid(65534)
        os.setuid(65534)

    subprocess.run([public, str(COUNT)], check=True, capture_output=True, preexec_fn=become_nobody)
    shutil.rmtree(folder)
    (site,) = session.snapshot().sites
    assert site.hits + site.nmissed == COUNT


def test_marker_and_its_semaphore(session, program):
    assert run(program)[1] == 0
    (probe,) = session.count(f"usdt:{program}:everywhere:passed")
    assert run(program)[1] == COUNT
    (site,) = session.snapshot().sites
    assert site.hits + site.nmissed == COUNT
    session.remove(probe)
    assert run(program)[1] == 0


def test_names_that_there_are_not_have_the_nearest(session, program):
    with pytest.raises(anyprobe.SpecError, match="work"):
        session.count(f"uprobe:{program}:wokr")
    with pytest.raises(anyprobe.SpecError, match="everywhere:passed"):
        session.count(f"usdt:{program}:everywhere:pased")
    with pytest.raises(anyprobe.SpecError, match="no such file"):
        session.count("uprobe:/no/such/file:work")
    with pytest.raises(anyprobe.SpecError, match="not an ELF file"):
        session.count("uprobe:/etc/passwd:work")
    with pytest.raises(anyprobe.SpecError, match="no more than"):
        session.count(f"uprobe:{program}:work+0x1000")
    assert not session.probes


def test_place_inside_an_instruction_is_refused_or_counts(session, program):
    (probe,) = session.count(f"uprobe:{program}:main+1")
    for _, why in probe.refused:
        assert errno.errorcode[errno.EINVAL] in why.detail or "ENOTSUP" in why.detail or "EOPNOTSUPP" in why.detail


def test_addresses_of_a_program_lead_to_its_memory_alone(session):
    """Whatever it is passed: of the kernel nothing is read for it."""
    seen, libc = Count("seen", by=("text",)), ctypes.CDLL(None)
    path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line)

    @session.entry(f"uprobe:{path}:open")
    def entered(ctx, text: anyprobe.u64):
        seen.add(key=(anyprobe.cstr(text, 16),))

    assert not session.refused
    for address in (b"/of/a/program", ctypes.c_void_p(symbols.running().data("linux_banner"))):
        assert libc.open(address, 0) == -1
    found = session.snapshot()
    texts = {key[0] for key in found.aggregation("seen").entries}
    assert "/of/a/program" in texts
    assert not any(each.startswith("Linux") for each in texts)
    assert found.missing["fault"] >= 1


@pytest.mark.thorough
def test_handler_with_parameters_by_position(session, program):
    numbers, results = Hist("numbers"), Hist("results")

    @session.entry(f"uprobe:{program}:work")
    def entered(ctx, number: anyprobe.i32, more: anyprobe.i64):
        if more == 1000:
            numbers.add(number)

    @session.ret(f"uprobe:{program}:work", retval=anyprobe.i64)
    def left(ctx):
        results.add(ctx.retval)

    total, _ = run(program)
    snapshot = session.snapshot()
    seen, returned = (snapshot.aggregation(name).entries[()] for name in ("numbers", "results"))
    assert (seen.count, seen.sum) == (COUNT, sum(range(COUNT)))
    assert (returned.count, returned.sum) == (COUNT, total)


def test_arguments_of_a_marker(session, program):
    numbers, squares, others = Sum("numbers"), Sum("squares"), Count("others", by=("constant", "more"))

    @session.entry(f"usdt:{program}:everywhere:told")
    def passed(ctx, arg0, arg1, arg2, arg3):
        numbers.add(arg0)
        squares.add(arg1)
        others.add(key=(arg2, arg3 > COUNT))

    assert not session.refused
    run(program)
    snapshot = session.snapshot()
    (site,) = snapshot.sites
    found = {name: snapshot.aggregation(name).entries for name in ("numbers", "squares", "others")}
    assert site.hits == COUNT
    assert found["numbers"][()].sum == -sum(range(COUNT))
    assert found["squares"][()].sum == sum(each * each for each in range(COUNT))
    assert {key: cell.count for key, cell in found["others"].items()} == {(-5, 0): COUNT}
    assert not snapshot.missing
    with pytest.raises(anyprobe.HandlerError, match="another one in each process"):

        @session.entry(f"usdt:{program}:everywhere:told")
        def addressed(ctx, arg4):
            pass


@pytest.mark.thorough
def test_virtual_markers_of_debians_python(session):
    (described,) = [each for each in known_descriptions()[0] if each.name == "python3.11"]
    path = checked(described).path
    if not path:
        pytest.skip("python3.11 is here in another build than the described one")
    functions = Count("functions", by=("funcname", "lineno"))

    @session.entry(f"usdt:{path}:python:function-entry")
    def entered(funcname, lineno):
        functions.add(key=(funcname, lineno))

    text = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(10)"
    subprocess.run([path, "-S", "-c", text], check=True)
    found = session.snapshot().aggregation("functions").entries
    assert {key: cell.count for key, cell in found.items() if key[0] == "fib"} == {("fib", 1): 177}


@pytest.mark.thorough
def test_arguments_of_a_marker_on_the_command_line(program, capsys):
    with subprocess.Popen(["sh", "-c", f"while :; do {program} 3; done"], stdout=subprocess.DEVNULL) as process:
        status = main(["trace", f"usdt:{program}:everywhere:told", "-c", "6", "--json", "--for", "100"])
        process.kill()
    assert status == 0
    given = [json.loads(line)["args"] for line in capsys.readouterr().out.splitlines()]
    assert len(given) == 6
    assert all(each.keys() == {f"arg{at}" for at in range(5)} for each in given)
    told = {(each["arg0"], each["arg1"], each["arg2"], each["arg3"]) for each in given}
    assert told == {(0, 0, -5, 1), (-1, 1, -5, 2), (-2, 4, -5, 3)}


def test_library_by_name(session):
    session.count("uprobe:libc:getppid")
    assert os.getppid()
    (site,) = session.snapshot().sites
    assert site.hits + site.nmissed >= 1
    assert "libc" in site.module
