"""Perl's own tests, each in a child of an interpreter with everything counted or timed: the same verdicts."""

import shutil
import subprocess

import pytest

from support.debian_sources import original_of, run
from support.driver import cache_directory
from support.filters import EACH, TIMED, Filter, check_timings, functions_run, print_shares, probed_at, run_at

pytestmark = [pytest.mark.live, pytest.mark.torture]
MOST = {"blocks": 1500, "instructions": 200}
FOLDERS = ("base", "cmd", "comp", "mro", "op", "opbasic", "re", "uni")
UNSTEADY = {"op/magic.t", "op/alarm.t", "op/sleep.t", "op/time.t", "op/time_loop.t", "op/threads.t", "re/fold_grind.t"}
"""Looks at its own process, at the time, or takes minutes."""
KILLED = 20
"""More children than its tests kill: most had to end a test that takes too long."""
DRIVER = r"""
$| = 1;
chdir shift @ARGV or die;
print "ready\n";
<STDIN>;
for my $name (@ARGV) {
    my $child = open(my $said, "-|") // die;
    if (!$child) {
        open STDERR, ">", "/dev/null"; open STDIN, "<", "/dev/null"; @ARGV = (); $0 = $name; alarm 1000;
        package main; do "./$name"; exit;
    }
    while (<$said>) { print "$1\n" if /^((?:not )?ok \d+|1\.\.\d+)/ }
    close $said;
    print "$name: $?\n";
}
"""


@pytest.fixture(scope="module")
def tests():
    """The folder of the tests, with the modules of the installed interpreter where they look for those."""
    version = subprocess.run(["perl", "-e", "printf '%vd', $^V"], capture_output=True, text=True, check=True).stdout
    folder = cache_directory() / f"perl-{version}-tests"
    if not (folder / "lib" / "strict.pm").exists():
        archive = original_of("perl", folder)
        if f"_{version}." not in archive.name:
            pytest.skip(f"{archive.name} is not of the installed version, {version}")
        wanted = [f"perl-{version}/{each}" for each in ("t", "lib/*.t", "lib/*.pl")]
        run("tar", "xf", str(archive), "--strip-components=1", "-C", str(folder), "--wildcards", *wanted)
        for each in (f"/usr/share/perl/{version}", f"/usr/lib/x86_64-linux-gnu/perl/{version}"):
            shutil.copytree(each, folder / "lib", dirs_exist_ok=True)
    names = sorted(f"{each}/{test.name}" for each in FOLDERS for test in (folder / "t" / each).glob("*.t"))
    return folder / "t", [name for name in names if name not in UNSTEADY]


@pytest.fixture(scope="module")
def program(tests):
    folder, names = tests
    argv = ("perl", "-e", DRIVER, folder, *names)
    return Filter("Perl's tests", argv, b"go\n", announces=True, environment={"PERL_HASH_SEED": "0"}, patience=3000)


@pytest.fixture(scope="module")
def expected(program):
    verdicts = program.plain()
    assert verdicts.count(b"\nok ") > 100_000
    return verdicts


def test_entries_and_exits_then_what_runs(program, expected):
    output, snapshot = probed_at(program, "exits")
    print_shares("Perl's tests, exits", snapshot)
    assert differences(output, expected) == []
    for level in EACH:
        assert differences(run_at(program, level, functions_run(snapshot), MOST[level]), expected) == []


@pytest.mark.parametrize("level", TIMED)
def test_all_functions_timed(level, program, expected):
    output, snapshot = probed_at(program, level)
    print_shares(f"Perl's tests, {level}", snapshot)
    assert differences(output, expected) == []
    check_timings(f"Perl's tests, {level}", snapshot, jumps_out=True, kills=KILLED)


def differences(output: bytes, expected: bytes) -> list[str]:
    """Return the first tests of which some verdict is another one."""
    ours, others = by_test(output), by_test(expected)
    return [name for name in sorted({*ours, *others}) if ours.get(name) != others.get(name)][:5]


def by_test(output: bytes) -> dict[str, tuple[str, ...]]:
    found, said = {}, []
    for line in output.decode().splitlines():
        said.append(line)
        if ".t: " in line:
            found[line.split(":")[0]] = tuple(said)
            said = []
    return found
