"""Coverage beside gcov's own of the very same run: a program with gcov's counters is probed at all of its blocks."""

import gzip
import json
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from support.browser import opened_in_a_browser
from support.driver import build

pytestmark = pytest.mark.live
BRANCHES = """
#include <stdio.h>
static __attribute__((noinline)) int kind_of(int n) {
    if (n > 6)
        return n * 2;
    switch (n) {
    case 0: return 7;
    case 1: return 9;
    case 2:
    case 3: n += 5; break;
    case 4: return -1;
    case 5: n *= 3;
    }
    return n;
}
static __attribute__((noinline)) int never(int n) {
    return n + 1;
}
int main(int argc, char **argv) {
    volatile int sum = 0;
    for (int i = 0; i < 4; i++)
        sum += kind_of(i);
    if (argc > 5)
        sum += never(sum);
    else
        sum += kind_of(100);
    do { sum--; } while (sum > 0);
    printf("%d\\n", sum);
    return 0;
}
"""
JUMPS = """
#include <setjmp.h>
static jmp_buf back;
static volatile int depth;
static __attribute__((noinline)) void falls(int n) {
    depth++;
    if (!n)
        longjmp(back, 1);
    falls(n - 1);
    depth--;
}
int main(void) {
    if (setjmp(back) == 0) {
        falls(3);
        depth = 100;
    } else
        depth += 2;
    return depth != 6;
}
"""
EXCEPTIONS = """
#include <stdexcept>
#include <vector>
static volatile int last;
struct Noted { int n; ~Noted() { last = n; } };
static __attribute__((noinline)) int thrower(int n) {
    Noted noted{n};
    if (n == 3)
        throw std::runtime_error("three");
    return n;
}
int main() {
    std::vector<int> values;
    for (int i = 0; i < 6; i++) {
        try {
            values.push_back(thrower(i));
        } catch (const std::runtime_error &error) {
            values.push_back(-1);
        } catch (...) {
            values.push_back(-2);
        }
    }
    return values[3] + 1;
}
"""
FORKS = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static __attribute__((noinline)) int in_child(int n) {
    return n + 3;
}
static __attribute__((noinline)) int in_parent(int n) {
    return n - 3;
}
int main(void) {
    pid_t child = fork();
    if (!child)
        exit(in_child(4));
    int status;
    waitpid(child, &status, 0);
    return in_parent(3) + WEXITSTATUS(status) - 7;
}
"""
THREADS = """
#include <pthread.h>
static volatile int sums[4];
static void *work(void *argument) {
    long number = (long)argument;
    if (number == 2)
        sums[2] = -1;
    else
        for (int i = 0; i < 1000; i++)
            sums[number]++;
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    return sums[0] != 1000;
}
"""
TAILS = """
static volatile int seen;
static __attribute__((noinline)) int last(int n) {
    seen += n;
    return seen;
}
static __attribute__((noinline)) int second(int n) {
    if (n & 1)
        return last(n);
    return last(n * 2);
}
static __attribute__((noinline)) int unused(int n) { return second(n); }
int (*volatile chosen)(int) = second;
int main(int argc, char **argv) {
    if (argc > 3)
        chosen = unused;
    for (int i = 0; i < 5; i++)
        chosen(i * 2);
    return 0;
}
"""
PROGRAMS = {
    "branches.c": BRANCHES,
    "jumps.c": JUMPS,
    "exceptions.cc": EXCEPTIONS,
    "forks.c": FORKS,
    "threads.c": THREADS,
    "tails.c": TAILS,
}


def built(folder, name, *options):
    """Build one of the programs; return its path."""
    (folder / name).write_text(PROGRAMS[name])
    compiler = "g++" if name.endswith("cc") else "gcc"
    subprocess.run([compiler, "-g", *options, "-o", "program", name, "-lpthread"], check=True, cwd=folder)
    return folder / "program"


def gcovs(folder, name):
    """Return how often gcov says that each line has run: of templates and copies, the most."""
    (data,) = folder.glob("*.gcda")
    subprocess.run(["gcov", "-j", data.name], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (found,) = folder.glob("*.gcov.json.gz")
    lines = {}
    for file in json.loads(gzip.decompress(found.read_bytes()))["files"]:
        if file["file"].endswith(name):
            for line in file["lines"]:
                lines[line["line_number"]] = max(lines.get(line["line_number"], 0), line["count"])
    return lines


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_that_have_run_are_gcovs(tmp_path, name, level):
    program = built(tmp_path, name, level, "--coverage")
    with anyprobe.run([str(program)], cwd=str(tmp_path)) as session:
        session.cover("a.out")
        session.resume()
        session.wait(60)
        coverage = session.snapshot().coverage
    ours = coverage.files[str(tmp_path / name)]
    theirs = gcovs(tmp_path, name)
    common = ours.keys() & theirs.keys()
    assert len(common) > 9
    assert {line: bool(ours[line]) for line in common} == {line: bool(theirs[line]) for line in common}
    assert None not in ours.values()


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    """A program, and what has run of it: by line, as gcov says for the same program with the counters of its own."""
    folder = tmp_path_factory.mktemp("branches")
    program = built(folder, "branches.c", "-O0", "--coverage")
    subprocess.run([program], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    found = gcovs(folder, "branches.c")
    for each in folder.glob("*.gc*"):
        each.unlink()
    return built(folder, "branches.c", "-O0"), found


def covered(program, *options):
    """Cover a program by the command; return what it writes."""
    results = program.parent / "results"
    done = command("cover", "--counts", *options, "-o", results, "--", program)
    assert done.returncode == 0, done.stderr
    return results.read_text()


def test_the_document_has_lines_and_sums_of_them(branches):
    program, theirs = branches
    document = json.loads(covered(program, "--json", "--fold"))
    (module,), (file,) = document["modules"], document["files"]
    lines = {int(line): hits for line, hits in file["lines"].items()}
    assert file["file"] == str(program.parent / "branches.c")
    assert {line: lines[line] for line in lines.keys() & theirs.keys()} == {
        line: hits for line, hits in theirs.items() if line in lines
    }
    assert module["module"] == "program"
    assert re.fullmatch("[0-9a-f]{40}", module["build_id"])
    assert module["lines"] == {"covered": sum(map(bool, lines.values())), "total": len(lines), "unknown": 0}
    assert module["functions"]["covered"] < module["functions"]["total"]
    assert document["sites"] == []


def test_source_is_shown_with_how_often_each_line_has_run(branches):
    program, _ = branches
    shown = covered(program, "--annotate", "branches.c").splitlines()
    assert re.match(
        r"program \(pid \d+, which has ended\): \d+ of 25 lines, \d+ of \d+ blocks, \d+ of \d+ functions", shown[0]
    )
    assert "    #####    17      return n + 1;" in shown
    assert "        4    22          sum += kind_of(i);" in shown
    assert "             20      volatile int sum = 0;" not in shown
    assert "no file with code matches 'other.c'" in covered(program, "--annotate", "other.c")


def test_tracefiles_are_lcovs(branches, tmp_path):
    program, theirs = branches
    text = covered(program, "--format", "lcov")
    (tmp_path / "coverage.info").write_text(text)
    lines = {int(line): int(hits) for line, hits in re.findall(r"^DA:(\d+),(\d+)$", text, re.MULTILINE)}
    assert {line: lines[line] for line in lines.keys() & theirs.keys()} == {
        line: hits for line, hits in theirs.items() if line in lines
    }
    if shutil.which("genhtml") is None:
        pytest.skip("lcov is not installed")
    pages = ["genhtml", "-o", tmp_path / "pages", tmp_path / "coverage.info"]
    done = subprocess.run(pages, capture_output=True, text=True, check=True)
    assert f"lines......: {100 * sum(map(bool, lines.values())) / len(lines):.1f}%" in done.stdout
    assert "(2 of 3 functions)" in done.stdout


def test_coberturas_document_says_the_same(branches):
    program, _ = branches
    document = json.loads(covered(program, "--json"))
    lines = {int(line): hits for line, hits in document["files"][0]["lines"].items()}
    root = ET.fromstring(covered(program, "--format", "cobertura").partition("\n")[2].partition("\n")[2])  # noqa: S314 - our own
    (one,) = root.iter("class")
    assert "/" + one.get("filename") == document["files"][0]["file"]
    assert {int(line.get("number")): int(line.get("hits")) for line in one.iter("line")} == lines
    assert root.get("line-rate") == f"{sum(map(bool, lines.values())) / len(lines):.4f}"


def test_gcovr_reads_coberturas_document(branches, tmp_path):
    if shutil.which("gcovr") is None:
        pytest.skip("gcovr is not installed")
    version = subprocess.run(["gcovr", "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.match(r"gcovr (\d+)", version)[1]) < 8:
        pytest.skip("gcovr reads other tools' documents from version 8 on")
    program, _ = branches
    (tmp_path / "coverage.xml").write_text(covered(program, "--format", "cobertura"))
    lines = json.loads(covered(program, "--json"))["files"][0]["lines"]
    words = ["gcovr", "--cobertura-add-tracefile", tmp_path / "coverage.xml", "--txt", "-"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=program.parent)
    total = re.search(r"^TOTAL +(\d+) +(\d+)", done.stdout, re.MULTILINE)
    assert [int(each) for each in total.groups()] == [len(lines), sum(map(bool, lines.values()))]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_page_shows_source(branches, tmp_path):
    program, theirs = branches
    (tmp_path / "page.html").write_text(covered(program, "--format", "html"))
    document = opened_in_a_browser(tmp_path / "page.html")
    shown = re.findall(r'<div class="(ran|not|unknown|)"><i class="">(\d+)</i><i class="">([\d,]*)</i>', document)
    lines = {int(line): int(hits.replace(",", "")) for kind, line, hits in shown if kind}
    assert {line: lines[line] for line in lines.keys() & theirs.keys()} == {
        line: hits for line, hits in theirs.items() if line in lines
    }
    assert {kind for kind, line, _ in shown if int(line) == 17} == {"not"}


@pytest.mark.parametrize(("least", "status"), [("50", 0), ("99", 1)])
def test_too_little_is_a_failure_on_demand(branches, least, status):
    done = command("cover", "--fail-under", least, "--", branches[0])
    assert done.returncode == status, done.stderr
    assert ("--fail-under asks for 99 %" in done.stderr) == bool(status)


def test_what_ran_before_is_not_covered(run_target):
    target = run_target("aggregated.c", options=("-g",))
    earlier = target.go(3).calls["work"]
    with anyprobe.attach(target.pid) as session:
        session.cover("a.out:work", "a.out:work*", counts=True)
        before = session.snapshot().coverage
        calls = target.go(2).calls["work"] - earlier
        after = session.snapshot().coverage
    (module,) = before.modules
    assert module.blocks.covered == 0 < module.blocks.total
    (function,) = after.modules[0].functions
    assert (function.name, module.functions[0].hits) == ("work", 0)
    assert function.hits == calls > 0
    target.finish()


CHOSEN = """
static int slow(int n) { return n * 3; }
static int work(int n) {
    if (n > 5) {
        n += 2;
        return slow(n);
    }
    return n;
}
int main(int argc, char **argv) { (void)argv; return work(argc > 1 ? 9 : 0) < 0; }
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Write the documents of two runs; return their paths, and the source's."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "chosen.c").write_text(CHOSEN)
    subprocess.run(["gcc", "-g", "-O0", "-o", "chosen", "chosen.c"], check=True, cwd=folder)
    for number in (1, 2):
        words = ["cover", "--json", "-o", folder / f"{number}.json", "--", folder / "chosen"]
        done = command(*words, *["more"] * (number - 1))
        assert done.returncode == 0, done.stderr
    return folder / "1.json", folder / "2.json", str(folder / "chosen.c")


