"""Each command of docs/oneliners.md and docs/tutorial.md, on the program that it is about."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from anyprobe.cli import main
from support.driver import build

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
PAGES = {"oneliners.md": ("everyday", ""), "tutorial.md": ("shop", "$ ")}
"""The program that each page is about, and what its commands begin with; without that, each line is a command."""
COMMANDS = [
    (program, line.removeprefix(prompt))
    for page, (program, prompt) in PAGES.items()
    for block in re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.strip() and line.startswith(prompt)
]
EXPECTED = {
    "list 'libc:*open*'": r"pid:libc.so.6:open:entry +jump",
    "hello.py": r"hello, process \d+ \(.*everyday\)",
    "'comm, cstr(arg0, 100)'": r'comm="(main|reader)"  cstr\(arg0, 100\)="/(etc/passwd|dev/null|nowhere)"',
    "i32(retval), latency_ns": r'"/nowhere"  i32\(retval\)=-1  latency_ns=\d+',
    "opens.py": r"(main|reader) opens /etc/passwd",
    "--by comm -p": r"main +[\d,]+ ?\n",
    "'func, comm'": r"libc\.so\.6:(read|write|open)\b.* +(main|reader) ",
    "--of retval -p": r"retval \(hist\)",
    "fd=i32(arg0)": r"fd=\d+",
    "lquantize:0:2000:200": r"200 … 399 +[1-9]",
    "time libc:read": r"p99",
    "latency_ns --by comm": r"comm=reader",
    "read_latency.py": r"comm=reader",
    "slow_calls.py": r"everyday \(pid",
    "pthread_*": r"[1-9][\d,]* +.*pthread_mutex_lock",
    "--every 1": r"[1-9][\d,]* +.*serve",
    "pthread_mutex_lock --by": r"pthread_mutex_lock < everyday:work",
    "--as sum --by 'ctx.ustack(4)'": r"malloc < everyday:serve",
    "allocations.py": r"malloc < everyday:serve.*[1-9]",
    "libc:malloc --of arg0 -p": r"arg0 \(hist\)",
    "--as max": r"[1-9][\d,]* +[1-9]",
    "max(retval, 0)": r"(main|reader) +[1-9]",
    "--as avg": r"\d+ +\d+\.\d+ +[1-9]",
    "request.client.port, cstr": r'request.client.port=800\d  cstr\(request.path, 64\)="/.*"  attempt=\d',
    "lquantize:8000:8010:1": r"8,00[012] +[1-9]",
    "--as min": r"/nowhere +-1 ",
    "failing_opens.py": r"/nowhere +2 +[1-9]",
    "head -n 1": r"read = \d+  latency_ns=\d+",
    "-- ls /": r"arg0 \(hist\)",
    "uprobe:": r'cstr\(arg0, 64\)="',
    "r:mine/read": r"(.*libc.so.6:read = \d+\n){5}",
    "count libc:open --when": r"[1-9][\d,]* +[\d,]+ +open\b",
    "time libc:write --when": r"p99",
    "--print 'cstr(arg0, 64), errno'": r'(.*open = -1  cstr\(arg0, 64\)="/nowhere"  errno=2\n){5}',
    "--when 'retval > 0'": r"latency_ns \(hist\)",
    "leaks.py -p": r"outstanding bytes",
    "leaks.py -- ls": r"outstanding bytes",
    "latency.json": r'"latency_ns": \{',
    "count 'a.out:*' -p PID --for": r"[1-9][\d,]* +[\d,]+ +(price|serve) ",
    "explain price": r"would be placed by a 5-byte jump",
    "--tree -p": r"serve .*\n.*└─ price",
    "time price": r"p99",
    "--by order.items": r"order.items=9 ",
    "trace serve": r'serve = -1 +order.customer=4  cstr\(order.what, 16\)="(tea|coffee|bread)"',
    "slow_orders.py": r"customer 4: 9 items took \d+ us",
    "price%block": r"[1-9][\d,]* .*price",
    "shop.c:9": r"[1-9][\d,]* .*price",
    "syscall::write:entry": r"[1-9][\d,]* .*write",
    "count libc:malloc --": r"[1-9][\d,]* .*malloc",
    "reads.jsonl": r'\{"ts_ns": \d+, .*"spec": "pid:libc.so.6:read:entry"',
}


@pytest.fixture(scope="module")
def programs():
    shop = (ROOT / "examples" / "shop.c").read_text()
    built = {"everyday": build("everyday.c", "-O1", "-g"), "shop": build("shop.c", "-O1", "-g", text=shop)}
    with ExitStack() as stack:
        found = {}
        for name, path in built.items():
            found[name] = stack.enter_context(subprocess.Popen([path], stdout=subprocess.PIPE))
            stack.callback(found[name].kill)
            found[name].stdout.readline()
        yield {name: process.pid for name, process in found.items()}
        assert all(process.poll() is None for process in found.values()), "a target died"


def test_each_is_expected_to_do_something():
    for wanted in EXPECTED:
        assert any(wanted in command for _, command in COMMANDS), wanted
    for _, command in COMMANDS:
        assert any(wanted in command for wanted in EXPECTED), command


def test_the_tutorials_handler_is_the_examples():
    handler = (ROOT / "examples" / "slow_orders.py").read_text().partition("\n\n")[2]
    assert f"```python\n{handler}```" in (ROOT / "docs" / "tutorial.md").read_text()


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Undo what a command leaves in this interpreter."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("program", "command"), COMMANDS)
def test_it_does_what_it_says(programs, tmp_path, capfd, program, command):
    wanted = max((each for each in EXPECTED if each in command), key=len)
    for seconds in (0.1, 1, 10):  # in which a busy machine may not have the program do anything
        words = shlex.split(re.sub(r"--for \d+", f"--for {seconds}", command).replace("--every 1", "--every 0.03"))
        words = [str(programs[program]) if word == "PID" else word for word in words]
        words = [str(ROOT / word) if word.startswith("examples/") else word for word in words]
        assert words[0] == "anyprobe"
        status = main(words[1:])
        shown = capfd.readouterr()
        if status and "syscall::" in command and "kernel-refuses" in shown.out + shown.err:
            pytest.skip("needs root and a kernel with BPF")
        assert status == 0, shown.err
        files = "".join((tmp_path / name).read_text() for name in os.listdir(tmp_path))
        text = shown.out + shown.err + files
        if re.search(EXPECTED[wanted], text):
            break
    assert re.search(EXPECTED[wanted], text), text[-2000:]
