"""The JSON of every command is as its schema says, which knows every member."""

import json
import subprocess
import sys

import jsonschema
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import kinds, text_of
from support.driver import build, wait_until
from support.standing import probed

pytestmark = pytest.mark.live

PROGRAM = """
#include <unistd.h>
int written;
__attribute__((noinline)) int work(int n) { written = n; __asm__ volatile(""); return n % 3 ? n : -1; }
__attribute__((noinline, noreturn)) void endless(void) { for (int n = 0;; n++) { work(n); usleep(200); } }
int main(void) { write(1, "r", 1); endless(); }
"""
SCRIPT = """
from anyprobe import Avg, Map, emit, i64, printf, session

mean = Avg("mean", by=("sign",))
last = Map("last", by=("sign",), capacity=16, value=i64)


@session.ret("a.out:work")
def returned(ctx):
    mean.add(1, key=(2,))
    last[(3,)] = i64(4)
    emit("seen", n=5)
    printf(f"n is {ctx.tid}")


session.time("a.out:work")
"""


@pytest.fixture(scope="module")
def target():
    with subprocess.Popen([build("documents.c", "-O1", "-g", text=PROGRAM)], stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        yield process
        assert process.poll() is None, "the target died"
        process.kill()


@pytest.fixture
def documents(target, capfd):
    """Return the documents that a command prints, each valid."""

    def documents(kind, *arguments, where=("-p", str(target.pid)), ends=(0,)):
        capfd.readouterr()
        assert main([*arguments, *where, "--json"]) in ends
        text = capfd.readouterr().out
        try:
            found = [json.loads(text)]
        except json.JSONDecodeError:
            found = [json.loads(line) for line in text.splitlines()]
        assert found
        for each in found:
            checked(kind, each)
        return found

    return documents


def checked(kind, document):
    schema = json.loads(text_of(kind))
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(strict(schema)).iter_errors(document)
    assert [(each.json_path, each.message[:300]) for each in found] == []


def strict(schema):
    """Return a schema that forbids what it does not name: readers may meet more, we must not print more."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if "properties" in made and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


FOR = ("--for", "0.1")


@pytest.mark.parametrize("more", [(), ("--every", "0.05"), ("--nonzero",), ("--fold",)])
def test_count(documents, more):
    assert documents("count", "count", "a.out:work", "a.out:endless%return", *FOR, *more)[-1]["refused"]


def test_coverage(documents):
    (document,) = documents("cover", "cover", "a.out:work", *FOR)
    assert document["modules"][0]["symbols"]


def test_faults(documents):
    (document,) = documents("inject", "inject", "--unsafe", "a.out:work", "--delay", "0.001", "--every", "3", *FOR)
    assert document["injected"]


def test_replaced_functions(documents):
    (document,) = documents("replace", "replace", "--unsafe", "a.out:work", "--by", "libc:labs", *FOR)
    assert [(each["by"].split(":")[2], each["loaded"]) for each in document["replaced"]] == [("labs", None)]


def test_locks(documents):
    (document,) = documents("locks", "locks", *FOR)
    assert document["locks"] == []


def test_sleep(documents):
    (document,) = documents("offcpu", "offcpu", *FOR)
    assert {each["cause"] for each in document["stacks"]} == {"timer"}


def test_metrics(documents):
    *numbers, end = documents("metric", "metric", "a.out:work", "--by", "tid", "--every", "0.05", "--for", "0.5")
    assert all("tid" in each["key"] for each in (*numbers, *end["functions"]))
    for of in ("concurrency", "calls", "off"):
        *numbers, end = documents("metric", "metric", "a.out:work", "--of", of, "--every", "0.05", "--for", "0.5")
        assert numbers
        assert [[each["t"], each["value"]] for each in numbers] == end["functions"][0]["series"]


def test_hits_that_wait(documents):
    documents("break", "break", "a.out:work", "--count", "2")
    documents("break", "break", "a.out:work", "--do", "stop", *FOR)


def test_accesses(documents):
    documents("watch", "watch", "written", "--count", "2")


def test_under_a_condition(documents):
    documents("count", "count", "a.out:work", *FOR, "--when", "n > 3")
    documents("time", "time", "a.out:work", *FOR, "--when", "n > 3")
    documents("hist", "hist", "a.out:work", "--of", "n", *FOR, "--when", "retval < 0")


def test_count_of_returns_and_instructions_and_several_processes(documents, target):
    documents("count", "count", "a.out:work%return", "a.out:work%insn", "--live", *FOR)
    with subprocess.Popen(["sleep", "1000"]) as other:
        both = ("-p", str(target.pid), "-p", str(other.pid))
        (document,) = documents("count", "count", "libc:usleep", *FOR, where=both)
        assert len(document["targets"]) == 2
        other.kill()


@pytest.mark.parametrize("more", [(), ("--every", "0.05")])
def test_time(documents, more):
    (*_, document) = documents("time", "time", "a.out:work", "a.out:endless", *FOR, *more)
    assert document["functions"]


@pytest.mark.parametrize("kind", ["hist", "quantize", "lquantize:0:9:3", "sum", "min", "max", "avg", "stddev"])
def test_hist(documents, kind):
    documents("hist", "hist", "a.out:work", "--of", "n", "--as", kind, *FOR)
    if kind == "hist":
        documents("hist", "hist", "a.out:work", "--by", "tid, comm", "--every", "0.05", *FOR)
        documents("hist", "hist", "a.out:work", "--of", "latency_ns", "--by", "n & 1", *FOR)


@pytest.mark.parametrize("more", [(), ("--every", "0.05")])
def test_script(documents, tmp_path, more):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (*_, document) = documents("script", "script", str(script), *FOR, *more)
    assert {"aggregations", "functions", "maps"} <= set(document)


def test_trace(documents):
    documents("trace", "trace", "a.out:work", "a.out:work%return", "-c", "4")
    documents("trace", "trace", "a.out:work", "-c", "4", "--print", "retval, latency_ns, comm, f64(n)")
    documents("trace", "trace", "libc:usleep", "-c", "2")


def test_list_and_explain(documents, tmp_path):
    documents("list", "list", "a.out:*", "a.out:*%return", "libc:usleep")
    documents("explain", "explain", "a.out:work")
    documents("explain", "explain", "a.out:endless", "--for", "time")
    documents("explain", "explain", "a.out:work+0x1", ends=(1,))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    documents("explain", "explain", "a.out:work%return", "--script", str(script))


def test_what_is_installed_and_its_removal(documents, target):
    command = [sys.executable, "-m", "anyprobe", "count", "a.out:work", "libc:usleep%return", "-p", str(target.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as controller:
        wait_until(lambda: probed(target.pid), "it is armed")
        assert documents("probes", "probes", "--sites")[0]
        listed = documents("probes", "probes", where=())[0]
        assert target.pid in [each["pid"] for each in listed]
        documents("enable", "disable", "--all")
        documents("enable", "enable", "--all")
        documents("optimize", "optimize", "on", ends=(0, 1))
        controller.kill()
    documents("detach", "detach")
    assert documents("probes", "probes")[0] == []


def test_doctor(documents):
    documents("doctor", "doctor", ends=(0, 1))
    documents("doctor", "doctor", where=(), ends=(0, 1))


def test_the_command_prints_each(capsys):
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.split() == kinds()
    for kind in kinds():
        assert main(["schema", kind]) == 0
        assert json.loads(capsys.readouterr().out)["title"] == f"anyprobe {kind}"
    assert main(["schema", "nothing"]) == 2
    assert "there are break, cache, count, cover, " in capsys.readouterr().err
