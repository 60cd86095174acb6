"""Probes at offsets: each boundary of a function in turn, exact counts; between boundaries nothing but refusals."""

import re
import subprocess

import numpy as np
import pytest

import anyprobe
from anyprobe.isa.decode import Flow
from support.driver import wait_until, waits_for_input
from support.results import refusals

FUNCTIONS = {
    "work": "counts.c",
    "to_third": "loops.c",
    "passer": "exceptions.cpp",
    "jne_long": "tails.c",
    "flags_adc": "machine_state.c",
}


def boundaries(program, function):
    """Return offset and text of each instruction, as objdump sees them."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", str(program)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = [(int(at, 16), text) for at, text in re.findall(r"^\s+([0-9a-f]+):\s+(.*)$", listing, re.MULTILINE)]
    start = found[0][0]
    return {at - start: text for at, text in found}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_offset(run_target, function):
    """Offsets 0 to the end: accepted only at boundaries, and every accepted one runs without harm."""
    target = run_target(FUNCTIONS[function])
    program = f"/proc/{target.pid}/exe"
    wanted = boundaries(program, function)
    target.go(1)
    with anyprobe.attach(target.pid) as session:
        for offset in range(max(wanted) + 1):
            try:
                probes = session.count(f"a.out:{function}+{offset:#x}")
            except anyprobe.UsageError:
                assert offset not in wanted, f"+{offset:#x} {wanted[offset]} is a boundary"
                continue
            if offset not in wanted:
                near = [max(at for at in wanted if at < offset), *[at for at in sorted(wanted) if at > offset][:1]]
                nearest = "nearest: " + ", ".join(f"+{at:#x}" for at in near)
                ((_, why),) = probes[0].refused
                assert why.detail.endswith(nearest)
                with pytest.raises(anyprobe.SiteRefused, match=re.escape(nearest)):
                    session.explain(f"a.out:{function}+{offset:#x}")
                (listed,) = session.list(f"a.out:{function}+{offset:#x}")
                assert listed.strategy is None
                assert listed.refusal == why
                continue
            if not probes[0].armed:
                assert probes[0].places[0].hook.refusal
                continue
            assert offset in wanted, f"+{offset:#x} lies inside an instruction"
            target.go(3)
            session.remove(*probes)
    target.go(3)
    target.finish()


def test_all_offsets_at_once(run_target):
    """Every instruction of a straight function together: each is hit once per call."""
    target = run_target("counts.c")
    offsets = boundaries(f"/proc/{target.pid}/exe", "work")
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:work+{offset:#x}" for offset in offsets))
        counts = target.go(1000)
        snapshot = session.snapshot()
        assert {s.offset: s.hits for s in snapshot.sites} == {s.offset: counts.calls["work"] for s in snapshot.sites}
        print(f"{len(snapshot.sites)} of {len(offsets)} instructions probed, refused {refusals(session.refused)}")
        assert snapshot.sites
    target.finish()


def test_entry_and_offset_zero_both_count(run_target):
    """Two probes at one site share it."""
    target = run_target("counts.c", "2")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work", "a.out:work+0x0", "a.out:work:entry")
        counts = target.go(500)
        hits = [site.hits for site in session.snapshot().sites]
        assert len(hits) >= 2
        assert set(hits) == {counts.calls["work"]}
    target.finish()


def test_consumers_come_and_go(run_target):
    """All orders of adding and removing entry, return and timing of one function: whoever is there counts exactly."""
    target = run_target("counts.c", "2")
    target.go(1)
    kinds = {
        "entry": lambda session: session.count("a.out:work"),
        "return": lambda session: session.count("a.out:work%return"),
        "time": lambda session: session.time("a.out:work"),
    }
    with anyprobe.attach(target.pid) as session:
        for before in range(8):
            for after in range(8):
                names = list(kinds)
                held = {n: kinds[n](session) for i, n in enumerate(names) if before >> i & 1}
                target.go(20)
                for i, name in enumerate(names):
                    if name in held and not after >> i & 1:
                        session.remove(*held.pop(name))
                    elif name not in held and after >> i & 1:
                        held[name] = kinds[name](session)
                target.go(20)
                session.remove(*(probe for probes in held.values() for probe in probes))
    target.go(20)
    target.finish()


@pytest.mark.parametrize(
    ("spec", "repeated"),
    [("to_second:block", (0, 1, 0)), ("to_third:insn", (0, 0, 1, 1, 1, 0, 0)), ("to_third:block", (0, 1, 0))],
)
def test_each_instruction_and_each_block_of_loops(run_target, spec, repeated):
    """Hits by construction: those in the loop's body by iterations, the others by calls; none is left out silently."""
    target = run_target("loops.c")
    function, _, kind = spec.partition(":")
    offsets = sorted(boundaries(f"/proc/{target.pid}/exe", function))
    with anyprobe.attach(target.pid) as session:
        session.count(f"a.out:{spec}")
        calls = target.go(200).calls[function]
        sites = session.snapshot().sites
        assert not session.refused
        assert len(sites) == len(repeated)
        assert {site.kind for site in sites} == {kind}
        iterations = sum(1 + n % 50 for n in range(1, 201))
        if kind == "insn":
            expected = dict(zip(offsets, repeated, strict=True))
            assert {s.offset: s.hits for s in sites} == {
                s.offset: iterations if expected[s.offset] else calls for s in sites
            }
        else:
            assert sorted(s.hits for s in sites if s.hits != iterations) == [calls] * sum(
                s.hits != iterations for s in sites
            )
    target.finish()


