"""One module writes a target's text, in orders of which every prefix is a correct program."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import anyprobe
from anyprobe.splice.apply.text import put_back, write_all_at_rest, write_around_breakpoint, write_running

ROOT = Path(anyprobe.__file__).parent
WRITER = "splice/apply/text.py"
ACCESS = "target/system/memory.py"
DRIVER = "target/kernel/driver/device.py"
"""It writes patches, which no text leads to yet; the kernel's text is written by the driver itself."""
DATA_WRITES = {
    "probes/providers/kernel/splices/joints.py": (1, "patches in the driver's memory, which no text leads to yet"),
    "probes/providers/function/replacing/originals.py": (
        3,
        "pointers of a shared object that was loaded for them, and code after its own, which nothing leads to yet",
    ),
    "probes/providers/function/threads/uncounted.py": (1, "a thread's slot in its control block"),
    "probes/providers/function/timing/children_text.py": (
        1,
        "the word in a bank that says what a fork child's text has",
    ),
    "splice/apply/emission.py": (1, "a springboard, in anyprobe's own pages"),
    "splice/codegen/timing/kept_costs.py": (1, "a file in the cache"),
    "splice/engine.py": (1, "gate pages"),
    "journal/records.py": (7, "journals"),
    "splice/apply/semaphores.py": (2, "semaphores of USDT markers"),
    "splice/apply/recovery/semaphores.py": (1, "semaphores of USDT markers"),
    "splice/apply/recovery/return_addresses.py": (1, "replaced return addresses, on stacks"),
    "splice/userspace/thread_slot.py": (1, "a thread's slot in its control block"),
    "target/remote/calls.py": (2, "pages of stacks that hold nothing, for injected calls"),
    "target/remote/function_calls.py": (2, "a text on a stack that holds nothing, and errno as it was"),
    "target/process/helper_thread.py": (1, "the stack of a helper thread"),
    "target/remote/spare_stack.py": (2, "marks on unused stacks"),
}
"""Who writes bytes at target addresses to what is not text: how many calls, and what they write. Whoever adds one says
here what it is; what threads execute is written by ``splice/apply/text.py``."""
KERNEL_WRITES = {"pwrite": ACCESS, "poke": ACCESS}
"""The calls by which bytes get into a target, and the one module that makes them."""
ROOMS = ("journal/", "splice/", "target/", "probes/", "kprobes/")
"""The packages that know a target."""
BASE = 0x400000


def calls(path):
    """Yield (name, number of arguments) of each call of an attribute, or of a name imported from elsewhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr, len(node.args)
            elif isinstance(node.func, ast.Name):
                yield node.func.id, len(node.args)


def in_sources(found):
    """Return what ``found`` yields of each source, by the source's path, if it yields anything."""
    each = {str(path.relative_to(ROOT)): list(found(path)) for path in sorted(ROOT.rglob("*.py"))}
    return {path: what for path, what in each.items() if what}


def test_one_module_writes_text():
    """Attributes, not calls only: nobody may hand the method on either."""

    def uses(path):
        tree = ast.parse(path.read_text())
        yield from (
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and "write_text" in node.attr
        )
        yield from (
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == "write_text"
        )

    writers = {path for path in in_sources(uses) if path.startswith(ROOMS)}
    assert writers == {WRITER}


def test_every_other_write_at_an_address_says_what_it_writes():
    """``write(address, content)``: files take one argument, pieces of anyprobe's memory three."""
    found = in_sources(lambda path: [name for name, arguments in calls(path) if name == "write" and arguments == 2])
    counted = {path: Counter(names)["write"] for path, names in found.items() if path.startswith(ROOMS)}
    counted.pop("target/process/launch.py")  # os.write to a pipe
    files = "probes/providers/kernel/trials.py", "target/kernel/probe_events.py", "target/kernel/kept_content.py"
    for path in (*files, "probes/providers/function/expected.py"):
        counted.pop(path)
    assert counted == {path: count for path, (count, _) in DATA_WRITES.items()}


def test_bytes_get_into_a_target_by_one_class():
    found = in_sources(lambda path: [name for name, _ in calls(path) if name in KERNEL_WRITES])
    found.pop("target/system/gateway.py", None)
    assert {path: set(names) for path, names in found.items()} == {ACCESS: set(KERNEL_WRITES), DRIVER: {"pwrite"}}


@pytest.fixture
def memory(plain_memory):
    return plain_memory(BASE, 64)


def test_changes_at_rest_are_made_all_or_none(memory, monkeypatch):
    changes = [(BASE + 8 * n, bytes(4), bytes([n + 1] * 4)) for n in range(3)]
    assert write_all_at_rest(memory, [*changes, (BASE + 40, b"\0", b"\0")]) == 3
    assert [memory.read(at, 4) for at, _, _ in changes] == [after for _, _, after in changes]
    back, write = [(at, after, before) for at, before, after in changes], memory.write

    def failing(address, content):
        if (address, content) == (BASE + 8, bytes(4)):
            write(address, content[:2])  # the kernel copies page by page: a part may be there
            raise OSError("no")
        write(address, content)

    monkeypatch.setattr(memory, "write", failing)
    with pytest.raises(OSError, match="no"):
        write_all_at_rest(memory, back)
    assert [memory.read(at, 4) for at, _, _ in changes] == [after for _, _, after in changes]


def test_the_cores_are_serialised_before_and_after_the_bytes_behind_an_int3(memory):
    def serialise():
        memory.writes.append("serialised")

    steps = ([(BASE, b"\xcc")], [(BASE + 1, b"\1\2\3\4")], [(BASE, b"\xe9")])
    write_running(memory, steps, serialise)
    assert memory.writes == [*steps[0], "serialised", *steps[1], "serialised", *steps[2]]


@pytest.mark.parametrize("at", range(5))
def test_a_breakpoint_is_never_written_and_what_follows_it_comes_first(memory, at):
    old, new = b"\x55\x48\x89\xe5\x53", b"\xe9\1\2\3\4"
    now = new[:at] + b"\xcc" + new[at + 1 :]
    memory.write(BASE, now)
    memory.writes.clear()
    write_around_breakpoint(memory, BASE, now, old[:at] + b"\xcc" + old[at + 1 :], at)
    expected = [(BASE + at + 1, old[at + 1 :]), (BASE, old[:at])]
    assert memory.writes == [each for each in expected if each[1]]


def test_what_was_written_last_is_put_back_first(memory):
    put_back(memory, [(BASE, b"1"), (BASE + 1, b"2")])
    assert memory.writes == [(BASE + 1, b"2"), (BASE, b"1")]
