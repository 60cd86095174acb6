"""Displaced copies of everything: every form in this machine's files, every opcode there is, and random bytes."""

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.displaced import encodings, forms
from support.displaced.drawn import instructions
from support.displaced.oracle import WORLDS, judge
from support.displaced.verdicts import differences, refused_without_reason, report

SEED = time.time_ns() & 0xFFFF


def check(name, codes, world, states, oracle="support.displaced.oracle"):
    verdicts = judge(codes, world, states, SEED, oracle=oracle)
    for line in report(f"{name}, {world} world, seed {SEED}", verdicts):
        print(line)
    assert differences(verdicts) == []
    assert refused_without_reason(verdicts) == {}


@pytest.fixture(scope="module")
def forms_in_files():
    """Every form in every program and library, with one to four instances by shape and prefix."""
    found = forms.Forms()
    files = forms.elf_files()
    for path in files:
        found.scan_file(path)
    print(f"\n{len(files)} files, {found.instructions} instructions, {found.undecodable} undecodable, "
          f"{len(found.instances)} forms of {len({key[0] for key in found.instances})} codes")  # fmt: skip
    return found.codes()


@pytest.fixture(scope="module")
def every_opcode():
    found = forms.Forms()
    encodings.scan_every_opcode(found)
    return found.codes()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", WORLDS)
def test_every_form_in_files(forms_in_files, world):
    check("forms in files", forms_in_files, world, states=16)


@pytest.mark.parametrize("world", WORLDS)
def test_every_opcode(every_opcode, world):
    check("every opcode", every_opcode, world, states=4)


@pytest.mark.parametrize("kind", [2, 4], ids=["call", "jmp"])
@pytest.mark.parametrize("world", WORLDS)
def test_every_indirect_branch(kind, world):
    check(f"ff /{kind}", sorted({code.hex() for code in encodings.indirect_branches(kind)}), world, states=4)


@pytest.mark.parametrize("world", WORLDS)
def test_direct_branches(world):
    codes = {code.hex() for code in encodings.direct_branches(random.Random(SEED))}
    check("direct branches", sorted(codes), world, states=16)


@pytest.mark.parametrize("world", WORLDS)
def test_random_bytes(world):
    found = forms.Forms()
    found.scan(random.Random(f"{SEED} {world}").randbytes(3_000_000))
    check("random bytes", found.codes(), world, states=4)


@pytest.mark.timeout(900)
@settings(max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(instructions(), min_size=200, max_size=200), st.integers(0, 1 << 32), st.sampled_from(sorted(WORLDS)))
def test_whatever_is_drawn(drawn, seed, world):
    verdicts = judge(sorted({raw.hex() for raw in drawn}), world, states=8, seed=seed)
    assert differences(verdicts) == []
    assert refused_without_reason(verdicts) == {}


@pytest.mark.timeout(900)
def test_effects_of_every_form_in_files(forms_in_files):
    check("effects of forms in files", forms_in_files, "low", 8, "support.displaced.influence")


@pytest.mark.timeout(900)
def test_effects_of_every_opcode(every_opcode):
    check("effects of every opcode", every_opcode, "low", 4, "support.displaced.influence")