def test_a_difference_is_what_ran_in_the_second_alone(runs):
    first, second, source = runs
    shown = command("cover", "diff", first, second).stdout
    assert shown.splitlines()[0] == "3 lines, 4 blocks, 1 function ran in the second and not in the first"
    assert f"{source}: 2, 5-6" in shown
    assert command("cover", "diff", second, first).stdout.splitlines()[-1] == f"{source}: 8"
    document = json.loads(command("cover", "diff", first, second, "--json").stdout)
    assert [each["function"] for each in document["modules"][0]["symbols"]] == ["slow", "work", "main"]
    assert command("cover", "diff", first, first).stdout.startswith("0 lines, 0 blocks, 0 functions ran")


def test_runs_are_added_up(runs):
    first, second, source = runs
    document = json.loads(command("cover", "merge", first, second, second, "--json").stdout)
    assert document["files"] == [
        {"file": source, "lines": {"2": 2, "3": 3, "4": 3, "5": 2, "6": 2, "8": 1, "9": 3, "10": 3}}
    ]
    assert document["modules"][0]["lines"] == {"covered": 8, "total": 8, "unknown": 0}
    assert "DA:5,2\n" in command("cover", "merge", first, second, second, "--format", "lcov").stdout
    assert command("cover", "merge", first, "--fail-under", "90").returncode == 1
    assert command("cover", "merge", first, second, "--fail-under", "90").returncode == 0


