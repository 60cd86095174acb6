import functools
import io
from dataclasses import replace

from rich.console import Console

from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.reports import table
from anyprobe.reports.plain import PlainConsole
from support.sample_snapshots import refused, site, snapshot


def shown(of, top=40, width=120, **console):
    stream = io.StringIO()
    table.print_counts(of, Console(file=stream, width=width, highlight=False, **console), top)
    if not console:
        plain = io.StringIO()
        table.print_counts(of, PlainConsole(plain, width), top)
        assert plain.getvalue() == stream.getvalue()
    return stream.getvalue()


def test_the_busiest_site_comes_first():
    lines = shown(snapshot()).splitlines()
    rows = [line.split()[2] for line in lines if "libc.so.6  jump" in line]
    assert rows == ["malloc", "free"]


def test_the_heading_says_what_it_cost():
    text = shown(snapshot())
    assert "redis-server (pid 4194305): 12,352 hits at 3 sites in 5.00 s" in text
    assert "paused: 0.31 ms arm · 0.12 ms disarm; set up in 372 ms" in text
    longer = shown(snapshot(pause_us={"prepare": 27_010, "arm": 320, "disarm": 4, "other": 1}))
    assert "paused: 27.0 ms map · 0.32 ms arm · 0.004 ms disarm; set up" in longer


def test_folded_sites_are_counted_one_by_one():
    assert "7 hits at 4 sites" in shown(snapshot(sites=(site(hits=6, kind="insn", folded_sites=3), site("f", 1))))


def test_folded_rows_are_called_functions_where_they_are_summed_up():
    folded = [site(f"f{number}", number, kind="insn", folded_sites=3) for number in range(4)]
    text = shown(snapshot(sites=tuple(folded)), top=1)
    assert "… and 2 more functions with 3 hits, 1 function without a hit (f0%insn); --top 0 shows all" in text
    assert "functions by strategy: 4 jump" in text
    text = shown(snapshot(sites=(*folded, site("g", 9))), top=1)
    assert "… and 3 more rows with 6 hits, 1 row without a hit (f0%insn)" in text
    assert "rows by strategy: 5 jump" in text
    assert "\nsites by strategy: 2 jump" in shown(snapshot(sites=(site(), site("g"))))


def test_an_ended_target_is_called_so():
    assert "which has ended" in shown(snapshot(target=TargetInfo(1, "/bin/true", exited=0)))
    nothing = shown(snapshot(target=TargetInfo(0, "", alive=False, called="named perl"), sites=()))
    assert nothing.startswith('"named perl": 0 hits')


def test_all_targets_that_are_counted_together_are_named():
    many = [snapshot(target=TargetInfo(pid, "/usr/bin/perl")) for pid in range(7, 12)]
    text = shown(snapshot().merge(many[0]))
    assert text.startswith("redis-server (pid 4194305), perl (pid 7): 24,704 hits at 3 sites in 5.00 s")
    assert "perl (pid 9) and 2 others: " in shown(functools.reduce(Snapshot.merge, many, snapshot()))


def test_rows_are_limited_and_the_rest_is_summed_up():
    many = snapshot(sites=tuple(site(f"f{number:02}", number) for number in range(30)))
    text = shown(many, top=5)
    assert "… and 24 more sites with 300 hits, 1 site without a hit (f00); --top 0 shows all" in text
    assert "f25" in text
    assert "f24" not in text
    assert "f00" in shown(many, top=0)


def test_sites_without_a_hit_have_no_rows_but_are_counted():
    idle = tuple(site(f"idle{number}", 0) for number in range(9))
    assert shown(snapshot(sites=(site("busy", 5), *idle), refused=())).splitlines()[2:] == [
        "",
        "hits  hits/s  function  module     strategy",
        "   5       1  busy      libc.so.6  jump    ",
        "… and 9 sites without a hit; --top 0 shows all",
        "sites by strategy: 10 jump",
    ]
    assert shown(snapshot(sites=(site("idle", 0),), refused=())).splitlines()[2:] == [
        "… and 1 site without a hit (idle)",
    ]
    assert "  idle8 " in shown(snapshot(sites=(site("busy", 5), *idle)), top=0)


def test_a_site_that_was_given_up_has_a_row_hit_or_not():
    text = shown(snapshot(sites=(site("busy", 5), site("given_up", 0, armed=False))))
    assert next(line for line in text.splitlines() if "given_up" in line).endswith("disarmed")


def test_calls_that_a_condition_was_not_asked_for_are_told_at_once():
    first = shown(snapshot(tail_exits=1234)).splitlines()[0]
    assert first.endswith("in 5.00 s; 1,234 calls left by a tail jump and were not asked the condition")
    assert "tail" not in shown(snapshot(tail_exits=0))


