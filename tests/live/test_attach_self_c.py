"""Handlers in C in a program that probes itself."""

import ctypes

import pytest

import anyprobe
from anyprobe import CSource, HandlerError

pytestmark = pytest.mark.live
CALLS_OTHERS = 'int puts(const char *); int handler(struct anyprobe_ctx *c) { return puts("x"); }'


def test_its_state_is_read_here_and_stays_readable():
    libc = ctypes.CDLL(None)
    libc.labs.restype, libc.labs.argtypes = ctypes.c_long, [ctypes.c_long]
    source = CSource(
        """
        int handler(struct anyprobe_ctx *ctx) {
            unsigned long *words = ctx->state;
            anyprobe_add(&words[0], 1);
            anyprobe_add(&words[1], (long)ctx->rdi);
            return 0;
        }
        """,
        state=16,
    )
    with anyprobe.attach_self() as session:
        session.entry("libc:labs", handler=source)
        (probe,) = session.probes_of(source)
        for n in range(100):
            assert libc.labs(-n) == n
        assert source.words() == [100, (1 << 64) - 4950]
        session.remove(probe)
        libc.labs(-1)
        with pytest.raises(HandlerError, match="needs puts"):
            session.entry("libc:labs", handler=CSource(CALLS_OTHERS))
        (site,) = session.snapshot().sites
        assert (site.hits, site.armed) == (100, False)
    assert source.words() == [100, (1 << 64) - 4950]
