"""Programs and all their libraries counted by instruction, beside callgrind: each difference has its rule.

Not compared are the loader and the vdso: Valgrind loads a library of its own and stands in for the vdso.
"""

import re

import pytest

import callgrind
from live.filter_programs import FILTERS
from live.independent import differences, run_counted, specs_of_functions

ENVIRONMENT = {"LC_ALL": "C", "OPENSSL_ia32cap": "~0x40000000:~0xfffffffff02b0000"}
"""Without what Valgrind's processor lacks (AVX-512, SHA, ADX) and who made it: which functions that chooses."""
PROGRAMS = ("gzip", "gunzip", "xz", "unxz", "zstd", "bc", "sqlite3", "sha256", "aes-cbc")
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
    return function == "" and theirs <= 1  # the start code between functions, which runs once


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_instructions_that_run(name, tmp_path):
    """All functions that are entered, counted by instruction in the executable and its libraries."""
    program = FILTERS[name]()
    argv = [*program.argv, *SINGLE_THREADED.get(name, ())]
    given = tmp_path / "given"
    given.write_bytes(program.given)
    facts = {"given": given, "environment": ENVIRONMENT}
    expected, theirs = callgrind.count_instructions(argv, tmp_path, **facts)
    output, entries, _ = run_counted(argv, ["*:*"], tmp_path, **facts)
    assert output == expected
    output, snapshot, modules = run_counted(argv, specs_of_functions(entries), tmp_path, **facts)
    assert output == expected
    assert snapshot.nmissed == 0
    wrong = []
    for module_name, module in modules.items():
        if module_name.startswith("ld-linux") or module.path not in theirs:
            continue
        there = theirs[module.path]
        found = differences(module, {at: count for at, count in there.items() if at in module.hits})
        equal = sum(count > 0 and there.get(at) == count for at, count in module.hits.items())
        hits = sum(module.hits[at] for at in module.hits if there.get(at) == module.hits[at])
        other = {at: what for at, what in found.items() if not explained(module, at, *what)}
        print(f"{name}, {module_name}: {equal} instructions equal, {hits} hits; {len(module.refused)} refused, "
              f"{len(found) - len(other)} explained")  # fmt: skip
        wrong += [f"{module_name} {function} {at:#x}: {ours}, {count}" for at, (function, ours, count) in other.items()]
        missing = {at: count for at, count in there.items() if at not in module.hits and at not in module.refused}
        print(f"    run there and not asked for here: {len(missing)}")
    print("\n".join(wrong))
    assert not wrong, "\n".join(wrong[:40])
