"""Started commands, process groups and terminals."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager

import pytest

from anyprobe import run
from support.driver import build

SOURCE = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int ends;
static void note(int number) {
    const char *text = number == SIGINT ? "interrupted\\n" : number == SIGTERM ? "told to end\\n" : "continued\\n";
    write(1, text, strlen(text));
    if (number == SIGTERM || (ends && number == SIGINT)) _exit(7);
}
__attribute__((noinline)) int work(int x) { __asm__ volatile("" : "+r"(x)); return x; }
int main(int argc, char **argv) {
    char line[100];
    work(1);
    if (!strcmp(argv[1], "kill")) { kill(0, atoi(argv[2])); pause(); }
    if (!strcmp(argv[1], "group")) return getpgrp() != getpid();
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, 0);
    sigaction(SIGTERM, &action, 0);
    sigaction(SIGCONT, &action, 0);
    ends = !strcmp(argv[1], "wait");
    puts("ready");
    fflush(stdout);
    if (ends) for (;;) pause();
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\\n")) {
        work(1);
        printf("got %s", line);
        fflush(stdout);
    }
    return 7;
}
"""
COUNT = [sys.executable, "-m", "anyprobe", "count", "a.out:work"]


def program():
    return str(build("job.c", text=SOURCE))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGUSR1, signal.SIGSEGV])
def test_a_command_that_kills_its_group(number):
    """The group is its own: the results come, and its status."""
    argv = [*COUNT, "--exit-status", "--", program(), "kill", str(int(number))]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=180)
    assert found.returncode == 128 + number
    assert "1 hit at 1 site" in found.stderr


def test_sessions_leave_the_group_as_it_is():
    """As in ``subprocess``: one of its own on demand."""
    for group, outcome in ((None, 1), (0, 0)):
        with run([program(), "group"], process_group=group) as session:
            session.resume()
            assert os.waitstatus_to_exitcode(session.wait(180)) == outcome


def test_what_is_sent_to_the_group_reaches_the_command():
    """As ``timeout`` and shells send it; what is sent to anyprobe alone does not."""
    argv = [*COUNT, "--exit-status", "-o", os.devnull, "--", program(), "wait"]
    for send, status in ((os.killpg, 7), (os.kill, 0)):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout.readline() == "ready\n"
            (command,) = [pid for pid in children(process.pid) if os.getpgid(pid) == pid]
            send(process.pid, signal.SIGTERM)
            if status == 0:
                assert process.wait(180) == 0
                os.kill(command, signal.SIGTERM)
            assert process.stdout.read() == "told to end\n"
        assert process.returncode == status


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


class Terminal:
    """A terminal and what is written to it."""

    def __init__(self, master):
        self.master, self.seen = master, ""

    def type(self, text):
        os.write(self.master, text.encode())

    def expect(self, text):
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.master, 4096).decode()
                except OSError:  # nobody has it open any more
                    assert text in self.seen, f"no {text!r} in {self.seen!r}"
        self.seen = self.seen.partition(text)[2]


@contextmanager
def in_a_terminal(argv, **settings):
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    process = subprocess.Popen(
        argv,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - there is no other thread
        **settings,
    )
    try:
        yield process, Terminal(master)
    finally:
        os.close(slave)
        os.close(master)  # which hangs up
        process.wait(180)


def test_a_command_that_reads_the_terminal():
    """It gets the terminal when it reads, Ctrl-C with it; after its end the terminal is as it was."""
    script = f"{' '.join(COUNT)} --exit-status -- {program()} read; echo status $?; read word; echo after $word"
    with in_a_terminal(["sh", "-c", script]) as (process, terminal):
        terminal.expect("ready")
        terminal.type("one\n")
        terminal.expect("got one")
        assert os.tcgetpgrp(terminal.master) != process.pid
        terminal.type("two\n")
        terminal.expect("got two")
        terminal.type("\x03")
        terminal.expect("interrupted")
        terminal.type("three\n")
        terminal.expect("got three")
        terminal.type("end\n")
        terminal.expect("4 hits at 1 site")
        terminal.expect("status 7")
        terminal.type("four\n")
        terminal.expect("after four")


def test_interrupting_a_command_that_does_not_read():
    with in_a_terminal([*COUNT, "--exit-status", "--", program(), "wait"]) as (process, terminal):
        terminal.expect("ready")
        terminal.type("\x03")
        terminal.expect("interrupted")
        terminal.expect("1 hit at 1 site")
        process.wait(180)


@pytest.mark.parametrize("how", ["read", "wait"])
def test_stopping_and_going_on(how):
    """Ctrl-Z and ``fg`` in a shell, whoever has the terminal; a shell with ``stty tostop``."""
    environment = dict(os.environ, PS1="shell> ", HISTFILE="", TERM="dumb")
    with in_a_terminal(["bash", "--norc", "--noprofile", "--noediting", "-i"], env=environment) as (_, terminal):
        terminal.expect("shell> ")
        terminal.type("stty -echo tostop\n")
        terminal.expect("shell> ")
        terminal.type(f"{' '.join(COUNT)} --exit-status -- {program()} {how}\n")
        if how == "wait":  # stopped by its first output, as any command of a shell
            terminal.expect("ready")
        else:
            terminal.expect("ready")
            terminal.type("one\n")
            terminal.expect("got one")
        for _ in range(2):
            terminal.type("\x1a")
            terminal.expect("Stopped")
            terminal.expect("shell> ")
            terminal.type("fg\n")
            terminal.expect("continued")
        if how == "read":
            terminal.type("two\n")
            terminal.expect("got two")
            terminal.type("end\n")
        else:
            terminal.type("\x03")
        terminal.expect("at 1 site")
        terminal.expect("shell> ")
        terminal.type("echo status $?; exit\n")
        terminal.expect("status 7")
