"""``anyprobe audit``: what it writes is what strace sees, and a file that was changed does not verify."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest

from anyprobe.cli import main
from anyprobe.data.archives.chain import verify
from live.test_command_line import anyprobe
from support.driver import build, wait_until

pytestmark = pytest.mark.live

RULES = """
AT = "dirfd=i32(arg0), path=cstr(arg1, 128)"
TWO = "path=cstr(arg0, 128), new_path=cstr(arg1, 128)"
ADDRESS = "fd=i32(arg0), address=buf(arg1, min(arg2, 112), 112)"
RULES = [
    {"event": "open", "call": "openat", "args": AT + ", flags=i32(arg2)"},
    {"event": "exec", "call": "execve", "args": "path=cstr(arg0, 96), argv=cstr(ptr[ptr](arg1)[0], 32), "
     "argv=cstr(ptr[ptr](arg1)[1], 32), argv=cstr(ptr[ptr](arg1)[2], 32), argv=cstr(ptr[ptr](arg1)[3], 32)",
     "entry": True},
    {"event": "connect", "call": "connect", "args": ADDRESS},
    {"event": "credentials", "call": "setuid", "args": "id=i32(arg0)"},
    {"event": "chdir", "call": "chdir", "args": "path=cstr(arg0, 128)"},
    {"event": "rename", "call": "rename", "args": TWO},
    {"event": "remove", "call": "unlink", "args": "path=cstr(arg0, 128)"},
]
"""
CALLS = ("openat", "execve", "connect", "setuid", "chdir", "rename", "unlink")
LOADERS = re.compile(r"/etc/ld\.so|/lib/|/usr/lib/")
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(?: (E\w+))?")


@pytest.fixture(scope="module")
def program():
    return str(build("audited.c", "-O1", "-pthread"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    file = tmp_path_factory.mktemp("rules") / "rules.py"
    file.write_text(RULES)
    return str(file)


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def outcome(call, result):
    """Return a result without the number of the descriptor, which threads get as they come."""
    return "open" if call == "openat" and result.isdecimal() else result


def by_strace(program, folder):
    """Return what strace sees: call, first text, result or error; what loaders open is left out."""
    seen, halves = Counter(), {}
    log = folder.parent / "strace"
    traced = ",".join(CALLS)
    subprocess.run(
        ["strace", "-f", "-qq", "-s", "200", "-e", f"trace={traced}", "-o", log, program, folder], check=True
    )
    for line in log.read_text().splitlines():
        pid = line.split()[0]
        if "<unfinished ...>" in line:
            halves[pid] = line.split(" <unfinished")[0]
            continue
        whole = re.sub(r"^(\d+) +<\.\.\. \w+ resumed>", lambda found: halves.pop(found[1]), line)
        if (found := _LINE.match(whole)) is None:
            continue
        _, call, given, result, error = found.groups()
        text = re.search(r'"([^"]*)"', given)
        seen[call, text[1] if text else "", outcome(call, error or result)] += 1
    return seen


def by_audit(lines):
    seen = Counter()
    for each in lines:
        if "call" not in each:
            continue
        result = each.get("error") or each.get("result")
        if each["event"] == "exec" and "of" not in each:
            seen["execve", each["args"]["path"], "0"] += 1
            continue
        if each["event"] == "exec":  # the line at the entry counted it as done
            seen["execve", each["args"]["path"], "0"] -= 1
        arguments = each["args"]
        address = str(arguments.get("address", ""))
        text = arguments.get("path") or address.removesuffix(":9")
        seen[each["call"], text or "", outcome(each["call"], str(result))] += 1
    return +seen


def settled(seen, program):
    """Leave out what only one of them can see: the loader's own opens, and the program's own beginning."""
    return Counter(
        {
            key: count
            for key, count in seen.items()
            if not LOADERS.match(key[1]) and not (key[0] == "execve" and key[1] == program)
        }
    )


def without_texts(seen):
    """Return how often each call had each result: by the kernel a text that is not in memory yet is not known."""
    return Counter(call_and_result for key, count in seen.items() for call_and_result in [(key[0], key[2])] * count)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel is asked by root alone")
def test_the_kernel_sees_what_strace_sees(program, rules, folder):
    path = str(folder.parent / "run.audit")
    done = anyprobe("audit", rules, "--kernel", "-o", path, "--", program, str(folder))
    if "PermissionDenied" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(done.stderr)
    lines, traced = lines_of(path), by_strace(program, folder)
    assert verify(path).is_whole
    assert (lines[1]["event"], lines[-1]["lost"]) == ("kernel", 0)
    audited = by_audit(lines)
    own = Counter({key: count for key, count in traced.items() if key[:2] != ("execve", program)})
    assert without_texts(audited) == without_texts(own)  # the loader's among them
    known = {key: count for key, count in audited.items() if key[1]}
    assert all(count <= traced[key] for key, count in known.items())
    assert known["openat", "missing", "ENOENT"] == 101
    assert known["connect", "127.0.0.1", "ECONNREFUSED"] == 1
    made = [each["args"] for each in lines if each["event"] == "exec" and each["args"]["path"] == "/bin/true"]
    words = made[0]["argv"]  # as many as the kernel's verifier accepts, and else it is said
    assert words == ["true", "one word", "--another"][: len(words)]
    assert len(words) == 3 or any("accepts" in each.get("reason", "") for each in lines)


def test_by_the_kernel_what_has_no_meaning_is_refused(rules, tmp_path, capsys):
    for options in ([], ["--follow", "-p", str(os.getpid())]):
        assert main(["audit", rules, "--kernel", "-o", str(tmp_path / "a"), *options]) == 2
    assert "not what they start" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_it_sees_what_strace_sees(program, rules, folder, capsys):
    path = str(folder.parent / "run.audit")
    anyprobe("audit", rules, "-o", path, "--", program, str(folder))
    lines = lines_of(path)
    assert verify(path).is_whole
    assert lines[-1]["lost"] == 0
    audited = settled(by_audit(lines), program)
    assert audited == settled(by_strace(program, folder), program)
    assert audited["openat", "missing", "ENOENT"] == 101  # as the program's text says
    assert audited["connect", "127.0.0.1", "ECONNREFUSED"] == 1
    assert audited["setuid", "", "0"] == 5
    own = [each for each in lines if each["event"] == "open" and each["args"]["path"] == "childs"]
    stack = [frame.split("+")[0] for frame in own[0]["stack"]]
    assert stack[:3] == ["libc.so.6:open", "audited:opens_by_name", "audited:main"]
    assert own[0]["pid"] != lines[1]["pid"]
    done = [each["args"] for each in lines if each["event"] == "exec" and each["args"]["path"] == "/bin/true"]
    assert done == [{"path": "/bin/true", "argv": ["true", "one word", "--another"]}] * 2
    (bad,) = [each for each in lines if each.get("error") == "EFAULT"]
    assert bad["args"]["path"] is None
    assert main(["audit", "verify", path, "--head", lines[-1]["hash"]]) == 0
    with open(path, "rb") as file:
        content = file.readlines()
    with open(path, "wb") as file:
        file.writelines([*content[:9], *content[10:]])
    capsys.readouterr()
    assert main(["audit", "verify", path]) == 1
    assert f"{path}:10: this is line 11 of the audit" in capsys.readouterr().out


def test_a_killed_auditor_leaves_whole_lines(program, rules, folder):
    path = folder.parent / "killed.audit"
    loop = f"while :; do {program} {folder}; done"
    auditor = subprocess.Popen(
        [sys.executable, "-m", "anyprobe", "audit", rules, "-o", path, "--", "sh", "-c", loop],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") > 30, "the lines of some calls")
        os.kill(auditor.pid, signal.SIGKILL)
        auditor.wait()
    finally:
        for pid in {each["pid"] for each in lines_whole(path) if each["event"] == "process"}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    found = verify(str(path))
    assert found.faults == ()
    assert found.lines >= 30
    assert found.open_since == 1
    assert not found.is_whole


def lines_whole(path):
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(each) for each in content.split(b"\n")[:-1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RULES = [{'event': 'x', 'call': 'opennat'}]", "openat"),
        ("RULES = [{'event': 'x'}]", "a rule has 'event' and 'call'"),
        ("RULES = [{'event': 'x', 'call': 'openat', 'args': 'cstr(arg1'}]", "never closed"),
        ("RULES = [{'event': 'x', 'call': 'openat', 'args': 'arg7'}]", "arg0 to arg5"),
        ("RULES = [{'event': 'end', 'call': 'openat'}]", "cannot be the name"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "no list RULES"),
    ],
)
def test_wrong_rules_are_pointed_at(tmp_path, capsys, text, message):
    (tmp_path / "rules.py").write_text(text)
    assert main(["audit", str(tmp_path / "rules.py"), "-o", str(tmp_path / "file"), "--", "/bin/true"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "file").exists()


def test_it_needs_a_file_and_rules(tmp_path, capsys):
    assert main(["audit", "kerninst", "--", "/bin/true"]) == 2
    assert "-o FILE" in capsys.readouterr().err
    assert main(["audit", "kernlist", "-o", str(tmp_path / "file"), "--", "/bin/true"]) == 2
    assert "rules that come along: kerninst" in capsys.readouterr().err
    assert main(["audit", "verify"]) == 2
    assert main(["audit", "verify", str(tmp_path / "nothing")]) in {1, 2}


def test_the_shipped_rules_can_all_be_placed(tmp_path):
    path = str(tmp_path / "run.audit")
    anyprobe("audit", "kerninst", "-o", path, "--", "cat", "/etc/hostname")
    lines = lines_of(path)
    assert {"open", "close", "lookup", "exit"} <= {each["event"] for each in lines}
    assert [each["args"]["path"] for each in lines if "hostname" in str(each.get("args"))] == ["/etc/hostname"]
    assert not [each for each in lines if each["event"] == "not audited" and "libc.so" in each["place"]]
