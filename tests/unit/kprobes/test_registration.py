"""The kernel's functions and structures on a target that is memory and an emulator, from registration to removal."""

import errno

import pytest

from anyprobe import Count, Sum, emit
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    disable_kprobe,
    enable_kprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    regs_return_value,
    unregister_kprobe,
    unregister_kretprobe,
)
from support.driver import MissingTool
from support.simulated.compiled import CompiledProgram

SOURCE = """
__attribute__((noinline)) long twice(long n) { return n + n; }
__attribute__((noinline)) long sum(long n) { long s = 0; for (long i = 1; i <= n; i++) s += twice(i); return s; }
__attribute__((noinline)) long depth(long n) { return n ? 1 + depth(n - 1) + 0 * twice(n) : 0; }
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        return CompiledProgram(SOURCE)
    except MissingTool as missing:
        pytest.skip(f"{missing} is not installed")


@pytest.fixture
def session(request, program):
    target = program.target
    before, text = target.mappings(), target.mem.read(program["twice"], 512)
    with program.session(**getattr(request, "param", {})) as session:
        yield session
    assert target.mappings() == before
    assert target.mem.read(program["twice"], 512) == text
    assert not target.files


def total(aggregation):
    """Return count and sum of an aggregation without keys."""
    result = aggregation.result()
    return result.count, result.sum


def test_a_pre_handler_sees_the_registers_as_they_were(program, session):
    sizes = Sum("sizes")

    def pre(p, regs):
        sizes.add(regs.di)
        return 0

    kp = Kprobe(symbol_name="twice", pre_handler=pre)
    assert register_kprobe(kp) == 0
    assert kp.addr == program["twice"]
    assert program.call("sum", 4) == 20
    assert (kp.hits, kp.nmissed) == (4, 0)
    assert total(sizes) == (4, 10)
    unregister_kprobe(kp)
    assert kp.addr is None
    assert program.call("sum", 4) == 20
    assert total(sizes) == (4, 10)


@pytest.mark.parametrize("session", [{"unsafe": True}], indirect=True)
def test_what_a_pre_handler_changes_the_program_goes_on_with(program, session):
    def pre(p, regs):
        regs.di = regs.di + 100
        return 0

    kp = Kprobe(symbol_name="twice", pre_handler=pre)
    assert register_kprobe(kp) == 0, kp.error
    assert program.call("twice", 1) == 202
    assert disable_kprobe(kp) == 0
    assert program.call("twice", 1) == 2
    assert enable_kprobe(kp) == 0
    assert program.call("twice", 1) == 202


def test_a_post_handler_runs_after_the_instruction(program, session):
    start = program["twice"]

    def pre(p, regs):
        emit("seen", when=0, ip=regs.ip)
        return 0

    def post(p, regs, flags):
        emit("seen", when=1, ip=regs.ip)

    kp = Kprobe(symbol_name="twice", pre_handler=pre, post_handler=post)
    assert register_kprobe(kp) == 0, kp.error
    program.call("sum", 3)
    rows = session.records(final=True)["seen"]
    assert rows["when"].tolist() == [0, 1] * 3
    first = session.engine.modules[0].code.function_at(start - program.bias).insns[0]
    assert set(rows["ip"].tolist()) == {start, start + first.length}


def test_a_kretprobe_sees_the_value_and_its_own_data_and_the_caller(program, session):
    doubled, addresses = Count("doubled"), Count("addresses", by=("address",))

    def entry(ri, regs):
        ri.data.size = regs.di
        return 0

    def handler(ri, regs):
        if regs_return_value(regs) == 2 * ri.data.size:
            doubled.add()
        addresses[ri.ret_addr].add()

    rp = Kretprobe(Kprobe(symbol_name="twice"), handler, entry)
    assert register_kretprobe(rp) == 0, rp.kp.error
    assert program.call("sum", 5) == 30
    assert doubled.result().count == 5
    ((caller,), cell) = next(iter(addresses.result().entries.items()))
    assert cell.count == 5
    assert program["sum"] < caller < program["sum"] + 64
    unregister_kretprobe(rp)
    assert program.call("sum", 5) == 30
    assert doubled.result().count == 5


def test_returns_of_calls_within_one_another(program, session):
    values = Sum("values")

    def handler(ri, regs):
        values.add(regs_return_value(regs))

    rp = Kretprobe(Kprobe(symbol_name="depth"), handler)
    assert register_kretprobe(rp) == 0, rp.kp.error
    assert program.call("depth", 9) == 9
    assert (total(values), rp.nmissed) == ((10, 45), 0)


def test_more_calls_at_once_than_instances_are_missed_and_said_to_be(program, session):
    returns = Count("returns")

    def handler(ri, regs):
        returns.add()

    rp = Kretprobe(Kprobe(symbol_name="depth"), handler, maxactive=3)
    assert register_kretprobe(rp) == 0, rp.kp.error
    assert program.call("depth", 9) == 9
    assert (returns.result().count, rp.nmissed) == (3, 7)


def test_a_jprobe_has_the_function_s_arguments(program, session):
    seen = Sum("seen")

    def look(n):
        seen.add(n)

    jp = Jprobe(Kprobe(symbol_name="twice"), look)
    assert register_jprobe(jp) == 0, jp.kp.error
    assert program.call("sum", 3) == 12
    assert total(seen) == (3, 6)


def test_several_at_one_address_run_in_the_order_of_their_registration(program, session):
    def first(p, regs):
        emit("ran", which=1)

    def second(p, regs):
        emit("ran", which=2)

    for handler in (second, first, second):
        assert register_kprobe(Kprobe(symbol_name="twice", pre_handler=handler)) == 0
    program.call("sum", 2)
    assert session.records(final=True)["ran"]["which"].tolist() == [2, 1, 2] * 2


def test_all_or_none(program, session):
    good, bad = Kprobe(symbol_name="twice"), Kprobe(symbol_name="thrice")
    assert register_kprobes([good, bad]) == -errno.ENOENT
    assert (good.addr, bad.addr) == (None, None)
    assert not session.splicing.upkeep.is_installed
    assert register_kprobe(good) == 0
    assert register_kprobe(good) == -errno.EINVAL
    assert register_kprobe(Kprobe(symbol_name="sum", offset=1 << 12)) < 0
