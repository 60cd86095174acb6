"""Each pair of options of a measuring command does what both do, or is refused by the name of one."""

import dataclasses
import io
import itertools
import os
from importlib import import_module

import click
import pytest
from rich.console import Console

from anyprobe.cli import main
from anyprobe.cli.measurement import contradictions, measuring
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, ThreadTimes
from support.sample_snapshots import snapshot, timing

COMMANDS = {
    "count": ["libc:malloc"], "time": ["libc:malloc"], "hist": ["libc:malloc", "--of", "arg0"], "trace": ["libc:malloc"]
}  # fmt: skip
VALUES = {
    "--for": ["3"], "--every": ["0.5"], "--when": ["arg0 >= 0"], "--maxactive": ["64"],
    "--max-overhead": ["5"], "--max-setup": ["2"],
    "--top": ["7"], "--output": ["results"], "--mechanism": ["kprobe"], "--print": ["tid"], "--args": ["2"],
    "--count": ["9"], "--format": ["folded"],
}  # fmt: skip
ELSEWHERE = {
    "--of", "--name", "--pid", "--new", "--cgroup", "--container", "--help", "--kill", "--leave", "--script", "--hot",
    "--host", "--hosts", "--remote",
}  # fmt: skip
"""Parts of all commands here, and what chooses what is measured: see tests of targets, ends and profiles."""
SHOWN = {"--by pid": " pid ", "--by tid": " tid ", "--by func(caller)": "called by", "--tree": "└─ ", "--self": "self"}
"""By what is seen in tables that an option has had its effect."""


def choices(command):
    """Return the options of a command with values, each with the words by which it is given."""
    found = {}
    for option in import_module(f"anyprobe.cli.commands.{command}").command.params:
        name = max(option.opts, key=len) if isinstance(option, click.Option) else ""
        if not name or name in ELSEWHERE:
            continue
        if name == "--json":  # which is a format
            found["--format json"] = [name]
        elif option.is_flag:
            found[name] = [name]
        elif isinstance(option.type, click.Choice) and name == "--by":
            found |= {f"--by {each}": ["--by", each] for each in option.type.choices}
        elif isinstance(option.type, click.Choice):
            found[name] = [name, option.type.choices[-1]]
        else:
            found[name] = [name, *VALUES.get(name, ["comm"] if name == "--by" else ["1"])]
    return found


@pytest.fixture
def planned(monkeypatch, tmp_path, capsys):
    """Run a command line as far as its plan; return that, or the complaint."""
    plans = []
    monkeypatch.setattr(measuring, "measure", lambda target, plan: plans.append((target, plan)) or 0)
    monkeypatch.chdir(tmp_path)

    def run(command, *options):
        plans.clear()
        status = main([command, *COMMANDS[command], *options, "-p", str(os.getpid())])
        told = capsys.readouterr().err
        if status:
            return told
        ((target, plan),) = plans
        try:
            contradictions.refuse(target, plan)
        except click.UsageError as error:
            return str(error)
        return plan

    return run


def fields(plan):
    """Return what a plan says, without what is made anew for each."""
    made = {"arm", "render", "seen", "records", "shown", "said", "always"}
    return {each.name: getattr(plan, each.name) for each in dataclasses.fields(plan) if each.name not in made}


def table(plan):
    """Return what is shown of calls in two processes, of two threads, where all is known of them."""
    nested = NestedTiming(1000.0, 2000.0, 2000.0)
    functions = (timing("outer", nested=nested), timing("inner", nested=nested))
    inner = CallNode("libc.so.6", "inner", 5, 900.0, 900.0)
    tree = (CallNode("libc.so.6", "outer", 5, 2000.0, 1100.0, (inner,)),)
    processes = tuple(ProcessCounts(ProcessInfo(pid, "/bin/program"), {}, functions, tree) for pid in (71, 72))
    threads = tuple(ThreadTimes(each.process, 90 + each.process.pid, "worker", functions) for each in processes)
    whole = snapshot(functions=functions, tree=tree, processes=processes, threads=threads)
    console = Console(file=io.StringIO(), width=160)
    plan.render(whole, console, 0)
    return console.file.getvalue()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_pair_works_or_is_refused_by_name(planned, command):
    options = choices(command)
    assert len(options) > 12
    plain = fields(planned(command))
    changes = {name: {} for name in options}  # of one that asks for another one, nothing by itself
    for name, words in options.items():
        plan = planned(command, *words)
        if isinstance(plan, str):
            assert name.split()[0] in plan, plan
        else:
            changes[name] = {field: value for field, value in fields(plan).items() if value != plain[field]}
    for one, other in itertools.combinations(options, 2):
        if one.split()[0] == other.split()[0]:
            continue  # the last one holds
        plan = planned(command, *options[one], *options[other])
        if isinstance(plan, str):
            assert one.split()[0] in plan or other.split()[0] in plan, (one, other, plan)
            continue
        found, wanted = fields(plan), {**changes[one], **changes[other]}
        shared = changes[one].keys() & changes[other].keys()
        assert all(changes[one][field] == changes[other][field] for field in shared), (one, other)
        assert {field: found[field] for field in wanted} == wanted, (one, other)
        shown = [SHOWN[each] for each in (one, other) if each in SHOWN] if command == "time" else []
        assert all(word in table(plan) for word in shown), (one, other)
