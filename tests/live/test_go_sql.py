"""A Go program's use of database/sql: queries by their text, their results, and how long they took, waits included."""

import json

import pytest

import anyprobe
from anyprobe import Count, Max
from anyprobe.cli import main
from support.learning import copied
from support.results import counts, timing

pytestmark = pytest.mark.live

EXEC, QUERY, NEXT = (f"database/sql.(*{name}" for name in ("DB).ExecContext", "DB).QueryContext", "Rows).Next"))

SLEPT = 450_000
"""Nanoseconds, a little less than a query that succeeds sleeps for."""


@pytest.fixture(params=[(), ("-race",)], ids=["plain", "race detector"])
def target(request, run_target):
    return run_target("go_sql.go", options=request.param)


def test_queries_by_text_are_those_that_the_program_has_made(target):
    asked, failed, slowest = Count("asked"), Count("failed"), Max("slowest")
    before = copied(target.go(1))
    with anyprobe.attach(target.pid, call_tree=True) as session:
        session.time(f"a.out:{EXEC}", f"a.out:{QUERY}", f"a.out:{NEXT}")

        @session.call(f"a.out:{EXEC}")
        def on_exec(ctx, query, args):
            asked[query, len(args)].add()
            ctx.data.bad = query == "bad"
            ctx.data.begun = ctx.now

        @on_exec.ret
        def on_done(ctx):
            if ctx.retval.r1.tab != 0:
                failed[ctx.data.bad].add()
            slowest.add(ctx.now - ctx.data.begun)

        assert not session.refused
        after = target.go(2)
        snapshot = session.snapshot()
        found = {key[0]: number for key, number in counts(asked).items()}
        errors = dict(counts(failed).items())
        longest = snapshot.aggregations[-1]
    own = {name: after.calls[name] - before.calls[name] for name in after.calls}
    texts = {each.replace("_", " "): number for each, number in own.items() if each not in ("select", "row")}
    assert {key.decode() if isinstance(key, bytes) else key: number for key, number in found.items()} == texts
    assert sum(errors.values()) == own["bad"]
    assert timing(snapshot, EXEC).count == sum(texts.values())
    assert timing(snapshot, QUERY).count == own["select"]
    assert timing(snapshot, NEXT).count == own["row"] + own["select"]
    slept = sum(texts.values()) - own["bad"]
    assert timing(snapshot, EXEC).sum_ns > SLEPT * slept
    assert min(timing(snapshot, EXEC).max_ns, longest.max) > SLEPT  # which is longer depends on who runs in between
    target.go(1)
    target.finish()


def test_times_of_queries_by_their_text_on_the_command_line(target, capfd):
    """The text is a parameter, kept until the call has its time."""
    arguments = ["--of", "latency_ns", "--by", "query", "--json", "--for", "1", "-p", str(target.pid)]
    with target.going_on():
        assert main(["hist", f"a.out:{EXEC}", *arguments]) == 0
    document = json.loads(capfd.readouterr().out)
    (cells,) = document["aggregations"].values()
    assert {cell["key"][0] for cell in cells} == {"insert into a", "update b", "bad", "delete from c where d"}
    slow = [cell for cell in cells if cell["key"][0] != "bad"]
    assert all(cell["sum"] >= SLEPT * cell["count"] > 0 for cell in slow)
    target.finish()
