"""Acceptance: all registers, flags, x87, MXCSR, vector and mask state and the red zone survive probes.

Every round of the program has another combination of the flags, so no test runs fewer than ``COMBINATIONS``.
"""

import subprocess

import pytest

import anyprobe
from anyprobe.isa.decode import decode_range
from support.results import hits, refusals, sites_of
from support.situations import REGISTERS

COMBINATIONS = 128
"""Of CF, PF, AF, ZF, SF, DF and OF."""


OPTIONS = {"by itself": (), "by a library": (), "with atomic counters": ("-DCLONES",)}
"""How the functions are called or counted; a program that may call ``clone`` is not timed."""


@pytest.fixture(params=list(OPTIONS))
def started(request, run_target, compiled):
    """Return the program, whose functions are called through a pointer, by itself or by a library."""
    if request.param != "by a library":
        return run_target(REGISTERS.source, options=OPTIONS[request.param])
    library = compiled(REGISTERS.source, "-shared", "-fPIC", "-DCALLER")
    return run_target(REGISTERS.source, str(library))


def functions_of(target):
    """Return the functions that this processor can run, as the program's counts name them."""
    return [f for f in REGISTERS.functions if f in target.go(1).calls]


@pytest.mark.parametrize(
    ("started", "mode"),
    [
        (how, mode)
        for how in OPTIONS
        for mode in ("entry", "return", "both", "time")
        if not (OPTIONS[how] and mode == "time")
    ],
    indirect=["started"],
)
def test_state_is_equal(started, mode):
    """The program compares the whole state behind each probed function with that behind an unprobed copy."""
    target = started
    functions = functions_of(target)
    calls, tails = dict(target.counts.calls), dict(target.counts.tails)
    specs = [f"a.out:{f}" for f in functions]
    with anyprobe.attach(target.pid) as session:
        if mode == "time":
            session.time(*specs)
        else:
            session.count(*(specs if mode != "return" else ()), *(f"{s}%return" for s in specs if mode != "entry"))
        assert refusals(session.refused) == {}
        counts = target.go(max(REGISTERS.rounds, COMBINATIONS))
        snapshot = session.snapshot()
        called = {f: counts.calls[f] - calls[f] for f in functions}
        if mode in ("entry", "both"):
            assert {f: hits(snapshot, f) for f in functions} == called
        if mode in ("return", "both"):
            left = {f: counts.tails[f] - tails[f] for f in functions}
            exits = {f: sites_of(snapshot, f, "return") for f in functions}
            assert {f: sum(s.hits for s in exits[f] if s.exit_kind == "tail") for f in functions} == left
            assert {f: sum(s.hits for s in exits[f]) for f in functions} == called
    target.go(10)
    target.finish()


@pytest.mark.parametrize("strategy", ["jump", "punned", "trap"])
def test_state_is_equal_by_demanded_strategy(run_target, strategy):
    """The same with one strategy demanded; sites that cannot have it are refused and the rest holds."""
    target = run_target(REGISTERS.source)
    with anyprobe.attach(target.pid, strategy=strategy) as session:
        session.count(*(f"a.out:{f}" for f in REGISTERS.functions), *(f"a.out:{f}%return" for f in REGISTERS.functions))
        target.go(REGISTERS.rounds)
    target.finish()


def boundaries(program, function):
    """Return the offsets of a function's instructions."""
    listing = subprocess.run(["nm", "-S", str(program)], capture_output=True, text=True, check=True).stdout
    (line,) = [line.split() for line in listing.splitlines() if line.endswith(f" {function}")]
    start, size = int(line[0], 16), int(line[1], 16)
    with open(program, "rb") as file:  # the text of these programs lies in the file where it lies in memory
        file.seek(start)
        return [insn.address for insn in decode_range(file.read(size), 0)]


def test_state_is_equal_at_every_instruction(started):
    """One instruction of each function at a time, the first ones, the second ones, and so on; then all at once."""
    target = started
    functions = functions_of(target)
    offsets = {f: boundaries(f"/proc/{target.pid}/exe", f) for f in functions}
    at = {(f, o): f"a.out:{f}+{o:#x}" for f in functions for o in offsets[f]}
    armed = set()
    with anyprobe.attach(target.pid) as session:
        for number in range(max(map(len, offsets.values()))):
            probes = session.count(*(at[f, offsets[f][number]] for f in functions if number < len(offsets[f])))
            armed |= {probe.spec for probe in probes if probe.armed}
            target.go(COMBINATIONS)
            session.remove(*probes)
        assert len(armed) > 0.8 * len(at)
        session.count(*at.values())
        target.go(COMBINATIONS)
    target.go(10)
    target.finish()
