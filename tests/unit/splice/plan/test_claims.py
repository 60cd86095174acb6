"""Which bytes are spoken for: what a look at all of them at once says is what a look at each says."""

import contextlib
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.addressset import AddressSet
from anyprobe.core.refusal import Reason
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import decode_range
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import PlannedSplice, Pun, Strategy

BASE = 0x1000
some = st.sets(st.integers(BASE, BASE + 15), max_size=4)


def expected(claims, start, written, borrowed):
    for at in range(start, start + written):
        if at in claims.written:
            return Reason.OVERLAP, at
        if claims.borrowed.get(at, 0) > 0:
            return Reason.BORROWED_BYTES, at
        if at in claims.displaced or (at != start and at in claims.landings):
            return Reason.OVERLAP, at
    return next(
        ((Reason.OVERLAP, at) for at in range(start + written, start + written + borrowed) if at in claims.written),
        None,
    )


@given(some, some, some, some, some, st.integers(0, 5), st.integers(0, 4))
def test_the_first_byte_that_is_taken_is_named(written, borrowed, given_back, displaced, landings, size, behind):
    claims = Claims(AddressSet(written), displaced=AddressSet(displaced), landings=AddressSet(landings))
    claims.borrowed.update(borrowed | given_back)
    claims.borrowed.subtract(given_back)
    found = claims.conflict(BASE + 4, size, behind)
    assert (None if found is None else (found.reason, found.address)) == expected(claims, BASE + 4, size, behind)


@given(some, some)
def test_what_is_displaced_has_been_written_to_by_nobody(written, displaced):
    claims = Claims(AddressSet(written), displaced=AddressSet(displaced))
    insns = tuple(decode_range(b"\x90" * 9, BASE))
    found = claims.overwritten(PlannedSplice(Strategy.JUMP, BASE, insns, [], 5, BASE))
    taken = [at for at in range(BASE + 5, BASE + 9) if at in written or at in displaced]
    assert (None if found is None else found.address) == (taken[0] if taken else None)


def test_a_trial_takes_nothing_whatever_ends_it():
    claims, places = Claims(), Mock()
    host = PlannedSplice(Strategy.JUMP, BASE, tuple(decode_range(b"\x90" * 9, BASE)), [], 5, BASE)
    pun = PlannedSplice(
        Strategy.PUNNED,
        BASE + 16,
        tuple(decode_range(b"\x90", BASE + 16)),
        [],
        1,
        BASE + 16,
        4,
        Pun(0, 0, BASE + 0x100),
    )
    claims.claim(host)
    claims.claim(pun)
    with claims.trial() as before:
        assert before == claims
    short = PlannedSplice(
        Strategy.SHORT, BASE + 32, tuple(decode_range(b"\x90\x90", BASE + 32)), [], 2, BASE + 32,
        dead_springboard=BASE + 64, leans_on=(host,), pun=pun.pun,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt), claims.trial([host, pun]) as trial:
        trial.places = places
        assert trial.conflict(BASE + 17, 4, 0) is None
        trial.claim(short)
        assert host.hosts_until == BASE + 64 + JUMP_BYTES
        raise KeyboardInterrupt
    assert claims == before
    assert host.hosts_until == 0
    assert claims.conflict(BASE + 17, 4, 0).reason is Reason.BORROWED_BYTES
    places.give_back.assert_called_once_with(short)
