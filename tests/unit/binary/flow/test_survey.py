import pytest

from anyprobe.binary.flow import entry_points
from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.objects.padding import padding_length
from anyprobe.core.checkpoints import interruptible
from anyprobe.core.errors import Interrupted
from support.module_under_test import Module, function

ENOUGH = 100


def test_a_survey_keeps_what_one_by_one_would_be_kept(build):
    module = Module("/lib/x86_64-linux-gnu/libc.so.6")
    one_by_one, together = CodeMap(module.text), CodeMap(module.text)
    together.survey()
    low = int(module.text.function_starts[0])
    for start in range(low, low + 0x60000, 0x1000):
        assert together.entries.entered(start, start + 0x1000) == one_by_one.entries.entered(start, start + 0x1000)
    for start in module.text.function_starts[:400].tolist():
        code, surveyed = one_by_one.function_at(start), together.function_at(start)
        if isinstance(code, FunctionCode) and isinstance(surveyed, FunctionCode):
            assert surveyed.blocks == code.blocks
            assert surveyed.leaders == code.leaders
            assert surveyed.leaders == {
                start,
                *(address for address, _ in one_by_one.entries.enterable(start, code.end)),
            }


def test_lines_are_the_same_whether_all_entries_are_known_or_not(build):
    module = Module("/lib/x86_64-linux-gnu/libc.so.6")
    one_by_one, together = CodeMap(module.text), CodeMap(module.text)
    together.survey()
    for start in module.text.function_starts[:100].tolist():
        code, known = one_by_one.function_at(start), together.function_at(start)
        if isinstance(code, FunctionCode) and isinstance(known, FunctionCode):
            assert known.leaders
            for address in code.addresses:
                line = [insn.address for insn in code.lines.around(address, address - 32)]
                assert [insn.address for insn in known.lines.around(address, address - 32)] == line
            assert "leaders" not in vars(code)


def test_an_entry_that_is_added_ends_lines(build):
    module = Module.assembled(build, function("tested", "mov eax, 1\n mov ecx, 2\n mov edx, 3\n ret"))
    tested = module["tested"]
    assert tested.leaders == {tested.start}
    assert len(tested.lines.around(tested.start)) == 4
    module.map.add_entry(tested.start + 5)
    assert tested.leaders == {tested.start, tested.start + 5}
    assert len(tested.lines.around(tested.start)) == 1


@pytest.mark.parametrize("surveyed", [False, True])
def test_bytes_that_only_look_like_a_branch_lead_nowhere(build, surveyed):
    # the immediate holds eb 02, which looks like a jump to the xor
    tested = function("tested", "mov eax, 0x02eb\n nop\n nop\n xor ecx, ecx\n ret")
    module = Module.assembled(build, tested, flags=["-Wl,-Bsymbolic"])
    if surveyed:
        module.map.survey()
    assert module.map.entries.entered(module["tested"].start + 1, module["tested"].end) == set()


def test_padding_is_measured_once_whatever_lies_behind_it(build, monkeypatch):
    """Not for each of the bytes that look like a branch in a table after it: there may be thousands."""
    measured = []

    def measure(content, *arguments, **named):
        measured.append(len(content))
        return padding_length(content, *arguments, **named)

    monkeypatch.setattr(entry_points, "padding_length", measure)
    table = ".rept 30\n .byte 0x66, 0x90\n .endr\n .rept 500\n .byte 0x06, 0xe8, 2, 0, 0, 0\n .endr\n"
    tested = [function(name, "mov eax, 1\n ret") for name in ("tested", "other")]
    module = Module.assembled(build, tested[0], table, tested[1])
    inside = range(module["tested"].end, module["other"].start)
    candidates = [source for _, source, _ in module.map.entries.references.into(inside.start, inside.stop)]
    assert len(candidates) > 400
    module.map.survey()
    assert len(measured) < 20
    after = inside.start + 60
    assert module.map.entries.in_padding(inside.start)
    assert module.map.entries.in_padding(after - 1)
    assert not module.map.entries.in_padding(after)
    module.map.add_entry(inside.start + 10)
    assert not module.map.entries.in_padding(after - 1)


def test_a_survey_asks_at_each_doubtful_candidate_whether_it_is_wanted(monkeypatch):
    """A compiler has hundreds of thousands of them."""
    decided: list[int] = []
    may_lead = entry_points.EntryPoints.may_lead

    def counting(entries, target, source, kind):
        decided.append(target)
        return may_lead(entries, target, source, kind)

    def check():
        if len(decided) >= ENOUGH:
            raise Interrupted("wanted no more")

    monkeypatch.setattr(entry_points.EntryPoints, "may_lead", counting)
    code_map = CodeMap(Module("/lib/x86_64-linux-gnu/libc.so.6").text)
    with interruptible(check), pytest.raises(Interrupted):
        code_map.survey()
    assert len(decided) == ENOUGH
