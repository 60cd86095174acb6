"""What is said of a program that the kernel does not load: the verifier's words, or what else stands against it."""

import errno

import pytest

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import programs

SUMMARY = b"verification time 666 usec\nprocessed 9 insns (limit 1000000)\n"


def refusing(number):
    """Return a kernel that refuses each program, and writes a summary where it is asked for one."""

    def load(code, kind, name, log, level=0):
        if log is not None:
            log.value = SUMMARY
        raise KernelRefused("load a program", number)

    return load


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_is_not_about_the_program_is_not_taken_for_the_verifier_s(monkeypatch, number):
    monkeypatch.setattr(programs, "_load", refusing(number))
    with pytest.raises(KernelRefused) as caught:
        programs.load(b"")
    assert caught.value.errno == number


def test_what_the_verifier_says_is_in_the_error(monkeypatch):
    monkeypatch.setattr(programs, "_load", refusing(errno.EACCES))
    with pytest.raises(programs.VerifierRefusal) as caught:
        programs.load(b"")
    assert "processed 9 insns" in str(caught.value)
