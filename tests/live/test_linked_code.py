"""Code that is no compiler's function: the vdso, IFUNCs, shared and overlapping code, data in the text."""

import subprocess

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from support.driver import PATIENCE
from support.image import Image

OWN = (
    "two_doors",
    "second_door",
    "shared_tail_a",
    "shared_tail_b",
    "holds_data",
    "overlapping",
    "falls_in",
    "call_between",
)
VDSO = {"clock_gettime": "clock_gettime", "gettimeofday": "gettimeofday", "getcpu": "getcpu"}


@pytest.fixture
def target(run_target):
    target = run_target("linked_code.c", options=("-lm",))
    target.go(3)
    return target


def grown(target, rounds):
    """Run some rounds; return how often each function was called in them."""
    before = dict(target.counts.calls)
    return {name: calls - before[name] for name, calls in target.go(rounds).calls.items()}


def entries(session, module="linked_code"):
    return {
        site.function: site.hits for site in session.snapshot().sites if site.module == module and site.kind == "entry"
    }


def test_functions_that_share_their_code(target):
    """An entry counts who comes through it, from wherever: by a call, a jump, or from above."""
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}" for name in OWN))
        assert not session.refused
        calls = grown(target, 100)
        hits = entries(session)
        assert {name: hits[name] for name in OWN if name in calls and name != "second_door"} == {
            name: calls[name] for name in OWN if name in calls and name != "second_door"
        }
        assert hits["second_door"] == calls["second_door"] + calls["two_doors"] + calls["falls_in"]
        assert hits["call_between"] == calls["between"]
    target.go(3)
    target.finish()


def test_every_instruction_of_them(target):
    """The table between the instructions is read as before; nobody who enters in the middle meets half a jump."""
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:*:insn")
        by_reason = {refusal.reason: refusal for _, refusal in session.refused}
        assert by_reason.keys() <= {Reason.JUMP_TARGET_IN_JTPR, Reason.NOT_CODE}
        (start,) = [
            site.address for site in session.snapshot().sites if (site.function, site.offset) == ("holds_data", 0)
        ]
        assert by_reason[Reason.NOT_CODE].address in range(start, start + 0x14)
        calls = grown(target, 100)
        hits = {(site.function, site.offset): site.hits for site in session.snapshot().sites}
        assert hits["holds_data", 0] == calls["holds_data"]
        assert ("holds_data", 0x10) not in hits
        assert hits["holds_data", 0x14] == calls["holds_data"]
        assert hits["shared_tail_a", 7] == calls["shared_tail_a"] + calls["shared_tail_b"]
        assert ("overlapping", 0xD) not in hits
    before.assert_restored(target.pid)
    target.go(3)
    target.finish()


@pytest.mark.parametrize("kind", ["entry", "return"])
def test_functions_of_the_vdso(target, kind):
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"vdso:{name}%{kind}" for name in VDSO))
        assert not session.refused
        calls = grown(target, 100)
        hits = dict.fromkeys(VDSO, 0)
        for site in session.snapshot().sites:
            hits[site.function] += site.hits
        assert hits == {name: calls[name] for name in VDSO}
    target.go(3)
    target.finish()


def test_every_instruction_of_the_vdso(target):
    """Its system call for what it cannot tell itself among them."""
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("vdso:*:insn")
        target.go(100)
        sites = session.snapshot().sites
        assert sum(site.hits > 0 for site in sites) > 50
        assert sum(site.armed for site in sites) > 0.98 * len(sites)
    before.assert_restored(target.pid)
    target.go(3)
    target.finish()


@pytest.mark.parametrize("spec", ["vsyscall:*", "[vsyscall]:gettimeofday", "pid:vsyscall:*:insn"])
def test_the_vsyscall_page_is_refused_by_name(target, spec):
    with anyprobe.attach(target.pid) as session, pytest.raises(anyprobe.TargetError, match="vsyscall"):
        session.count(spec)
    target.finish()


def test_what_an_ifunc_was_resolved_to(target):
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:chosen", "a.out:resolve_chosen")
        calls = grown(target, 100)
        assert entries(session) == {"plain_choice": calls["chosen"], "resolve_chosen": 0}, (
            "the resolver has run long ago"
        )
    target.finish()


CRYPTO = """
import ctypes, hashlib, hmac, sys
library = ctypes.CDLL("libcrypto.so.3")
library.RC4_options.restype = ctypes.c_char_p
library.EVP_CIPHER_fetch.restype = library.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
def encrypted(name, data):
    cipher = ctypes.c_void_p(library.EVP_CIPHER_fetch(None, name, None))
    context, size = ctypes.c_void_p(library.EVP_CIPHER_CTX_new()), ctypes.c_int()
    out = ctypes.create_string_buffer(len(data) + 64)
    library.EVP_EncryptInit_ex2(context, cipher, bytes(range(32)), bytes(range(16)), None)
    library.EVP_EncryptUpdate(context, out, ctypes.byref(size), data, len(data))
    return out.raw[: size.value]
HASHES = "sha1", "sha256", "sha512", "sha3_256", "md5", "blake2b512"
CIPHERS = b"AES-256-CTR", b"AES-256-GCM", b"AES-128-CBC", b"ChaCha20"
print("ready", flush=True)
for line in sys.stdin:
    data = bytes(range(256)) * int(line)
    found = [hashlib.new(name, data).hexdigest() for name in HASHES]
    found += [hmac.new(b"key", data, "sha256").hexdigest(), hashlib.pbkdf2_hmac("sha512", data[:64], b"salt", 50).hex()]
    found += [hashlib.sha256(encrypted(name, data)).hexdigest() for name in CIPHERS]
    print(*found, library.RC4_options().decode(), flush=True)
"""


def test_hand_written_code_of_libcrypto():
    """Every instruction of the busiest functions, and of one with strings between its instructions: known answers."""
    command = ["/usr/bin/python3", "-c", CRYPTO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as python:

        def answers(number):
            python.stdin.write(f"{number}\n")
            python.stdin.flush()
            return python.stdout.readline()

        try:
            if python.stdout.readline() != "ready\n":
                pytest.skip("python without OpenSSL 3")
            right = answers(20)
            assert "rc4(" in right
            with anyprobe.attach(python.pid) as session:
                everything = session.count("libcrypto:*")
                assert answers(20) == right
                ran = {site.function: site.hits for site in session.snapshot().sites if site.hits}
                session.remove(*everything)
                busiest = sorted(ran, key=ran.__getitem__, reverse=True)[:25]
                session.count("libcrypto:RC4_options:insn", *(f"libcrypto:{name}:insn" for name in busiest))
                assert answers(20) == right
                sites = [site for site in session.snapshot().sites if site.kind == "insn"]
                assert sum(site.hits > 0 for site in sites) > 1000
                assert {site.hits for site in sites if site.function == "RC4_options"} <= {0, 1}
            assert answers(20) == right
            python.stdin.close()
            assert python.wait(PATIENCE) == 0
        finally:
            python.kill()
