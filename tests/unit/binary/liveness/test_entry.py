import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.liveness.entry import entry_scratch
from support.case_files import read_cases
from support.module_under_test import Module, function


def parsed(case):
    """Split a case into functions in assembly and what is expected."""
    functions, name, body = [], "tested", []
    expected = SimpleNamespace(dead="", live="", flags="")
    for line in case.lines:
        key, _, value = line.partition(": ")
        if line.startswith("; "):
            functions.append(function(name, "\n".join(body)))
            name, body = line[2:], []
        elif key in ("dead", "live", "flags"):
            setattr(expected, key, value)
        else:
            body.append(line)
    return [*functions, function(name, "\n".join(body))], expected


CASES = read_cases("liveness.case")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_entry(build, case):
    functions, expected = parsed(case)
    module = Module.assembled(build, *functions, flags=["-Wl,-Bsymbolic"])
    scratch = entry_scratch(module.map, module["tested"])
    assert set(scratch.dead) >= set(expected.dead.split())
    assert not set(scratch.dead) & set(expected.live.split())
    assert scratch.flags_dead is (expected.flags == "dead")


@pytest.mark.parametrize(
    ("after_call", "dead"), [("jc 1f\n ret\n1: nop", False), ("test eax, eax", True), ("pushf\n pop rax", False)]
)
def test_in_go_flags_are_dead_behind_calls_unless_a_caller_is_seen_to_read_them(build, after_call, dead):
    functions = function("tested", "mov [rdi], rsi\n ret"), function("caller", f"call tested\n {after_call}\n ret")
    module = Module.assembled(build, *functions, flags=["-Wl,-Bsymbolic"])
    assert not entry_scratch(module.map, module["tested"]).flags_dead
    go = CodeMap(replace(module.map.text, is_go=True))
    assert entry_scratch(go, go.function_at(module["tested"].start)).flags_dead is dead


def test_in_go_too_flags_are_live_where_a_dead_register_can_hold_them(build):
    module = Module.assembled(build, function("tested", "mov eax, edi\n ret"))
    go = CodeMap(replace(module.map.text, is_go=True))
    scratch = entry_scratch(go, go.function_at(module["tested"].start))
    assert scratch.dead == ("rax",)
    assert not scratch.flags_dead


def test_entries_of_libc_are_analysed_quickly_and_usually_have_room(build):
    module = Module("/lib/x86_64-linux-gnu/libc.so.6")
    functions = [module.map.function_at(int(start)) for start in module.text.function_starts]
    codes = [code for code in functions if hasattr(code, "insns")]
    started = time.process_time()
    scratches = [entry_scratch(module.map, code) for code in codes]
    assert time.process_time() - started < 4  # the aim is 0.4 s
    assert sum(scratch.flags_dead for scratch in scratches) > 0.85 * len(codes)
    assert sum(bool(scratch.dead) for scratch in scratches) > 0.8 * len(codes)
