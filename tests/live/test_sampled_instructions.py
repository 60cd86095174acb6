"""Instructions of real libraries, each alone in its function: armed, run and removed; results never change."""

import collections
import random
import subprocess
import sys

import anyprobe
from anyprobe.core.refusal import Refusal
from anyprobe.splice.plan.together import first_of
from support.changes import patiently

SEED = 20
WORK = """
import decimal, hashlib, json, math, re, sys, zlib
document = {"a": list(range(40)), "b": {"x": "y" * 30, "z": [1.5, None, "e"]}}
print("ready", flush=True)
for line in sys.stdin:
    total = 0
    for n in range(int(line)):
        text = json.dumps(document, sort_keys=True) + "%d %r" % (n, math.sin(n) + n ** 0.5)
        packed = zlib.compress(text.encode(), 6)
        total ^= int(hashlib.sha256(zlib.decompress(packed)).hexdigest(), 16)
        total += len(re.sub("([0-9]+)x?", lambda m: m.group(1) * 2, text)) + sum(json.loads(json.dumps(document))["a"])
        total += int(decimal.Decimal(n).sqrt() * 1000) + hash(tuple(sorted(text))) * 0 + len(str(n ** 20))
    print(total, flush=True)
"""
MODULES = ("a.out", "libc", "libcrypto", "libz", "libm")


class Worker:
    """An interpreter that does the same work over and over and says what came of it."""

    def __init__(self):
        command = ["/usr/bin/python3", "-c", WORK]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def work(self, rounds):
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.wait(180)}"
        return int(line)


def instructions(session, chance, count, modules):
    """Return {spec: what it is planned together with} of instructions: of functions that have run, and of any."""
    ran = {(site.module, site.function) for site in session.snapshot().sites if site.hits}
    found, everything = [], []
    for module in modules:
        for site in session.resolve(f"{module}:*")[0]:
            code_map = session.module(site.object).code
            code = code_map.function_at(site.function.start)
            if not isinstance(code, Refusal):
                everything.append((site.object.name, code_map, code))
                found += everything[-1:] * ((site.object.name, site.function.demangled) in ran)
    chosen = [
        *chance.choices(found, [len(code.addresses) for *_, code in found], k=count // 2),
        *chance.choices(everything, [len(code.addresses) for *_, code in everything], k=count - count // 2),
    ]
    picked = ((name, code_map, code, chance.choice(code.addresses)) for name, code_map, code in chosen)
    return {f"pid:{n}:-:{address:#x}": (n, first_of(code_map, code).start) for n, code_map, code, address in picked}


def rounds_of(sites, size):
    """Yield lists of specs, of which no two are planned together."""
    left = dict(sites)
    while left:
        now = {}
        for spec, group in left.items():
            if len(now) < size and group not in now.values():
                now[spec] = group
        yield list(now)
        left = {spec: group for spec, group in left.items() if spec not in now}


def armed_and_run(count, size, modules=MODULES):
    """Arm instructions in rounds while an interpreter works; return how many were armed, and refusals by reason."""
    chance, worker = random.Random(SEED), Worker()
    try:
        expected = worker.work(3)
        with anyprobe.attach(worker.process.pid) as session:
            session.count(*(f"{module}:*" for module in modules))
            assert worker.work(3) == expected
            sites = instructions(session, chance, count, modules)
        armed, hit, refused = 0, 0, collections.Counter()
        with anyprobe.attach(worker.process.pid) as session:
            for now in rounds_of(sites, size):
                before = len(session.refused)
                probes = patiently(session.count, *now)
                armed += sum(probe.armed for probe in probes)
                refused.update(why.reason.value for _, why in session.refused[before:])
                assert worker.work(3) == expected
                patiently(session.remove, *probes)
            hit = sum(site.hits > 0 for site in session.snapshot().sites)
        assert worker.work(3) == expected
        worker.process.stdin.close()
        assert worker.process.wait(180) == 0
    finally:
        worker.process.kill()
        worker.process.__exit__(None, None, None)
    print(f"{armed} of {len(sites)} instructions armed, {hit} of them hit; refused {dict(refused)}", file=sys.stderr)
    return armed / len(sites), hit, refused


def test_a_sample_of_instructions():
    share, hit, _ = armed_and_run(400, 100, ("libz", "libm"))
    assert share >= 0.99
    assert hit > 40
