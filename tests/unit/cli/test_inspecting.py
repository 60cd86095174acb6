import json
import sys

from anyprobe.cli import main
from anyprobe.cli.commands import doctor
from anyprobe.cli.commands import list as listing
from anyprobe.cli.doctor import machine_checks
from anyprobe.cli.doctor.finding import Finding
from anyprobe.cli.terminal import output
from anyprobe.core.errors import NoSuchProcess
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.findings.explanation import ListedSite
from anyprobe.probes.providers.function.outside import leftover

NO_PID = (1 << 22) + 1
"""Above all that Linux gives to processes."""


def test_explain_marks_the_regions_and_names_the_verdicts(fakes, capsys):
    assert main(["explain", "libc:malloc", "-p", "4194305"]) == 0
    shown = capsys.readouterr().out
    assert "libc.so.6:malloc+0x4" in shown
    lines = shown.splitlines()
    assert next(line for line in lines if "push rbp" in line).endswith("IA DCR")
    assert next(line for line in lines if "mov rbp,rsp" in line).endswith("DCR JTPR")
    assert "not-a-direct-branch" in shown
    assert "inc qword [rip]" in shown
    assert "flags      dead" in shown
    assert "vectors    dead: zmm2-zmm4 xmm7 k1\n" in shown


def test_explain_as_json(fakes, capsys):
    assert main(["explain", "libc:malloc", "-p", "4194305", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["disassembly"][1] == {
        "address": 0x1004,
        "bytes": "55",
        "text": "push rbp",
        "marks": ["IA", "DCR"],
    }
    assert document["verdicts"][1] == {"strategy": "jump", "verdict": "chosen"}
    assert document["patch"][0]["bytes"] == "48 ff 05 00 00 00 00"


def test_explain_has_a_line_for_each_site_of_a_spec_that_means_several(fakes, capsys):
    command = ["explain", "libc:malloc%insn", "-p", "4194305"]
    fakes.explained = ((0x1004, "jump"),)
    assert main(command) == 0
    assert "planned together" not in capsys.readouterr().out
    fakes.explained = ((0x1004, "jump"), (0x1005, "lone-ret: nothing but ret"))
    assert main(command) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["all", "2", "sites", "in", "this", "function,", "planned", "together"] in lines
    assert ["0x1004", "malloc+0x4", "jump"] in lines
    assert ["0x1005", "malloc+0x5", "lone-ret:", "nothing", "but", "ret"] in lines
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sites"][0] == {"address": 0x1004, "verdict": "jump"}
    fakes.explained = tuple((0x1004 + number, "short" if number % 2 else "jump") for number in range(164))
    assert main(command) == 0
    assert "… and 104 more, which `anyprobe list` shows: 52 jump, 52 short" in capsys.readouterr().out


def test_list_shows_strategies_and_refusals(fakes, capsys):
    assert main(["list", "libc:*", "-p", "4194305"]) == 0
    shown = capsys.readouterr().out
    assert "pid:libc.so.6:malloc:entry  jump" in shown
    assert "refused: lone-ret" in shown
    assert "2 sites: 1 jump, 1 refused" in shown


def test_list_as_json(fakes, capsys):
    assert main(["list", "-p", "4194305", "--json"]) == 0
    malloc, lone_ret = json.loads(capsys.readouterr().out)["sites"]
    assert (malloc["strategy"], malloc["refusal"]) == ("jump", None)
    assert lone_ret["refusal"]["reason"] == "lone-ret"


def listed(spec, offset, address, strategy="jump", **more):
    return ListedSite(f"pid:libc.so.6:{spec}", "libc.so.6", "f", offset, address, strategy, **more)


def test_list_has_a_heading_and_columns(capsys):
    sites = [
        listed("malloc:entry", 0, 0x1000, arguments=(("bytes", "u64"),), result="ptr"),
        listed("f:return", 7, 0x2007, "retarget", arguments=()),
        listed("f:return", 9, 0x2009, None, refusal=Refusal(Reason.LONE_RET, 0x2009, "nothing but ret"), arguments=()),
    ]
    listing.render(sites, output.console(sys.stdout))
    assert (
        capsys.readouterr().out
        == """\
address         spec                         reached by         types
        0x1000  pid:libc.so.6:malloc:entry   jump               (bytes: u64) -> ptr
        0x2007  pid:libc.so.6:f:return +0x7  retarget           ()
        0x2009  pid:libc.so.6:f:return +0x9  refused: lone-ret  ()
3 sites: 1 jump, 1 retarget, 1 refused
"""
    )
    listing.render(sites, output.console(sys.stdout), 1)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "        0x1000  pid:libc.so.6:malloc:entry  jump        (bytes: u64) -> ptr",
        "… and 2 more; --top 0 shows all",
        "3 sites: 1 jump, 1 retarget, 1 refused",
    ]


def test_a_few_long_names_do_not_widen_the_table(capsys):
    sites = [listed(f"f{number}:entry", 0, 0x1000 + number) for number in range(40)]
    listing.render([*sites, listed("x" * 300 + ":entry", 0, 0x3000)], output.console(sys.stdout))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].index("reached by") == 16 + listing.WIDTH + 2
    assert lines[1].index("jump") == lines[0].index("reached by")
    assert lines[-2].endswith("x:entry  jump")


