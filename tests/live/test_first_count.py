"""What it takes to count one function: most of a short command's time is the import of modules."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from support.driver import build

PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) long work(long n) { __asm__ volatile(""); return n + 1; }
int main(void) { long n = 0; puts("ready"); fflush(stdout); for (;;) { n = work(n); usleep(1000); } return n == 0; }
"""
COMMAND = """
import sys, anyprobe.cli
status = anyprobe.cli.main(sys.argv[1:])
print("\\nimported", *sys.modules)
sys.exit(status)
"""
MOST = 196
"""Modules of anyprobe's own, packages aside, which are documentation only."""
NEEDLESS = {
    "conditions and scripts": ("cli.expressions", "cli.handlerplaces", "cli.handlertext", "cli.scripts"),
    "handlers": (
        "core.code",
        "handlers",
        "splice.codegen.handlers.call",
        "splice.codegen.handlers.facts",
        "splice.codegen.handlers.inline",
    ),
    "what shows signal handlers the program's own pcs": (
        "splice.codegen.fronts",
        "splice.translate.patches",
        "splice.translate.table",
    ),
    "arming without a stop": ("splice.apply.live.changes", "splice.apply.live.writes", "target.process.helper_thread"),
    "starting programs": ("target.process.launch",),
    "the kernel": ("kprobes",),
    "reports of other commands": ("data.leftover", "data.results", "data.explanation", "reports.histogram"),
    "what the cache has of the module": (
        "binary.dwarf.debug_info",
        "binary.objects.demangle",
        "binary.images.entries",
        "binary.flow.evidence",
        "binary.flow.exits",
        "binary.restrictions.forbidden",
        "binary.discovery.gap_code",
        "binary.flow.jump_tables",
        "binary.flow.last_calls",
        "binary.liveness.entry",
        "binary.liveness.module",
        "binary.images.noreturn",
        "binary.images.reconcile",
        "binary.objects.relocations",
        "binary.flow.escaping_jumps",
        "binary.unwind.eh_frame",
        "binary.unwind.rules",
    ),
    "planning, where plans are remembered": (
        "splice.plan.strategies.chained_puns",
        "splice.plan.strategies.eviction",
        "splice.plan.planner",
        "splice.plan.strategies.pun_rows",
    ),
    "timing": ("probes.timing.return_points", "probes.timing.unwinding", "splice.codegen.exit_routines"),
    "compilers": ("handlers.llvm",),
}
"""What one plain counter has no use for, the second time that the program is looked at."""


@pytest.fixture(scope="module")
def imported():
    """Return the modules that the second run of a count imports."""
    target = build("first_count.c", text=PROGRAM)
    with subprocess.Popen([target], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            count = ["count", "-p", str(process.pid), "a.out:work", "--for", "0"]
            command = [sys.executable, "-c", COMMAND, *count]
            for _ in range(2):
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, done.stderr
        finally:
            process.kill()
    assert "work" in done.stdout
    return set(done.stdout.rpartition("\nimported ")[2].split())


def is_package(name):
    return find_spec(name).submodule_search_locations is not None


@pytest.mark.parametrize("what", NEEDLESS)
def test_what_a_count_does_not_need_exists(what):
    assert all(find_spec(f"anyprobe.{name}") for name in NEEDLESS[what])


@pytest.mark.parametrize("what", NEEDLESS)
def test_a_count_imports_nothing_that_it_has_no_use_for(imported, what):
    found = [name for name in NEEDLESS[what] if f"anyprobe.{name}" in imported]
    assert found == []


def test_a_count_imports_few_modules(imported):
    own = sorted(name for name in imported if name.startswith("anyprobe.") and not is_package(name))
    assert len(own) <= MOST, own


def test_a_count_imports_no_heavy_library(imported):
    """They are imported by the commands that need them."""
    assert imported.isdisjoint(("llvmlite", "asyncio", "sqlite3", "rich", "importlib.metadata"))
