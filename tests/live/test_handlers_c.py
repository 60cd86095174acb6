"""Handlers in C: compiled, checked, placed, and what they keep."""

import subprocess

import pytest

import anyprobe
from anyprobe import CObject, CSource, HandlerError
from anyprobe.handlers.csource import HEADER
from support.driver import build, started

pytestmark = pytest.mark.live

COUNTING = """
int handler(struct anyprobe_ctx *ctx) {
    unsigned long *words = ctx->state;
    anyprobe_add(&words[0], 1);
    anyprobe_add(&words[1], ctx->rdi);
    if (ctx->tid == ctx->pid) anyprobe_add(&words[2], 1);
    return 0;
}
"""
NAMING = """
static int is(const char *text, const char *wanted) {
    while (*text && *text == *wanted) text++, wanted++;
    return *text == *wanted;
}
int handler(struct anyprobe_ctx *ctx) {
    unsigned long *words = ctx->state, later = ctx->now;
    char name[16] = {0};
    long length = anyprobe_text(ctx, name, (const char *)ctx->rdi, 15);
    anyprobe_add(&words[0], length < 0);
    anyprobe_add(&words[1], length > 0 && is(name, "hello"));
    anyprobe_add(&words[2], ctx->now - later + (ctx->rsi == 3));
    return 1;
}
"""
RETURNING = """
#include <stddef.h>
#define RESULT rax
int handler(struct anyprobe_ctx *ctx) { anyprobe_add(ctx->state, ctx->RESULT); return 0; }
"""
STACK = "int handler(struct anyprobe_ctx *ctx) { anyprobe_add(ctx->state, (char)anyprobe_on_stack(ctx, 9)); return 0; }"


@pytest.fixture
def target():
    with started(build("handled.c", "-O2", "-pthread")) as running:
        yield running


def test_c_handlers_count_from_several_threads(target):
    counting, naming, returning, stack = (CSource(text, state=24) for text in (COUNTING, NAMING, RETURNING, STACK))
    with anyprobe.attach(target.pid) as session:
        session.entry("a.out:sized", handler=counting)
        session.entry("a.out:named", handler=naming)
        session.ret("a.out:sized", handler=returning)
        session.entry("a.out:ten", handler=stack)
        target.go(3)
        assert session.probes_of(counting)
        assert [site.hits for site in session.snapshot().sites][:2] == [12_000, 9]
    target.go(1)
    target.finish()
    assert counting.words() == [12_000, 3 * 4 * 499_500, 0]
    assert naming.words() == [6, 3, 3]
    assert returning.words()[0] == 2 * 3 * 4 * 499_500
    assert stack.words()[0] == 30


def test_an_object_file_is_placed(target, tmp_path):
    source, made = tmp_path / "counting.c", tmp_path / "counting.o"
    # the handler stands behind another function, so code does not begin with it
    source.write_text(f'#include "{HEADER}"\nint other(int n) {{ return n * n; }}\n{COUNTING}')
    flags = [each for each in CObject.FLAGS if each != "-ffunction-sections"]
    subprocess.run(["gcc", *flags, "-fno-toplevel-reorder", "-c", str(source), "-o", str(made)], check=True)
    handler = CObject(made, state=24)
    with anyprobe.attach(target.pid) as session:
        session.entry("a.out:sized", handler=handler)
        target.go(1)
        target.finish()
    assert handler.words() == [4000, 4 * 499_500, 0]


REFUSED = {
    "int handler(struct anyprobe_ctx *ctx) { return rand() + puts(0); }": "needs puts, rand, and a handler can call",
    "int handler(struct anyprobe_ctx *ctx) { return ctx->nothing; }": "<C handler>:1:51: .* no member named 'nothing'",
    "static int n; int handler(struct anyprobe_ctx *ctx) { return n++; }": r"variables that it can change \(.bss\)",
    "static int f(int n) { return n < 2 ? n : f(n - 1) * f(n - 2) + 1; }"
    "int handler(struct anyprobe_ctx *ctx) { return f(ctx->rdi); }": "functions that were not put into one",
    "int other;": "has no function handler",
    'static const char *t[] = {"a", "b"}; int handler(struct anyprobe_ctx *ctx) { return t[ctx->rdi & 1][0]; }':
        "depends on the address at which it is placed",
    "int handler(struct anyprobe_ctx *ctx) { char b[ctx->rdi]; b[0] = 1; return ((volatile char *)b)[0]; }":
        "a frame of unknown size",
    "int handler(struct anyprobe_ctx *ctx) { volatile char b[3000]; b[0] = 1; return b[ctx->rdi]; }":
        "more than the 2048 it may",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_placed_is_refused(target, text):
    import re

    with anyprobe.attach(target.pid) as session:
        with pytest.raises(HandlerError) as caught:
            session.entry("a.out:sized", handler=CSource(text))
        assert re.search(REFUSED[text], str(caught.value)), str(caught.value)
        assert not session.probes


def test_objects_with_vector_code_or_none_at_all_are_refused(target, tmp_path):
    source, made = tmp_path / "vectors.c", tmp_path / "vectors.o"
    source.write_text(
        f'#include "{HEADER}"\nint handler(struct anyprobe_ctx *c) {{ return (double)c->rdi * 1.5 > 4; }}'
    )
    flags = [each for each in CObject.FLAGS if each != "-mgeneral-regs-only"]
    subprocess.run(["gcc", *flags, "-c", str(source), "-o", str(made)], check=True)
    with anyprobe.attach(target.pid) as session:
        with pytest.raises(HandlerError, match="uses vector registers"):
            session.entry("a.out:sized", handler=CObject(made))
        made.write_text("nothing")
        with pytest.raises(HandlerError, match="no object file of x86-64"):
            session.entry("a.out:sized", handler=CObject(made))
        with pytest.raises(HandlerError, match="No such file"):
            session.entry("a.out:sized", handler=CObject(tmp_path / "missing.o"))
