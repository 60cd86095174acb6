"""The examples of docs/api.md, run on a program that has the functions that they name."""

import re
import subprocess
from pathlib import Path

import pytest

import anyprobe
from support.driver import build

pytestmark = pytest.mark.live
PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLES = dict(re.findall(r"^### ([^\n]+)\n[^#]*?```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
ELSEWHERE = {"kernel", "run", "attach_self"}
"""Sessions of other kinds, which have tests of their own."""
PROGRAM = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
struct point { int x; double y; };
__asm__(".globl parse\n.type parse,@function\n"
        "parse: lea 1(%rdi),%eax\n .skip 0x19, 0x90\n lea 2(%rax),%eax\n ret\n .size parse,.-parse");
int parse(int n);
__attribute__((noinline)) void serve(int n) { volatile char *p = malloc(n + 65); p[0] = 1; free((void *)p); parse(n); }
__attribute__((noinline)) void move(struct point *p) { p->y += 1; __asm__ volatile("" ::: "memory"); }
int main(void) {
    struct point p = {1, 2};
    for (int i = 0;; i++) {
        char b[4];
        serve(i % 100);
        move(&p);
        int f = open("/dev/null", O_RDONLY);
        if (read(f, b, 4) < 0) return 1;
        close(f);
        usleep(1000);
    }
}
"""


@pytest.fixture(scope="module")
def pids():
    """Yield the ids of two processes of the program."""
    program = build("api_examples.c", text=PROGRAM)
    running = [subprocess.Popen([program]) for _ in range(2)]
    yield [each.pid for each in running]
    for each in running:
        assert each.poll() is None, "the program lives on"
        each.kill()
        each.wait()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ELSEWHERE])
def test_it_runs(name, pids, tmp_path):
    text = EXAMPLES[name].replace("4242", str(pids[0])).replace("4243", str(pids[1]))
    text = text.replace("time.sleep(5)", "time.sleep(0.01)").replace("pump(5)", "pump(0.01)").replace("=1.0", "=0.01")
    path = tmp_path / "example.py"
    path.write_text(text)
    code = compile(text, str(path), "exec")
    if "anyprobe." in text:
        exec(code, {"__name__": "example"})  # noqa: S102 - the example
        return
    with anyprobe.attach(pids[0]) as session:
        if "sites" in text:
            session.count("libc:malloc")
        exec(code, {"__name__": "example", "session": session})  # noqa: S102 - the example
        assert session.refused == [] or "%return" in text