def test_what_a_condition_could_not_be_asked_for_is_told():
    assert "runs that a missing value has ended: 7" in shown(snapshot(missing={"abandoned": 7}))


def test_few_refusals_are_shown_one_by_one_and_many_by_reason():
    assert "0x226c7: jump-target-in-jtpr: 0x1004 is jumped to" in shown(snapshot())
    many = snapshot(refused=(*tuple(refused(reason="lone-ret") for _ in range(7)), refused()))
    assert "refused: 8 sites: 7 lone-ret, 1 jump-target-in-jtpr" in shown(many)


def test_what_was_unloaded_is_gone_and_was_not_refused():
    """There is nothing to explain about it."""
    lost = replace(refused("work", "gone"), detail="the module was unmapped")
    of = snapshot(sites=(replace(site("work", 12, armed=False), spec=lost.spec), site("free", 1, armed=False)))
    text = shown(replace(of, refused=(lost,)))
    assert "refused" not in text
    assert "explain" not in text
    assert next(line for line in text.splitlines() if " work " in line).rstrip().endswith("[GONE]")
    assert next(line for line in text.splitlines() if " free " in line).endswith("disarmed")
    assert text.splitlines()[-1] == f"[GONE] {lost.spec} at 0x226c7: the module was unmapped"
    many = shown(replace(of, refused=(*(lost,) * 7, refused())))
    assert "[GONE] 7 sites, the first: the module was unmapped" in many
    assert "refused: pid:libc.so.6:_dl_relocate:entry at 0x226c7: jump-target-in-jtpr" in many


def test_missed_hits_and_notes_have_columns_only_when_there_are_any():
    assert "missed" not in shown(snapshot())
    text = shown(snapshot(sites=(site(nmissed=3, notes=("entry-is-loop-head",)), site("free", armed=False))))
    assert "missed" in text
    assert "entry-is-loop-head" in text
    assert "disarmed" in text


def test_the_exits_of_a_function_are_told_apart():
    ends = [site(kind="return", exit_kind="ret", offset=offset) for offset in (0x10, 0x2C)]
    text = shown(snapshot(sites=(*ends, site("free", kind="return", exit_kind="ret", offset=0x30))))
    assert "malloc%return (ret) +0x10" in text
    assert "malloc%return (ret) +0x2c" in text
    assert "free%return (ret)  " in text
    twice = [site(kind="return", strategy=each) for each in ("kretprobe", "fexit")]
    assert "+0x" not in shown(snapshot(sites=tuple(twice)))  # one place, seen in two ways


def test_sites_are_named_as_the_user_writes_them():
    assert table.site_name(site()) == "malloc"
    assert table.site_name(site(kind="return", exit_kind="tail")) == "malloc%return (tail)"
    assert table.site_name(site(kind="offset", offset=0x1C)) == "malloc+0x1c"
    assert table.site_name(site(kind="insn", offset=0x1C, folded_sites=3)) == "malloc%insn"


def test_names_with_brackets_are_not_markup():
    assert "operator[](unsigned long)[clone]" in shown(snapshot(sites=(site("operator[](unsigned long)[clone]", 1),)))


def test_colours_on_terminals_only():
    assert "\x1b" not in shown(snapshot())
    assert "\x1b" in shown(snapshot(), force_terminal=True, color_system="standard", no_color=False)


def test_nothing_at_all_is_still_a_report():
    assert "0 hits at 0 sites" in shown(snapshot(sites=(), refused=(), pause_us={}))


def test_the_footer_of_refusals_has_the_exact_command():
    once = snapshot(refused=(refused(),))
    assert "anyprobe explain pid:libc.so.6:_dl_relocate:entry -p 4194305 says more" in shown(once)
    timed = snapshot(refused=(replace(refused("operator new[](int)"), timed=True), refused()))
    command = "anyprobe explain --for time 'pid:libc.so.6:operator new[](int):entry' -p 4194305"
    assert f"{command} says why of the first of 2 sites; --json lists them all" in shown(timed)
    ended = snapshot(refused=(refused(),), target=TargetInfo(4194305, "/bin/x", exited=0, alive=False))
    assert "anyprobe explain pid:libc.so.6:_dl_relocate:entry -p PID says more" in shown(ended)


def test_the_rate_of_what_was_loaded_later_is_of_the_time_since_then():
    text = shown(snapshot(sites=(site("early", 100), site("late", 100, since=4.0)), duration_s=5.0, refused=()))
    assert [line.split()[:3] for line in text.splitlines()[4:6]] == [["100", "20", "early"], ["100", "100", "late"]]
