"""Reading and running scripts, without a process."""

import io
import sys
from contextlib import ExitStack

import click
import pytest

from anyprobe.cli import main
from anyprobe.cli.handlers import scripts
from anyprobe.cli.terminal import interrupts
from anyprobe.core.errors import HandlerError, SpecError, UsageError


class Session:
    pid = 4194305

    def count(self, spec):
        raise SpecError(spec, 5, "no function 'mallok'", ("malloc",), length=6)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(text, *arguments):
        path = tmp_path / "script.py"
        path.write_text(text)
        with ExitStack() as stack:
            scripts.load(str(path), arguments).run(stack, Session())
        return path

    return run


def test_a_script_sees_its_session_and_its_arguments(run, capsys):
    run("import sys\nfrom anyprobe import session\nprint(session.pid, sys.argv[1:], __name__)", "a", "b")
    assert capsys.readouterr().out == "4194305 ['a', 'b'] __anyprobe__\n"


def test_what_python_cannot_read_is_pointed_at(run, tmp_path):
    with pytest.raises(HandlerError) as error:
        run("x = 1\nif x\n    pass\n")
    assert str(error.value).splitlines()[0].startswith(f"{tmp_path}/script.py:2:5: ")
    assert str(error.value).splitlines()[2].index("^") == 2 + 4


def test_an_exception_is_shown_from_the_script_on(run, tmp_path):
    with pytest.raises(UsageError) as error:
        run("def f():\n    return 1 // 0\nf()\n")
    text = str(error.value)
    assert "ZeroDivisionError" in text
    assert "scripts.py" not in text
    assert text.count("script.py") == 2


def test_a_spec_that_means_nothing_has_a_line(run):
    with pytest.raises(UsageError, match=r"script\.py:2: no function 'mallok'"):
        run("from anyprobe import session\nsession.count('libc:mallok')\n")


def test_a_script_may_end_by_itself(run):
    with pytest.raises(SystemExit) as end:
        run("raise SystemExit(7)")
    assert end.value.code == 7


def test_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("print('from a pipe')"))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with ExitStack() as stack:
        scripts.load("-").run(stack, Session())
    assert capsys.readouterr().out == "from a pipe\n"


def test_a_file_that_is_not_there(capsys):
    with pytest.raises(click.FileError):
        scripts.load("/nowhere.py")
    assert main(["script", "/nowhere.py", "-p", "1"]) == 2


def test_a_script_that_prints_is_in_its_own_code():
    """A signal that comes while it prints ends it, as at any other moment."""
    from anyprobe.cli.terminal import streams

    found = []

    class Raw(io.BytesIO):
        def flush(self):
            found.append(interrupts._in_script(sys._getframe()))

    output = streams.Output(Raw(), "standard output", encoding="utf-8")
    exec("output.write('x'); output.flush()", {"__name__": interrupts.SCRIPT, "output": output})  # noqa: S102 - as scripts are run
    assert found[0]


def run_as_script(text, **names):
    exec(compile(text, "script.py", "exec"), {"__name__": interrupts.SCRIPT, **names})  # noqa: S102 - as scripts are run


def test_a_script_is_interrupted_when_code_of_anyprobes_that_it_has_called_is_finished():
    """A signal that comes in the middle of that would be lost, were it only remembered: nobody looks again."""
    done = []
    names = {"__name__": "anyprobe.somewhere", "done": done}
    exec("import signal\ndef look():\n    signal.raise_signal(signal.SIGINT)\n    done.append(1)\n", names)  # noqa: S102
    for loop in ("while True: look()", "def again():\n    while True:\n        look()\nagain()"):
        with interrupts.Interrupts() as remembered, pytest.raises(KeyboardInterrupt):
            run_as_script(loop, look=names["look"])
        assert (remembered.count, done, sys.gettrace()) == (1, [1], None)
        done.clear()


def test_code_of_anyprobes_that_no_script_has_called_is_not_interrupted():
    done = []
    names = {"__name__": "anyprobe.somewhere", "done": done}
    exec("import signal\ndef look():\n    signal.raise_signal(signal.SIGINT)\n    done.append(1)\n", names)  # noqa: S102
    with interrupts.Interrupts() as remembered:
        names["look"]()
        names["look"]()
    assert (remembered.count, done, sys.gettrace()) == (2, [1, 1], None)


def test_functions_of_scripts_end_by_the_first_signals_and_all_by_the_third():
    """Those of the end, whose results are still to come, go on behind anyprobe's code."""
    done, functions = [], []
    names = {"__name__": "anyprobe.somewhere", "done": done}
    exec("import signal\ndef look():\n    signal.raise_signal(signal.SIGINT)\n    done.append(1)\n", names)  # noqa: S102
    text = "def at_times():\n    look()\n    done.append(2)\nkept(at_times)"
    run_as_script(text, look=names["look"], done=done, kept=functions.append)
    with interrupts.Interrupts() as remembered:
        with remembered.ending_functions():
            functions[0]()
        assert done == [1]
        functions[0]()
        assert (done, remembered.count, sys.gettrace()) == ([1, 1, 2], 2, None)
        with pytest.raises(KeyboardInterrupt), remembered.ending_functions():
            functions[0]()
    assert (done, remembered.count) == ([1, 1, 2], 3)
