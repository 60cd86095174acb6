"""What is said to hosts, and which command lines mean none."""

import sys

import pytest

from anyprobe.cli import group, main, split_program
from anyprobe.cli.network import hosts, remote


def arguments(*given):
    """Return the arguments of the command on a host."""
    before, program = split_program(list(given))
    with group.make_context("anyprobe", list(before), obj=program) as root:
        name, command, rest = group.resolve_command(root, before)
        with command.make_context(name, rest, parent=root, obj=program) as context:
            return list(hosts.remote_arguments(command, context))


@pytest.mark.parametrize(
    ("given", "there"),
    [
        (["count", "libc:*", "-n", "x", "-H", "a", "--for", "5"], ["--name=x", "--for=5", "libc:*"]),
        (["count", "a:b", "c:d", "-Ha", "-p1", "-p", "2", "--json"], ["--pid=1", "--pid=2", "a:b", "c:d"]),
        (["time", "a:b", "-H", "a", "-o", "f.aprobe", "--top", "3", "--self", "--no-follow", "-n", "x"],
         ["--self", "--no-follow", "--name=x", "a:b"]),
        (["hist", "a:b", "--of", "arg0", "--by", "tid, cpu", "--hosts", "f", "--when", "arg0 > -1", "-n", "x"],
         ["--of=arg0", "--by=tid, cpu", "--when=arg0 > -1", "--name=x", "a:b"]),
        (["locks", "-H", "a", "--quiet", "--", "p", "--json"], ["--quiet", "--kill", "--", "p", "--json"]),
        (["count", "a:b", "-H", "a", "--leave", "--remote", "sudo x", "--", "p"], ["--leave", "a:b", "--", "p"]),
    ],
)  # fmt: skip
def test_what_is_measured_is_said_there_and_how_it_is_shown_is_not(given, there):
    assert arguments(*given) == [given[0], *there]


@pytest.mark.parametrize(
    ("text", "name", "user", "port"),
    [
        ("web1", "web1", None, None),
        ("root@web1.example:2222", "web1.example", "root", 2222),
        ("[::1]:22", "::1", None, 22),
        ("10.0.0.7", "10.0.0.7", None, None),
    ],
)
def test_hosts_are_named_as_for_ssh(text, name, user, port):
    assert remote.Host.of(text) == (text, name, user, port)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["-H", "a b"], "'a b' is no host"),
        (["-H", "-oProxyCommand=x"], "is no host"),
        (["-H", "a:99999"], "'a:99999' is no host"),
        (["-H", ","], "-H names no host"),
        (["--remote", "x"], "--remote is about hosts"),
        (["--hosts", "nowhere"], "nowhere: No such file"),
        (["-H", "a", "--every", "1"], "--every is of one machine"),
    ],
)
def test_what_means_no_host_is_a_usage_error(given, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["count", "a:b", "-n", "x", *given]) == 2
    told = capsys.readouterr().err
    assert said in told.replace("'nowhere'", "nowhere")
    assert "Traceback" not in told


def test_a_file_without_a_host_is_a_usage_error(capsys, tmp_path):
    (tmp_path / "hosts").write_text("# none\n\n")
    assert main(["count", "a:b", "-n", "x", "--hosts", str(tmp_path / "hosts")]) == 2
    assert "names no host" in capsys.readouterr().err


def test_without_asyncssh_it_is_said_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    assert main(["count", "a:b", "-n", "x", "-H", "a"]) == 2
    assert capsys.readouterr().err == "anyprobe: -H needs asyncssh: pip install 'anyprobe[hosts]'\n"


@pytest.mark.parametrize(
    ("offset", "error", "text"),
    [
        (None, None, "how its clock differs is not known"),
        (0.0002, 0.0005, "its clock differs by less than 0.7 ms"),
        (3600.0, 0.001, "its clock is 3,600.000 s ahead, ± 1 ms"),
        (-0.25, 0.001, "its clock is 250 ms late, ± 1 ms"),
    ],
)
def test_clocks_are_said_with_their_errors(offset, error, text):
    assert remote.Answer("a", offset_s=offset, error_s=error).clock == text


def test_recordings_of_hosts_with_like_names_do_not_overwrite_each_other(tmp_path):
    answers = [remote.Answer(name, name.encode(), 0) for name in ("web:22", "web_22", "[::1]", "web/22")]
    hosts._keep(answers, str(tmp_path / "run.aprobe"), quiet=True)
    assert sorted(each.read_bytes() for each in tmp_path.iterdir()) == sorted(each.archive for each in answers)
