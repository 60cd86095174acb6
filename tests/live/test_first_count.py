"""What it takes to count one function, or a value: most of a short command's time is the import of modules."""

import os
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
MOST, MOST_OF_HIST = 208, 365
"""Modules of anyprobe's own, packages aside, which are documentation only: of ``count``, and of ``hist``."""
NEEDLESS = {
    "conditions and scripts": (
        "cli.handlers.expressions",
        "cli.handlers.handlerplaces",
        "cli.handlers.handlertext",
        "cli.handlers.scripts",
    ),
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
    "reports of other commands": (
        "data.findings.leftover",
        "data.aggregates.results",
        "data.findings.explanation",
        "reports.histogram",
    ),
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
    "timing": (
        "probes.providers.function.timing.return_points",
        "probes.providers.function.timing.unwinding",
        "splice.codegen.timing.exit_routines",
    ),
    "compilers": ("handlers.llvm",),
}
"""What one plain counter has no use for, the second time that the program is looked at."""

NEEDLESS_FOR_HIST = {
    "compilers": ("handlers.llvm", "handlers.x86.native", "handlers.x86.simple"),
    "handlers in the kernel": ("handlers.bpf", "kprobes"),
    "handlers for other languages and markers": (
        "handlers.frontend.marker_parameters",
        "handlers.types.go_types",
        "handlers.types.rust_types",
    ),
    "starting programs": ("target.process.launch",),
}
"""What the histogram of a parameter has no use for, the second time."""


@pytest.fixture(scope="module")
def target():
    """Return the program that is probed."""
    return build("first_count.c", text=PROGRAM)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return a cache of their own: others may fill the usual one, so that something has to go."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def imported(target, cache):
    """Return the modules that the second run of a count imports."""
    return imported_by(target, cache, "count")


@pytest.fixture(scope="module")
def imported_by_hist(target, cache):
    """Return the modules that the second run of a histogram of a parameter by thread imports."""
    return imported_by(target, cache, "hist", "--of", "arg0", "--by", "tid")


def imported_by(target, cache, name, *options):
    """Return the modules that a command's second run imports."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen([target], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            arguments = [name, "-p", str(process.pid), "a.out:work", *options, "--for", "0"]
            command = [sys.executable, "-c", COMMAND, *arguments]
            for _ in range(2):
                done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
                assert done.returncode == 0, done.stderr
        finally:
            process.kill()
    assert "work" in done.stdout or name == "hist"
    return set(done.stdout.rpartition("\nimported ")[2].split())


def is_package(name):
    return find_spec(name).submodule_search_locations is not None


def own(imported):
    """Return anyprobe's own modules of some."""
    return sorted(name for name in imported if name.startswith("anyprobe.") and not is_package(name))


@pytest.mark.parametrize("what", [*NEEDLESS.values(), *NEEDLESS_FOR_HIST.values()])
def test_what_is_not_needed_exists(what):
    assert all(find_spec(f"anyprobe.{name}") for name in what)


@pytest.mark.parametrize("what", NEEDLESS)
def test_a_count_imports_nothing_that_it_has_no_use_for(imported, what):
    found = [name for name in NEEDLESS[what] if f"anyprobe.{name}" in imported]
    assert found == []


def test_a_count_imports_few_modules(imported):
    assert len(own(imported)) <= MOST, own(imported)


@pytest.mark.parametrize("what", NEEDLESS_FOR_HIST)
def test_a_histogram_imports_nothing_that_it_has_no_use_for(imported_by_hist, what):
    found = [name for name in NEEDLESS_FOR_HIST[what] if f"anyprobe.{name}" in imported_by_hist]
    assert found == []


def test_a_histogram_imports_few_modules(imported_by_hist):
    assert len(own(imported_by_hist)) <= MOST_OF_HIST, own(imported_by_hist)


def test_a_count_imports_no_heavy_library(imported):
    """They are imported by the commands that need them."""
    assert imported.isdisjoint(("llvmlite", "asyncio", "sqlite3", "rich", "importlib.metadata"))