def test_each_call(run_target):
    """The calls that a function makes, counted where they are made."""
    target = run_target("loops.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:one_round:call", "a.out:to_first", "a.out:gcd", "a.out:scan")
        target.go(300)
        sites = session.snapshot().sites
        made = {site.hits for site in sites if site.kind == "call"}
        assert 300 in made
        assert {site.hits for site in sites if site.kind == "entry"} == {300}
    target.finish()


WORK = """
import json, sys
document = {"a": list(range(20)), "b": {"x": "y" * 30, "z": [1.5, None, "e"]}}
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        json.loads(json.dumps(document))
        sorted(document["a"], key=lambda x: -x)
        "%s %d" % ("".join(str(i) for i in document["a"]), 3)
        dict.fromkeys("abcabc", 1).setdefault("d", 12345678901234567890 * 98765432109876543210)
    print("done", flush=True)
"""
BUSY = (
    *("PyDict_SetItem", "PyObject_GetAttr", "PyUnicode_Format", "PyObject_Malloc", "PyList_Append", "PyTuple_New"),
    *("PyLong_FromString", "PyUnicode_InternInPlace", "PyObject_RichCompare", "PyUnicode_Join", "PyObject_GetIter"),
)


def lines_of(code):
    """Return the straight lines of a function: only the first instruction is entered, only the last leaves."""
    heads = {*code.leaders, *code.after_calls, *(insn.end for insn in code.special)}
    lines = []
    for insn in code.insns:
        if not lines or insn.address in heads:
            lines.append([])
        lines[-1].append(insn)
    return lines


def edges_of(code_map, code, lines):
    """Return (from, to) of control flow between lines by number; -1 is elsewhere, or a jump by a stored pointer."""
    number = {line[0].address: n for n, line in enumerate(lines)}
    entered = {
        head
        for head in number
        if any(not code.start <= source < code.end for source in code_map.entries.sources_of(head))
    }
    entered.update(
        number.keys() & code_map.entries.static_entries(code.start, code.end)
    )  # some symbols name no instruction
    edges = {(-1, number[head]) for head in entered | {code.start}}
    for n, last in enumerate(line[-1] for line in lines):
        table = code.table_of(last.address)
        ways = [*(table.targets if table else ()), *([last.end] if last.falls_through else ())]
        ways += [last.target] if last.flow in (Flow.JUMP, Flow.JCC) else []
        edges |= {(n, number.get(way, -1)) for way in ways or [None]}
    return sorted(edges)


def test_every_instruction_of_real_functions():
    """Counts agree: all of a straight line are equal, and what comes into each line is what goes out of it."""
    command = ["/usr/bin/python3", "-c", WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as python:
        try:
            assert python.stdout.readline() == "ready\n"
            with anyprobe.attach(python.pid) as session:
                session.count(*(f"a.out:{name}:insn" for name in BUSY))
                python.stdin.write("30\n")
                python.stdin.flush()
                assert python.stdout.readline() == "done\n"
                wait_until(lambda: waits_for_input(python.pid), "it waits for more")
                sites = session.snapshot().sites
                for name in BUSY:
                    hits = {site.offset: site.hits for site in sites if site.function == name}
                    (site,) = session.resolve(f"a.out:{name}")[0]
                    code_map = session.module(site.object).code
                    code = code_map.function_at(site.function.start)
                    agree(name, code_map, code, {code.start + offset: count for offset, count in hits.items()})
                assert sum(site.hits > 0 for site in sites) > 300
            python.stdin.write("2\n")
            python.stdin.flush()
            assert python.stdout.readline() == "done\n"
            python.stdin.close()
            assert python.wait(180) == 0
        finally:
            python.kill()


def agree(name, code_map, code, hits):
    """Assert that the counts of one function's instructions are possible together."""
    lines = lines_of(code)
    edges = edges_of(code_map, code, lines)
    sums, totals = [], []
    for n, line in enumerate(lines):
        counts = {hits[insn.address] for insn in line if insn.address in hits}
        assert len(counts) <= 1, f"{name}: {[(hex(insn.address), hits.get(insn.address)) for insn in line]}"
        for total in counts:
            for end in (0, 1):
                sums.append([float(edge[end] == n) for edge in edges])
                totals.append(total)
    found = np.linalg.lstsq(np.array(sums), np.array(totals, dtype=float), rcond=None)[0]
    assert np.abs(np.array(sums) @ found - totals).max(initial=0) < 0.3, f"{name}: more goes in than out, or less"
