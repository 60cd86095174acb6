"""Decoded instructions of large modules are dropped and decoded again: what is found is the same."""

from dataclasses import replace

from anyprobe.binary.decoding import kept_lines, many_bodies
from anyprobe.binary.decoding.branches import Branches
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.binary.liveness import module

LIBRARY = "/lib64/ld-linux-x86-64.so.2"
FEW = 500


def surveyed():
    text = replace(Image.open(LIBRARY).text(), store=None)
    made = CodeMap(text)
    made.survey()
    live = module.solved(made)
    starts = text.function_starts.tolist()
    return made, live, [code for start in starts if isinstance(code := made.function_at(start), FunctionCode)]


def told(code):
    """Return what a function's instructions tell, and they themselves."""
    insns = [(insn.address, insn.raw, insn.flow, insn.target) for insn in code.insns]
    lists = [list(each) for each in (code.jumps, code.calls, code.turns, code.after_calls, code.ends, code.codes)]
    return code.start, code.end, insns, lists, code.blocks, code.broken, code.complete


def test_what_was_dropped_is_decoded_again(monkeypatch):
    _, live, codes = surveyed()
    expected = [told(code) for code in codes]
    monkeypatch.setattr(kept_lines, "MOST", FEW)
    monkeypatch.setattr(many_bodies, "_PORTION", FEW)
    made, again, others = surveyed()
    assert [told(code) for code in others] == expected
    assert all((mine == its).all() for mine, its in zip(live, again, strict=True))
    held = [len(code.__dict__["_line"]) for code in others if "_line" in code.__dict__]
    assert sum(held) <= FEW + max(held)
    assert len(held) < len(others) / 10
    assert made.kept_lines is not None


def test_those_of_small_modules_are_all_kept():
    _, _, codes = surveyed()
    assert all(len(code.iced) == len(code.addresses) for code in codes)
    kept = [code for code in codes if not code.has_gaps and "_line" in code.__dict__]
    assert len(kept) == len([code for code in codes if not code.has_gaps])


def test_branches_are_pairs():
    branches = Branches()
    pairs = [(0, 0x1000), (7, (1 << 64) - 1), (1 << 31, 0)]
    for pair in pairs:
        branches.add(*pair)
    assert list(branches) == pairs
    assert [branches[0], branches[-1], branches[1:]] == [pairs[0], pairs[-1], pairs[1:]]
    assert (len(branches), bool(branches), bool(Branches())) == (3, True, False)
    assert dict(branches) == dict(pairs)