def test_probes_in_all_forms(fakes, capsys):
    assert main(["probes", "-p", "4194305", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert {"address", "type", "symbol", "offset", "module", "strategy", "flags"} <= set(line)
    assert line["type"] == "r"
    assert main(["probes", "-p", "4194305"]) == 0
    assert capsys.readouterr().out == "0000000000001004  r  malloc+0x4  libc.so.6 [DISABLED]\n"
    assert main(["probes", "-p", "4194305", "--sites"]) == 0
    assert "malloc+0x10" in capsys.readouterr().out
    assert main(["probes", "-p", "4194305", "--sites", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["type"] == "kr"


def test_detach_says_what_it_did(fakes, capsys):
    assert main(["detach", "-p", "4194305"]) == 0
    shown = capsys.readouterr().out
    assert "restored 3 sites in pid 4194305; unmapped 8 KiB" in shown
    assert "run detach again later" in shown
    assert main(["detach", "-p", "4194305", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_quiet"] == ["7f00-7f10"]


def test_detach_from_several_goes_on_where_one_is_gone(fakes, capsys, monkeypatch):
    works = leftover.remove

    def remove(pid):
        if pid == 2:
            raise NoSuchProcess("there is no process 2")
        return works(pid)

    monkeypatch.setattr(leftover, "remove", remove)
    assert main(["detach", "-p", "1", "-p", "2", "-p", "3"]) == 1
    shown = capsys.readouterr().out
    assert "restored 6 sites in pid 1, 3; unmapped 16 KiB" in shown
    assert "there is no process 2" in shown
    assert main(["detach", "-p", "1", "-p", "3"]) == 0
    assert main(["detach", "-p", "2"]) == 1
    assert main(["detach"]) == 2


def test_doctor_looks_at_the_machine_and_a_process(sleeper, capsys):
    assert main(["doctor", "-p", str(sleeper.pid), "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    names = {finding["name"] for finding in document["machine"]}
    assert {"kernel", "processor", "time stamp counter", "ptrace scope", "executable memory", "shadow stacks"} <= names
    assert document["target"][0]["name"] in {"process", "permission"}


def test_doctor_ends_with_what_to_try(sleeper, capsys):
    forbids = Finding("permission", "no", "forbidden", "sudo it")
    assert doctor.next_command(7, [Finding("x", "ok", ""), forbids]) == "sudo it; then anyprobe doctor -p 7"
    assert doctor.next_command(7, [Finding("x", "limited", "")]) == "anyprobe count 'a.out:*' -p 7 --for 5"
    main(["doctor", "-p", str(sleeper.pid)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: ")


def test_probes_without_a_process_lists_those_that_have_some(fakes, capsys, monkeypatch):
    probed = "anyprobe.probes.providers.function.outside.listing.probed_processes"
    monkeypatch.setattr(probed, lambda: [NO_PID, NO_PID + 1])
    assert main(["probes"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [["pid", "probes", "owner", "program"], [str(NO_PID), "1", "77"]]
    assert main(["probes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document[0] == {"pid": NO_PID, "exe": "", "probes": 1, "owners": [77]}
    monkeypatch.setattr(probed, list)
    assert main(["probes"]) == 0
    assert "no process that you may look at has probes" in capsys.readouterr().out


def test_doctor_of_a_process_that_is_gone(dead_pid, capsys):
    assert main(["doctor", "-p", str(dead_pid)]) == 1
    assert f"{dead_pid}" in capsys.readouterr().out


def test_a_check_that_cannot_look_is_a_finding():
    def unreadable():
        raise OSError(5, "gone")

    assert machine_checks.findings((unreadable,)) == [
        Finding("unreadable", "limited", "cannot be looked at: [Errno 5] gone")
    ]


def test_what_limits_us_comes_with_a_remedy(monkeypatch):
    settings = {
        "/proc/sys/vm/memfd_noexec": "2",
        "/proc/sys/vm/max_map_count": "1000",
        "/proc/cmdline": "quiet proc_mem.force_override=never",
        "/proc/cpuinfo": "flags\t\t: sse2 user_shstk\n",
    }
    monkeypatch.setattr(machine_checks, "setting", settings.get)
    found = {finding.name: finding for finding in machine_checks.findings()}
    for name in ("executable memory", "mappings", "text writes", "time stamp counter"):
        assert found[name].verdict != "ok"
        assert found[name].remedy
    assert "supported here" in found["shadow stacks"].detail


def test_yama_forbids_by_degrees(monkeypatch):
    monkeypatch.setattr(machine_checks.permission, "has_ptrace_capability", lambda status: False)
    for scope, verdict in ((None, "ok"), (0, "ok"), (1, "limited"), (2, "no"), (3, "no")):
        monkeypatch.setattr(machine_checks.permission, "yama_scope", lambda scope=scope: scope)
        assert machine_checks.yama().verdict == verdict
