"""The command to run next means just the functions that were hot, in a shell."""

import shlex

import pytest

from anyprobe.data.snapshots.profile import ProfiledStack, ProfileFrame
from anyprobe.probes.profiling.next_command import next_command
from anyprobe.probes.specs.spec import parse


def stack(count, *frames):
    return ProfiledStack(tuple(ProfileFrame(*frame) for frame in frames), count)


def test_it_names_what_ran_most_up_to_most_of_the_samples():
    stacks = [stack(count, ("server", name, True)) for name, count in (("a", 60), ("b", 25), ("c", 10), ("d", 5))]
    assert next_command(stacks, ["-p", "7"]) == "anyprobe time --self server:a server:b -p 7"


def test_time_in_the_kernel_is_that_of_the_function_that_has_called_it():
    stacks = [
        stack(9, ("vmlinux", "do_syscall_64", False, True), ("libc.so.6", "read", True), ("server", "main", True))
    ]
    assert next_command(stacks, ["-p", "7"]) == "anyprobe time --self libc.so.6:read -p 7"


def test_without_a_function_that_can_be_probed_there_is_none():
    assert next_command([stack(9, ("vmlinux", "do_syscall_64", False, True)), stack(1)], ["-p", "7"]) == ""


def test_what_a_compiler_has_made_at_run_time_is_not_its_callers_time():
    stacks = [stack(9, ("[jit]", "JS:fib"), ("node", "Builtins_JSEntry", True)), stack(1, ("node", "parse", True))]
    assert next_command(stacks, ["-p", "7"]) == "anyprobe time --self node:parse -p 7"


@pytest.mark.parametrize(
    "name", ["operator new(unsigned long)", "f(char const*)", "T<int>::~T()", "it's", "sort.(*IntSlice).Less", "a b"]
)
def test_names_are_quoted_for_the_shell_and_for_specs(name):
    words = shlex.split(next_command([stack(1, ("lib x.so", name, True))], ["--", "./a", "b c"]))
    assert words[-3:] == ["--", "./a", "b c"]
    spec = parse(words[3])
    assert (spec.module.text, spec.function.text) == ("lib x.so", name)
