"""Options that would have no effect as they are given are refused, before anything is measured or written."""

import pytest

from anyprobe.cli import main


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["record", "tracepoint:sched:sched_switch", "--with", "arg0"], "--with keeps values with calls"),
        (["record", "usdt:*", "--with", "arg0", "--", "true"], "--with keeps values with calls"),
        (["replay", "run.aprobe", "--push", "http://127.0.0.1:1/", "--format", "otlp"], "--push sends the calls"),
        (["replay", "run.aprobe", "--push", "http://127.0.0.1:1/", "--json"], "--push sends the calls"),
        (["serve", "libc:malloc", "--exponential", "-p", "1"], "--exponential is about what --push sends"),
    ],
    ids=lambda value: " ".join(value)[:24],
)
def test_an_option_without_effect(command, message, tmp_path, capfd):
    results = tmp_path / "run.aprobe"
    if command[0] == "record":
        command = [command[0], "-o", str(results), *command[1:]]
    assert main(command) == 2
    assert message in capfd.readouterr().err
    assert not results.exists()
