"""Handlers read memory that cannot be read, whatever the program does about faults, and it never notices."""

import subprocess

import pytest

import anyprobe
from anyprobe import Count, Sum, buf, cstr, ptr
from support.driver import build, started

pytestmark = pytest.mark.live
KINDS = 8
"""Pointers of every kind that the program passes, and one to its stack besides."""


def watch(session):
    """Place handlers that read all that the program passes; return what they found."""
    texts, lengths = Count("texts", by=("text",)), Sum("bytes")

    @session.entry("a.out:look")
    def on_look(text: ptr):
        found = cstr(text, 32)
        if found is not None:
            texts[found].add()

    @session.ret("a.out:look")
    def on_looked(ctx):
        found = buf(ptr(ctx.retval) - 1, 8)
        if found is not None:
            lengths.add(found[0])

    @session.entry("libc:sigaction", "libc:open64", "libc:close")
    def on_signal(ctx):
        found = cstr(ptr(ctx.regs.rdi), 16)
        if found is not None:
            lengths.add(len(found))

    return texts


def run(many, rounds):
    with started(build("readable.c"), str(many)) as target:
        alone = dict(target.go(1).calls)
        with anyprobe.attach(target.pid) as session:
            texts = watch(session)
            seen = dict(target.go(rounds).calls)
            made = {name: seen[name] - alone[name] for name in seen}
            assert made == {name: rounds * alone[name] for name in alone}
            faults = session.handling.misses()["fault"]
            # a fork child has looked, too, on its own account; one of vfork, twice, on the program's
            looks = (made["look"] - 2 * rounds) // (KINDS + 1) + rounds
            (site,) = (site for site in session.snapshot().sites if site.kind == "entry" and site.function == "look")
            assert (site.hits, site.nmissed) == (looks * (KINDS + 1) + 2 * rounds, 0)
            found = {key[0]: cell.count for key, cell in texts.result().entries.items()}
            stack = sum(count for text, count in found.items() if text.startswith("on the stack"))
            assert found["/nowhere"] == found["constant"] - rounds == stack == looks
            assert faults >= 6 * looks
        after = target.go(1).calls
        assert {name: after[name] - seen[name] for name in after} == alone
        target.finish()
        return faults


def test_bad_pointers_do_no_harm():
    assert run(100, 2) > 2000


def read_texts(session):
    """Place a handler that reads a text of the program, and one on the stack; return what it finds."""
    texts = Count("texts", by=("text",))

    @session.entry("a.out:look")
    def on_look(text: ptr):
        found = cstr(text, 8)
        if found is not None:
            texts[found].add()

    return texts


def found_in(texts):
    return {key[0]: cell.count for key, cell in texts.result().entries.items()}


@pytest.mark.parametrize(
    ("way", "options"),
    [("prctl", {}), ("seccomp", {}), ("syscall", {}), ("prctl", {"live": True}), ("seccomp", {"strategy": "trap"})],
    ids=["prctl", "seccomp", "syscall", "live", "trap"],
)
def test_a_program_that_begins_to_filter_is_asked_nothing_from_then_on(way, options):
    with started(build("filtering.c"), way) as target:
        with anyprobe.attach(target.pid, **options) as session:
            texts = read_texts(session)
            target.go(1)
            assert found_in(texts) == {"hello": 100, "here": 100}
            target.go(2)
            assert found_in(texts) == {"hello": 100, "here": 300}
            assert session.handling.misses()["fault"] == 200
            assert {site.function for site in session.snapshot().sites} == {"look"}
        target.go(1)
        with anyprobe.attach(target.pid) as session:
            texts = read_texts(session)
            target.go(1)
            assert found_in(texts) == {"here": 100}
        target.finish()


def test_a_program_that_is_started_may_filter_too(tmp_path):
    commands = tmp_path / "commands"
    commands.write_text("go 3\nend\n")
    with (
        commands.open() as stdin,
        anyprobe.run([str(build("filtering.c")), "seccomp"], stdin=stdin, stdout=subprocess.DEVNULL) as session,
    ):
        texts = read_texts(session)
        session.resume()
        assert session.wait(180) == 0
        assert found_in(texts) == {"hello": 100, "here": 300}


@pytest.mark.parametrize("way", ["prctl", "seccomp"])
def test_nor_does_it_wait_for_callbacks(way):
    seen = []
    with started(build("filtering.c"), way) as target:
        with anyprobe.attach(target.pid) as session:

            @session.callback("a.out:look", timeout=20)
            def on_look(hit):
                seen.append(hit.regs.rsi)

            target.go(1)
            assert len(seen) == 200
            target.go(1)
            assert len(seen) == 200
            assert session.snapshot().missing == {"no callback": 200}
        target.finish()
