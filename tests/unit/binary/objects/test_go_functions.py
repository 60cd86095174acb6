import shutil
import subprocess

import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.images.image import Image
from anyprobe.binary.liveness.goroutine_register import fetches_goroutine

SOURCE = """package main

import ("os"; "strings")

//go:noinline
func work(n int) int { return n * 3 }

func main() { println(work(len(os.Args)), strings.Index("abc", "c")) }
"""


@pytest.fixture(scope="module", params=[(), ("-buildmode=pie",), ("-ldflags=-s -w",)])
def image(request, tmp_path_factory, build):
    folder = tmp_path_factory.mktemp("go")
    (folder / "main.go").write_text(SOURCE)
    try:
        build.run("go", "build", "-o", folder / "program", *request.param, folder / "main.go")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"go cannot build here: {error.stderr[-200:]}")
    return Image.open(str(folder / "program"))


def test_the_version_says_where_a_goroutine_has_its_number(image):
    found = image.text().go_functions
    said = subprocess.run(["go", "version"], check=True, capture_output=True, text=True).stdout
    assert found.version is not None
    assert found.version in said.split()
    debugged = 152 if "debug_info" in str([each.name for each in image.elf.sections]) else None
    for version, place in (
        ("go1.18", 152), ("go1.22.5", 152), ("go1.23.1", 160), ("go1.24", 160), ("go1.25.5", 152), ("go1.27.3", 152),
        ("go1.28.1", debugged), ("devel +a1b2", debugged), (None, debugged),
    ):  # fmt: skip
        found.version = version
        assert found.number_at == place
    found.version, found.by_debug_info = "go1.28", None
    assert found.number_at is None


def test_functions_that_have_their_goroutine_at_hand(image):
    """Those that the compiler has made, but for its wrappers that assembly calls."""
    text = image.text()
    code_map = CodeMap(text)
    named = {
        name: [function.start for function in image.functions.match(name)]
        for name in ("main.*", "runtime.gopanic", "runtime.mstart0*", "runtime.memmove*", "runtime.asyncPreempt*",
                     "runtime.systemstack*", "runtime.gogo*", "strings.*")
    }  # fmt: skip
    compiled = [*named["main.*"], *named["runtime.gopanic"], *named["strings.*"]]
    assert all(text.go_functions.is_compiled(at) and not fetches_goroutine(code_map.function_at(at)) for at in compiled)
    assembly = [at for name in ("runtime.memmove*", "runtime.gogo*", "runtime.systemstack*") for at in named[name]]
    assert len(assembly) >= 3
    assert not any(text.go_functions.is_compiled(at) for at in assembly)
    wrapped = [fetches_goroutine(code_map.function_at(at)) for at in named["runtime.mstart0*"]]
    assert sorted(wrapped) == [False, True]
    assert not text.go_functions.is_compiled(min(each.start for each in text.ranges) - 64)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_c_code_that_go_s_linker_has_linked_is_not_go_s(tmp_path, build):
    (tmp_path / "main.go").write_text('package main\n\nimport "net"\n\nfunc main() { net.LookupHost("localhost") }\n')
    try:
        build.run("go", "build", "-o", tmp_path / "program", tmp_path / "main.go")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"go cannot build here: {error.stderr[-200:]}")
    image = Image.open(str(tmp_path / "program"))
    text = image.text()
    c_code = [function.start for function in image.functions.match("x_cgo_*")]
    assert len(c_code) > 3
    assert not any(text.go_functions.is_compiled(at) or text.parking.is_ordinary(at) for at in c_code)
    assert all(text.parking.is_ordinary(function.start) for function in image.functions.match("net.*"))
