"""Functions that are made anew for values of their parameters: what they come to, and what it is worth."""

import json
import signal
import subprocess
import sys
import time
from random import Random

import jsonschema
import pytest

import anyprobe
from anyprobe.cli.commands.schema import text_of
from anyprobe.isa.decode import decode_range
from anyprobe.isa.registers import NUMBERS
from anyprobe.probes.providers.function.optimising.relayout import Moved, Relayout
from support.driver import build, has_ended
from support.random_functions import program as random_program

pytestmark = pytest.mark.live
SMALL = "-DARGUMENT(number, state)=(next(state) >> 62)"
"""Arguments from 0 to 3, so that each value comes often."""
REGISTERS = ("rsi", "rdx", "rcx", "r8", "r9")
FUNCTIONS = 12


def argument_of(function: int, call: int, number: int) -> int:
    """Return an argument of a call as the program chooses it."""
    state = function * 1000003 + call * 7919 + 12345
    for _ in range(number + 1):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
    return state >> 62


@pytest.mark.parametrize("seed", range(6))
def test_random_functions_come_to_the_same_for_all_values(run_target, seed):
    target = run_target("random_functions.c", "50", text=random_program(seed), options=(SMALL,))
    random = Random(seed)
    decided = moved = 0
    target.run_freely()
    with anyprobe.attach(target.pid, unsafe=True) as session:
        for _ in range(3):
            functions = []
            for number in range(FUNCTIONS):
                ((site,), _) = session.resolve(f"a.out:f{number}")
                module = session.host.module(site.object)
                module.code.survey()
                code = module.code.function_at(site.function.start)
                call = random.randrange(4)
                values = {
                    NUMBERS[name]: argument_of(number, call, at + 1)
                    for at, name in enumerate(REGISTERS)
                    if random.random() < 0.6
                }
                functions.append(Moved(module, code, values=values))
                functions[-1].find_calls()
                if not functions[-1].body.refusal:
                    facts = functions[-1].body.facts(functions[-1].body.blocks(code.entry))
                    decided += len(facts.taken) + len(facts.fixed)
            layout = Relayout(session.host, functions)
            layout.apply()
            moved += len(layout.moved)
            time.sleep(0.2)
            layout.revert()
            target.check_alive()
    target.halt()
    assert (moved > 5, decided > 5) == (True, True)
    target.finish()


FILTER = r"""
#include <stdio.h>
#include <stdlib.h>
#define KEPT __attribute__((noinline, noclone, noipa))
KEPT unsigned long filter(const unsigned char *data, long count, int mode, unsigned scale) {
    unsigned long sum = 0;
    for (long i = 0; i < count; i++) {
        unsigned long x = data[i];
        if (mode & 1) x = x * x + 1; else x += 3;
        if (mode & 2) x ^= sum >> 3;
        if (mode & 4) x = x << (scale & 15) | x >> 5;
        if (mode & 8) x = x * scale;
        if (mode & 16) x += i / scale;
        sum += x;
    }
    return sum;
}
KEPT unsigned long twice(unsigned long x) { return x * 2 + 1; }
int main(int argc, char **argv) {
    static unsigned char data[512];
    for (int i = 0; i < 512; i++) data[i] = i * 7;
    unsigned long expected[32], sum = 0;
    for (int mode = 0; mode < 32; mode++) expected[mode] = filter(data, 512, mode, 4);
    for (long n = 0; ; n++) {
        int mode = n % 1000 ? 8 : n / 1000 % 32;
        if (filter(data, 512, mode, 4) != expected[mode]) { printf("BAD mode %d", mode); return 1; }
        sum += twice(n);
    }
    return sum == 5;
}
"""


@pytest.fixture
def filtering():
    path = build("specialised.c", "-O2", "-fno-unswitch-loops", text=FILTER)
    with subprocess.Popen([path], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def code_of(pid):
    with open(f"/proc/{pid}/maps") as maps:
        low, high = next(line.split()[0].split("-") for line in maps if "r-xp" in line and "specialised" in line)
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(int(low, 16))
        return memory.read(int(high, 16) - int(low, 16))


def command(pid, *arguments):
    """Run the command until it has decided; return what it printed."""
    line = [sys.executable, "-m", "anyprobe", "optimise", "--unsafe", "--specialise", *arguments, "-p", str(pid)]
    line += ["--watch", "0.3", "--turn", "0.15", "--for", "60"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for said in process.stderr:
            if "it stays until this command ends" in said:
                process.send_signal(signal.SIGINT)
        return process.stdout.read()


def test_a_function_is_made_anew_for_the_values_that_it_mostly_has(filtering):
    before = code_of(filtering.pid)
    document = json.loads(command(filtering.pid, "a.out:filter", "a.out:twice", "--json"))
    jsonschema.Draft202012Validator(json.loads(text_of("optimise"))).validate(document)
    (special,) = document["specialised"]
    assert special["values"] == {"rsi": 512, "rdx": 8, "rcx": 4}
    assert special["share"] == pytest.approx(0.999, abs=0.001)
    assert special["jumps"] == 5  # one for each bit of the mode
    assert special["dropped"] >= 4
    assert document["interval"][0] > 1.01
    assert document["kept"]
    assert (document["moved"], document["rebound"]) == (1, 2)
    assert code_of(filtering.pid) == before
    assert not has_ended(filtering)


def test_values_that_decide_nothing_are_left_alone(filtering):
    said = command(filtering.pid, "a.out:twice")
    assert "none of these functions is mostly called with a value that decides something" in said
    assert "what is measured stays as it is" in command(filtering.pid, "a.out:twice", "--measure", "a.out:twice")


def test_other_values_go_on_in_the_original(filtering):
    with anyprobe.attach(filtering.pid, unsafe=True) as session:
        ((site,), _) = session.resolve("a.out:filter")
        module = session.host.module(site.object)
        module.code.survey()
        code = module.code.function_at(site.function.start)
        moved = Moved(module, code, values={NUMBERS["rdx"]: 31, NUMBERS["rcx"]: 4})
        layout = Relayout(session.host, [moved])
        layout.apply()
        patch = moved.body.patch
        assert patch is not None
        first, jump, second = decode_range(patch.code, patch.address)[:3]
        assert [each.text for each in (first, second)] == ["cmp rdx, 0x1f", "cmp rcx, 0x4"]
        general = next(at for old, at in patch.copies if old == code.entry + module.bias)
        assert jump.target == general
        session.count("a.out:twice")
        assert session.wait(0.3) is None
        assert session.snapshot().sites[0].hits > 100
    assert not has_ended(filtering)
