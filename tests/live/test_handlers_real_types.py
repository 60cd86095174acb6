"""Handlers that follow the structs of programs that people run, by their debug information."""

import subprocess

import pytest

import anyprobe
from anyprobe import Count, cstr, ptr
from anyprobe.binary.images.image import Image
from anyprobe.core.errors import UnsupportedTarget

pytestmark = pytest.mark.live
PYTHON = "/usr/bin/python3.11"
PROGRAM = """
import sys
def alpha(x): return x
def beta(x): return -x
class Gamma:
    def __init__(self, x): self.x = x
print("ready", flush=True)
sys.stdin.readline()
list(map(alpha, range(1000)))
sorted(range(500), key=beta)
list(map(Gamma, range(20)))
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def interpreter():
    try:
        Image.open(PYTHON).debug_info.function(0)
    except UnsupportedTarget as error:
        if "no debug information" in str(error):
            pytest.skip(f"{error} (python3.11-dbg)")
    command = [PYTHON, "-I", "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.stdin.close()
            process.wait(180)


def test_the_name_of_each_function_that_c_code_calls_in_cpython(interpreter):
    frames, functions = Count("frames", by=("name",)), Count("functions", by=("name",))
    with anyprobe.attach(interpreter.pid) as session:
        function, text = session.type("PyFunctionObject"), session.type("PyASCIIObject")

        @session.entry("a.out:_PyEval_EvalFrameDefault")
        def on_frame(frame):
            frames[cstr(ptr[text](frame.f_code.co_name) + 1, 32)].add()

        @session.entry("a.out:_PyFunction_Vectorcall")
        def on_call(func: ptr[function]):
            functions[cstr(ptr[text](func.func_name) + 1, 32)].add()

        interpreter.stdin.write("\n")
        interpreter.stdin.flush()
        assert interpreter.stdout.readline() == "done\n"
        assert session.handling.misses() == {"fault": 0, "abandoned": 0, "division": 0}
    expected = {"alpha": 1000, "beta": 500}
    assert expected.items() <= named(functions).items()
    assert (expected | {"__init__": 20}).items() <= named(frames).items()


def named(aggregation):
    return {key[0]: cell.count for key, cell in aggregation.result().entries.items()}
