"""Attaching does what a probe needs and no more: nothing is computed twice, and nothing slow is imported."""

import collections
import os
import subprocess
import sys

import anyprobe
from anyprobe.binary.decoding import body, code_scan, decoded_code
from anyprobe.binary.decoding.body import decode_to_end
from anyprobe.binary.images import entries, noreturn, reconcile
from anyprobe.binary.liveness.module import ModuleLiveness
from anyprobe.binary.objects import relocations
from anyprobe.binary.restrictions import forbidden
from anyprobe.binary.unwind import eh_frame

BUILDERS = (
    (reconcile, "reconcile"),
    (eh_frame, "unwind_table"),
    (entries, "code_entries"),
    (forbidden, "forbidden_ranges"),
    (noreturn, "noreturn_addresses"),
    (relocations, "relocations"),
)
IMPORTED = """
import sys
import anyprobe
with anyprobe.attach(int(sys.argv[1])) as session:
    session.count("libc:getenv", "a.out:main", "libc:str*")
    session.snapshot()
print(*sorted(sys.modules))
"""
NOT_FOR_COUNTING = {
    "numpy.ma",
    "numpy.random",
    "rich",
    "pickletools",
    "tempfile",
    "anyprobe.probes.providers.function.wanted.planning",
}


def counted(monkeypatch):
    """Return the counts of how often the builders of tables run from now on."""
    calls = collections.Counter()

    def counting(name, original):
        def call(*arguments, **named):
            calls[name] += 1
            return original(*arguments, **named)

        return call

    for module, name in BUILDERS:
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    monkeypatch.setattr(code_scan, "calls_into", counting("calls_into", code_scan.calls_into))
    monkeypatch.setattr(code_scan.References, "__init__", counting("References", code_scan.References.__init__))
    return calls


def test_a_second_attach_builds_no_table(run_target, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = run_target("library_calls.c")
    calls = counted(monkeypatch)
    for expected in (True, False):
        with anyprobe.attach(target.pid) as session:
            session.count("libc:getenv")
            target.go(1)
            assert session.snapshot().sites[0].hits >= 1000
        assert bool(calls) is expected, calls
        calls.clear()
    target.finish()


def test_what_counting_does_not_need_is_not_imported(run_target, tmp_path):
    target = run_target("library_calls.c")
    outcome = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(target.pid)],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=180,
        env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path)),
    )
    assert NOT_FOR_COUNTING.isdisjoint(outcome.stdout.split())
    target.finish()


def test_one_probe_has_few_functions_looked_at(run_target, monkeypatch, tmp_path):
    """Of thousands, those that it may have to do with, the first time; nothing is worked out for a whole module."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = run_target("counts.c", "1")
    looked_at = []

    def decoded(content, start):
        looked_at.append(start)
        return decode_to_end(content, start)

    monkeypatch.setattr(decoded_code, "decode_to_end", decoded)
    monkeypatch.setattr(ModuleLiveness, "__init__", None)  # that would look at all
    with anyprobe.attach(target.pid) as session:
        session.count("libc:malloc")
        (libc,) = (module for module in session.engine.modules if module.name.startswith("libc."))
        assert 0 < len(looked_at) < 50 < len(libc.code.text.function_starts)
        assert not libc.code.entries.is_surveyed
    target.finish()


def test_functions_timed_and_counted_before_are_not_decoded(run_target, monkeypatch, tmp_path):
    """Their plans are kept, and nothing else has to be known to make patches of them: a few have no room alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = run_target("library_calls.c")
    looked_at = []

    def examined(*arguments):
        looked_at.append(arguments)
        return body.examine(*arguments)

    monkeypatch.setattr(decoded_code, "examine", examined)
    for _ in range(2):
        with anyprobe.attach(target.pid) as session:
            session.time("libc:get*")
            looked_at.clear()
            session.count("libc:get*")
            functions = len(session.snapshot().functions)
    assert len(looked_at) < functions // 4
    target.finish()