def test_another_build_is_told_apart(runs, tmp_path):
    first, second, _ = runs
    document = json.loads(second.read_text())
    document["modules"][0]["build_id"] = "00" * 20
    (tmp_path / "other.json").write_text(json.dumps(document))
    done = command("cover", "merge", first, tmp_path / "other.json", "--json")
    assert "has changed between the runs" in done.stderr
    assert len(json.loads(done.stdout)["modules"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["merge"], "anyprobe cover merge takes documents"),
        (["diff", "{first}"], "anyprobe cover diff takes two documents"),
        (["merge", "{source}"], "has no coverage; anyprobe cover --json -o FILE, or -o RUN"),
        (["merge", "/no/such/file"], "No such file or directory"),
        (["diff", "{first}", "{second}", "--", "true"], "anyprobe cover diff is of documents, not of programs"),
    ],
)
def test_what_is_no_coverage_is_said(runs, words, said):
    first, second, source = runs
    done = command("cover", *(each.format(first=first, second=second, source=source) for each in words))
    assert (done.returncode in {1, 2}, said in done.stderr) == (True, True), done.stderr


def test_without_debug_information_there_are_blocks_alone(tmp_path):
    program = build("stripped.c", "-O1", "-s", text=BRANCHES)
    shown = covered(program, "--annotate", "*.c")
    assert re.search(r": \d+ of \d+ blocks, \d+ of \d+ functions covered", shown)
    assert "no lines of stripped: stripped has no debug information" in shown
    done = command("cover", "--format", "lcov", "-o", str(tmp_path / "lines"), "--", str(program))
    assert "is of lines, and none are known: stripped: stripped has no debug information" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cover", "kernel::vfs_read", "--lazy", "--for", "1"], "--lazy is for programs"),
        (["cover", "--format", "flame", "--", "true"], "--format flame is of trees of calls"),
        (["count", "a.out:main", "--format", "lcov", "--", "true"], "--format lcov is of coverage"),
        (["cover", "--format", "lcov", "--every", "1", "--", "true"], "--every would write several"),
        (["cover", "a.out:no_such_function", "--", "true"], "no_such_function"),
    ],
)
def test_what_cannot_be_is_one_line(words, said):
    done = command(*words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_archives_are_added_up_and_compared_like_documents(runs, tmp_path):
    first, second, source = runs
    program = first.parent / "chosen"
    kept = tmp_path / "second.aprobe"
    assert command("cover", "-o", kept, "--", program, "more").returncode == 0
    shown = command("cover", "diff", first, kept).stdout
    assert shown.splitlines()[0] == "3 lines, 4 blocks, 1 function ran in the second and not in the first"
    assert command("cover", "diff", second, kept).stdout.startswith("0 lines, 0 blocks, 0 functions ran")
    document = json.loads(command("cover", "merge", first, kept, second, "--json").stdout)
    assert document["files"] == [
        {"file": source, "lines": {"2": 2, "3": 3, "4": 3, "5": 2, "6": 2, "8": 1, "9": 3, "10": 3}}
    ]
    other = tmp_path / "count.aprobe"
    assert command("count", "a.out:main", "-o", other, "--", program).returncode == 0
    done = command("cover", "merge", other)
    assert (done.returncode, "has no coverage" in done.stderr) == (2, True), done.stderr


def read_drcov(content):
    """Return the modules and the blocks of a drcov file, as its format is described: by id, and (start, size, id)."""
    head, _, rest = content.partition(b"BB Table: ")
    lines = head.decode().splitlines()
    assert lines[:2] == ["DRCOV VERSION: 2", "DRCOV FLAVOR: drcov"]
    count = int(re.fullmatch(r"Module Table: version 2, count (\d+)", lines[2])[1])
    assert lines[3] == "Columns: id, base, end, entry, checksum, timestamp, path"
    rows = [line.split(", ", 6) for line in lines[4:]]
    assert len(rows) == count
    number, _, binary = rest.partition(b" bbs\n")
    blocks = list(struct.iter_unpack("<IHH", binary))
    assert len(blocks) == int(number)
    return {int(row[0]): row for row in rows}, blocks


def test_drcov_has_the_blocks_that_have_run(branches, tmp_path):
    program, _ = branches
    results = tmp_path / "blocks.drcov"
    assert command("cover", "--format", "drcov", "-o", results, "--", program).returncode == 0
    modules, blocks = read_drcov(results.read_bytes())
    document = json.loads(covered(program, "--json"))
    (module,), (row,) = document["modules"], modules.values()
    assert row[6] == str(program)
    ran = {
        (each["start"] + int(offset) - module["base"], each["sizes"][offset])
        for each in module["symbols"]
        for offset, hits in each["blocks"].items()
        if hits
    }
    assert {(start, size) for start, size, _ in blocks} == ran
    assert len(blocks) == module["blocks"]["covered"] > 10
    # the bytes of blocks are whole instructions, of which the last alone branches or calls
    listing = ["objdump", "-d", "--insn-width=15", program]
    shown = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ +([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *\t(?:bnd )?(j|call|ret)?", shown, re.MULTILINE)
    ends = {int(at, 16): int(at, 16) + len(content.split()) for at, content, _ in found}
    branching = {int(at, 16) for at, _, branch in found if branch}
    for start, size in ran:
        at = start + module["base"]
        while ends[at] < start + size + module["base"]:
            assert at not in branching
            at = ends[at]
        assert ends[at] == start + size + module["base"]
