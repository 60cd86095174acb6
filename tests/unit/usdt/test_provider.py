"""Providers in this process: what may be declared, and what fires without a listener."""

import ctypes
import logging

import pytest

from anyprobe import UsageError, cstr, f32, f64, i16, ptr, u8, u64
from anyprobe.core.errors import TargetError
from anyprobe.usdt import Provider
from anyprobe.usdt.passing import passed


@pytest.fixture
def provider():
    with Provider("unit_test") as made:
        yield made


def listen(fire, listeners=1):
    """Set a probe's semaphore, as tools do from outside."""
    guard = next(cell.cell_contents for cell in fire.__closure__ if isinstance(cell.cell_contents, memoryview))
    guard[0] = listeners


def test_a_probe_is_fired_with_its_arguments_and_costs_no_conversion_while_nobody_listens(provider):
    class Unasked:
        def __index__(self):
            raise AssertionError("nobody listens")

    fire = provider.probe("request", u64, cstr)
    fire(Unasked(), "text")
    assert not fire.enabled()
    listen(fire)
    assert fire.enabled()
    fire(1, "text")
    assert fire.__name__ == "request"


def test_the_number_of_arguments_is_checked_whether_or_not_somebody_listens(provider):
    fire = provider.probe("two", u64, u64)
    with pytest.raises(TypeError, match="arg1"):
        fire(1)
    with pytest.raises(TypeError):
        fire(1, 2, 3)
    provider.probe("none")()


@pytest.mark.parametrize("listeners", [1, 256, 65535])
def test_any_number_of_listeners_is_somebody(provider, listeners):
    fire = provider.probe("many")
    listen(fire, listeners)
    assert fire.enabled()


def test_a_value_that_does_not_fit_never_raises_and_is_logged_once(provider, caplog):
    fire = provider.probe("wrong", u64, cstr, f64, u8)
    listen(fire)
    with caplog.at_level(logging.WARNING, "anyprobe.usdt"):
        for _ in range(3):
            fire("no number", 5, object(), 1 << 80)
    assert [record.getMessage().partition(" is passed")[0] for record in caplog.records] == [
        f"unit_test:wrong: argument {index}" for index in range(3)
    ]


def test_a_strict_provider_raises_for_what_does_not_fit_though_nobody_listens():
    with Provider("strict_test", strict=True) as provider:
        fire = provider.probe("checked", u64, cstr)
        fire(1, "text")
        fire(1, None)
        with pytest.raises(TypeError, match="strict_test:checked: argument 1: int is no text"):
            fire(1, 2)


@pytest.mark.parametrize(
    "text", ["plain", "héllo", "\udc80 of a file's name", "\ud800 alone", b"bytes", bytearray(b"b")]
)
def test_every_text_is_passed(provider, text):
    fire = provider.probe("text", str)
    listen(fire)
    fire(text)


@pytest.mark.parametrize(
    ("kinds", "operands"),
    [
        ((u8, i16, cstr, ptr, bool, int), "1@%rdi -2@%rsi 8@%rdx 8@%rcx 1@%r8 -8@%r9"),
        ((f64, f32, float, str, bytes), "8@%rdi 4@%rsi 8@%rdx 8@%rcx 8@%r8"),
        ((u64,) * 12, "8@%rdi 8@%rsi 8@%rdx 8@%rcx 8@%r8 8@%r9 " + " ".join(f"8@{n}(%rsp)" for n in range(8, 56, 8))),
        ((), ""),
    ],
)
def test_notes_say_where_the_convention_has_arguments(kinds, operands):
    assert " ".join(each.operand for each in passed("a:b", kinds)) == operands


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 60, "is too long: tools take 59 characters"),
        ("9lives", "is no name of a provider"),
        ("two words", "is no name of a provider"),
        ("", "is no name of a provider"),
        ("dash-ed", "is no name of a provider"),
        (7, "is no name of a provider"),
    ],
)
def test_a_name_that_no_tool_takes_is_an_error(name, said):
    with pytest.raises(UsageError, match=said):
        Provider(name)


def test_a_name_that_is_taken_is_an_error_until_it_is_given_back(provider):
    with pytest.raises(UsageError, match="has a USDT provider 'unit_test' already"):
        Provider("unit_test")
    provider.close()
    with Provider("unit_test") as again, pytest.raises(UsageError, match="is closed"):
        provider.probe("late")
    again.close()


def test_probes_have_one_name_each(provider):
    provider.probe("request-start")
    with pytest.raises(UsageError, match="unit_test has a probe 'request__start' already"):
        provider.probe("request__start")
    with pytest.raises(UsageError, match="is too long"):
        provider.probe("x" * 64)
    with pytest.raises(UsageError, match="is no name of a probe"):
        provider.probe("a:b")


def test_types_that_cannot_be_passed_are_errors_and_leave_the_name_free(provider):
    with pytest.raises(UsageError, match="argument 1 of unit_test:odd is of no type that a marker can pass: list"):
        provider.probe("odd", u64, list)
    with pytest.raises(UsageError, match="has 13 arguments, and tools read 12"):
        provider.probe("odd", *[u64] * 13)
    provider.probe("odd", u64)


def test_several_probes_share_a_file(provider):
    made = provider.probes({"one": (u64,), "two": (), "three-four": (str,)})
    assert list(made) == ["one", "two", "three-four"]
    (file,) = provider._files
    assert file.path.exists()
    provider.close()
    assert not file.path.exists()
    made["one"](1)


def test_where_nothing_may_be_written_the_error_names_the_folders(provider, monkeypatch, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    theirs = closed / "anyprobe-usdt-0"
    theirs.symlink_to(tmp_path)
    monkeypatch.setattr("anyprobe.usdt.markerfile._bases", lambda: iter([closed]))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(TargetError, match=r"there is no folder for a file with markers: .*closed"):
        provider.probe("nowhere")


def test_a_folder_that_does_not_permit_code_to_run_is_passed_over(provider, monkeypatch):
    real, refused = ctypes.PyDLL, []

    def load(path):
        if not refused:
            refused.append(path)
            raise OSError("failed to map segment from shared object")
        return real(path)

    monkeypatch.setattr("ctypes.PyDLL", load)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/shm")
    provider.probe("somewhere")()
    (file,) = provider._files
    assert refused[0].startswith("/dev/shm/")
    assert not str(file.path).startswith("/dev/shm/")
