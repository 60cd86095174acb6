"""Programs and all their libraries counted by instruction and by call, beside callgrind: each difference has its rule.

Not compared are the loader and the vdso: Valgrind loads a library of its own and stands in for the vdso.
"""

import re

import pytest

from support import callgrind
from support.filter_programs import FILTERS
from support.independent import differences, run_counted, specs_of_functions

ENVIRONMENT = {"LC_ALL": "C", "OPENSSL_ia32cap": "~0x40000000:~0xfffffffff02b0000"}
"""Without what Valgrind's processor lacks (AVX-512, SHA, ADX) and who made it: which functions that chooses."""
PROGRAMS = ("gzip", "gunzip", "xz", "unxz", "zstd", "bc", "sqlite3", "sha256", "aes-cbc")
LEAST = {
    "gzip": (3100, 65), "gunzip": (3600, 70), "xz": (9000, 200), "unxz": (10_000, 165), "zstd": (12_000, 220),
    "bc": (8300, 140), "sqlite3": (57_000, 1000), "sha256": (22_000, 770), "aes-cbc": (22_000, 780),
}  # fmt: skip
"""How many instructions, and how many functions, are to be equal."""
MOST_REFUSED = 0.001
"""Of the instructions that run."""
SINGLE_THREADED = {"xz": ("-T1",), "zstd": ("--single-thread", "--no-asyncio")}
CHOSEN = re.compile(r"_(sse\w*|ssse\w*|avx\w*|evex\w*|erms|fma\w*|aesni\w*|shaext)$|_(sse|avx|evex)[0-9]*_")
"""What IFUNCs and their like choose by CPUID, which is another processor's under Valgrind."""
ELSEWHERE = {
    "getenv": "Valgrind adds to the environment",
    "secure_getenv": "the same",
    "__cxa_finalize": "once for each object, Valgrind's among them",
    "__unregister_atfork": "the same",
    "clock_gettime": "the vdso's or the system call, as the loader finds",
    "__clock_gettime": "the same",
    "time": "the same",
    "gettimeofday": "the same",
    "_Exit": "the block in which the program ends is not counted there",
    "__libc_early_init": "asks for what the stack and the processor have",
    "__x86_cacheinfo": "the processor's caches",
    "_dl_addr": "looks through the objects",
    "OPENSSL_cleanse": "by bytes up to an aligned one: the key among the arguments lies where the environment ends",
    "_init": "not in its output, where it has that name",
    "_fini": "the same",
}
CPUID = b"\x0f\xa2"


def functions_that_ask_for_the_processor(module):
    """Return the functions with a ``cpuid`` of their own: Valgrind answers as another processor."""
    return {name for address, name in module.functions.items() if name and module.text.read(address, 2) == CPUID}


def explained(module, address, function, ours, theirs):
    """Return whether the difference at an address is one that must be."""
    if function in ELSEWHERE or CHOSEN.search(function) or function in functions_that_ask_for_the_processor(module):
        return True
    return (theirs == 0 and module.is_outside_of_text(address)) or (function == "" and theirs <= 1)  # start code


def entered_otherwise(ours, calls, ran):
    """Return whether a function is also jumped to or run into from code that callgrind takes for a part of it.

    In a stripped program that is whatever lies between two symbols; what its first instruction counted shows it.
    """
    return calls < ours == ran


def begun_again(ours, calls, ran):
    """Return whether a function's jumps back to its own first instruction are calls to callgrind; they are no entry."""
    return ours < calls == ran


class Comparison:
    """What was found in all modules of a program but the loader."""

    def __init__(self, theirs, calls):
        self.theirs, self.calls = theirs, calls
        self.equal = self.run = self.hits = self.refused = self.elsewhere = self.explained = 0
        self.functions_equal = self.functions_run = 0
        self.wrong = []

    def compared(self, modules):
        """Yield the modules that callgrind knows, with what it has counted there."""
        for name, module in modules.items():
            if not name.startswith("ld-linux") and module.path in self.theirs:
                yield name, module, self.theirs[module.path]

    def compare_instructions(self, modules):
        for name, module, there in self.compared(modules):
            found = differences(module, {at: count for at, count in there.items() if at in module.hits})
            same = [count for at, count in module.hits.items() if count > 0 and there.get(at) == count]
            self.equal += len(same)
            self.hits += sum(same)
            self.run += sum(count > 0 for count in there.values())
            self.refused += sum(there.get(at, 0) > 0 for at in module.refused)
            self.elsewhere += sum(at not in module.hits and at not in module.refused for at in there)
            for at, (function, ours, count) in found.items():
                self._differs(name, module, at, function, ours, count)

    def compare_functions(self, modules):
        """The hits of entries and the calls; what nobody has called here or there is equal, and is not counted."""
        for name, module, ran in self.compared(modules):
            calls = self.calls.get(module.path, {})
            for at, ours in module.hits.items():
                self.functions_run += ours > 0
                self.functions_equal += ours > 0 and ours == calls.get(at, 0)
                three = ours, calls.get(at, 0), ran.get(at, 0)
                if ours != three[1] and not entered_otherwise(*three) and not begun_again(*three):
                    self._differs(name, module, at, module.functions[at], *three[:2])

    def _differs(self, name, module, at, function, ours, count):
        if explained(module, at, function, ours, count):
            self.explained += 1
        else:
            self.wrong.append(f"{name} {function} {at:#x}: {ours}, {count}")

    def __str__(self):
        return (
            f"{self.equal} of {self.run} instructions equal, {self.hits} hits; {self.refused} of them refused, "
            f"{self.elsewhere} not asked; {self.functions_equal} of {self.functions_run} functions called as often, "
            f"{self.explained} differences explained"
        )


def run_unhindered(argv, specs, directory, **facts):
    """Count until the pipe was never full, which is chance: xz then waits for room by ``poll``."""
    for _ in range(5):
        output, snapshot, modules = run_counted(argv, [*specs, "libc:poll"], directory, **facts)
        if sum(site.hits for site in snapshot.sites if site.spec.endswith(":poll:entry")) == 0:
            break
    return output, snapshot, modules


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_instructions_that_run(name, tmp_path):
    """All functions that are entered, counted by instruction in the executable and its libraries."""
    program = FILTERS[name]()
    argv = [*program.argv, *SINGLE_THREADED.get(name, ())]
    given = tmp_path / "given"
    given.write_bytes(program.given)
    facts = {"given": given, "environment": ENVIRONMENT}
    expected, theirs, calls = callgrind.profile(argv, tmp_path, **facts)
    found = Comparison(theirs, calls)
    output, entries, modules = run_unhindered(argv, ["*:*"], tmp_path, **facts)
    assert output == expected
    found.compare_functions(modules)
    output, snapshot, modules = run_unhindered(argv, specs_of_functions(entries), tmp_path, **facts)
    assert output == expected
    assert snapshot.nmissed == 0
    found.compare_instructions(modules)
    print(f"{name}: {found}", *found.wrong, sep="\n    ")
    assert not found.wrong, "\n".join(found.wrong[:40])
    assert found.equal >= LEAST[name][0]
    assert found.functions_equal >= LEAST[name][1]
    assert found.refused <= found.equal * MOST_REFUSED
