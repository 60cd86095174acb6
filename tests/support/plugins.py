"""A program that loads a library, calls its ``plugin_work`` a thousand times, and unloads it, as it is told."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.driver import PATIENCE, build
from support.standing import standing

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = 0;
    int (*work)(int) = 0, c;
    (void)argc;
    puts("ready"); fflush(stdout);
    while ((c = getchar()) != EOF) {
        if (c == 'l') { library = dlopen(argv[1], RTLD_NOW); work = (int (*)(int))dlsym(library, "plugin_work"); }
        if (c == 'u') dlclose(library);
        if (c == 'w') for (int n = 0; n < 1000; n++) work(n);
        if (c != '\\n') { puts("done"); fflush(stdout); }
    }
}
"""


def is_gated(pid: int) -> bool:
    """Return whether threads of a process wait where they load libraries: the loader's notifier is spliced."""
    return any(each.symbol == "_dl_debug_state" for each in standing(pid))


@contextmanager
def loading(library: Path) -> Iterator[Any]:
    """Run the program; what is yielded takes letters: ``l`` loads, ``w`` works, ``u`` unloads."""
    with told(build("loads_plugin.c", "-ldl", text=PROGRAM), library) as do:
        yield do


@contextmanager
def told(*command: Path) -> Iterator[Any]:
    """Run a program that does as it is told, up to its own end; what is yielded takes letters."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield doing(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
        finally:
            process.kill()


def doing(process: Any) -> Any:
    """Return what has a program do things, each for a letter, once it is ready; ``pid``: its own."""
    assert process.stdout.readline() == "ready\n"

    def do(letters: str) -> None:
        for letter in letters:
            process.stdin.write(letter + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

    do.pid = process.pid  # type: ignore[attr-defined]
    return do
