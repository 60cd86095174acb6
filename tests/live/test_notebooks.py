"""The magics of IPython, called as its shell calls them: what a cell calls is counted."""

import ast
import json
import linecache
import zlib
from pathlib import Path

import pytest

import anyprobe

pytestmark = pytest.mark.live

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


class Shell:
    """What the magics know of IPython's shell."""

    def __init__(self):
        self.magics, self.names = {}, {"zlib": zlib}

    def register_magic_function(self, function, magic_kind="line", magic_name=None):
        self.magics[magic_kind, magic_name] = function

    def run_cell(self, cell):
        exec(cell, self.names)  # noqa: S102 - that is what a cell is for


@pytest.fixture
def shell():
    found = Shell()
    anyprobe.load_ipython_extension(found)
    return found


def calls(snapshot):
    return {each.function: each.count for each in snapshot.functions}


def test_a_cell_is_probed(shell):
    found = shell.magics["cell", "probe"]("libz:deflateEnd libz:crc32", "for _ in range(5): zlib.compress(b'x')")
    assert calls(found) == {"deflateEnd": 5}
    assert "deflateEnd" in found._repr_html_()
    found = shell.magics["cell", "probe"]("--count libz:deflateEnd", "zlib.compress(b'x')")
    assert found.hits == 1


def test_a_session_is_kept_from_cell_to_cell(shell, capsys):
    magic = shell.magics["line", "anyprobe"]
    assert magic("libz:deflateEnd") is None
    zlib.compress(b"x")
    assert calls(magic("")) == {"deflateEnd": 1}
    zlib.compress(b"x")
    shell.magics["cell", "probe"]("libz:deflateEnd", "")
    assert "%anyprobe off ends it" in capsys.readouterr().err
    assert calls(magic("off")) == {"deflateEnd": 2}
    magic("")
    assert capsys.readouterr().err == "anyprobe: nothing is probed: %anyprobe SPEC... begins\n"


def test_what_names_nothing_is_said(shell, capsys):
    shell.magics["cell", "probe"]("", "")
    assert capsys.readouterr().err.startswith("anyprobe: %%probe [--count] SPEC...: name functions")


def test_sessions_are_a_line_and_a_page(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:fib")
        assert repr(session) == f"<Session on nested_calls (pid {target.pid}): 1 probe, 1 armed>"
        assert "fib" in session._repr_html_()
    assert "1 probe, detached" in repr(session)
    with anyprobe.attach_self() as session:
        assert "pid" in repr(session)
        assert "Snapshot of" in session._repr_html_()


def test_the_notebook_of_the_examples_runs_and_counts_what_it_does(shell, capsys):
    def run(source):
        """Run a cell as IPython does, and return what it shows."""
        first, _, rest = source.partition("\n")
        name, _, line = first.partition(" ")
        if name.startswith("%%"):
            return shell.magics["cell", name[2:]](line, rest)
        if name == "%load_ext":
            return None  # which the fixture has done
        if name.startswith("%"):
            return shell.magics["line", name[1:]](line)
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        # handlers are compiled from their source, which IPython keeps, too
        file = f"<cell {len(shown)}>"
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        exec(compile(tree, file, "exec"), shell.names)  # noqa: S102 - that is what a cell is for
        return None if last is None else eval(compile(ast.Expression(last.value), file, "eval"), shell.names)  # noqa: S307

    cells = json.loads(NOTEBOOK.read_text())["cells"]
    shown = []
    for each in cells:
        if each["cell_type"] == "code":
            assert each["outputs"] == []
            shown.append(run("".join(each["source"])))
    first, kept, again, by_hand = [each for each in shown if each is not None]
    assert calls(first)["deflate"] == 200
    assert calls(kept) == calls(again) == {"inflate": 200}
    assert calls(by_hand) == {"deflate": 200}
    assert all("<table" in each._repr_html_() for each in (first, kept, by_hand))
    sizes = [len(text) for text in shell.names["texts"]]
    assert f"crc32: 200 calls, {sum(sizes):,} bytes" in capsys.readouterr().out
