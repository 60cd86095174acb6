"""``ctx.data`` of calls whose entry has stored all of it, some, or nothing."""

import pytest

import anyprobe
from anyprobe import Count, Hist, i32, u64
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = r"""
#include <stdlib.h>
__attribute__((noinline, noclone)) int op(int kind, int depth) {
    __asm__ volatile("" :: "r"(kind) : "memory");
    return (depth > 0 ? op(kind + 1, depth - 1) : 0) + kind;
}
int main(void) {
    for (int i = 0; i < 300; i++) op(i % 3, i % 2);
    return 0;
}
"""
KINDS = [kind for i in range(300) for kind in ([i % 3, i % 3 + 1] if i % 2 else [i % 3])]
"""The parameter of each call, inner ones too."""


@pytest.mark.parametrize("how", ["in the handler", "by when"])
@pytest.mark.parametrize("returns", ["auto", "exits"])
def test_only_calls_whose_entry_has_stored_have_data(how, returns):
    kept, missing, values = Count("kept"), Count("missing"), Hist("values")
    program = build("call_data.c", "-O1", text=PROGRAM)
    with anyprobe.run([str(program)], returns=returns) as session:
        if how == "by when":

            @session.call("a.out:op", when=lambda kind: kind == 1)
            def call(ctx, kind: i32):
                ctx.data.kind = kind

        else:

            @session.call("a.out:op")
            def call(ctx, kind: i32):
                if kind == 1:
                    ctx.data.kind = kind

        @call.ret
        def ends(ctx):
            if ctx.data.kind is None:
                missing.add()
            else:
                kept.add()
                values.add(u64(ctx.data.kind))

        session.resume()
        session.wait()
    assert int(kept) == KINDS.count(1)
    assert int(missing) == len(KINDS) - KINDS.count(1)
    assert values.min == values.max == 1
