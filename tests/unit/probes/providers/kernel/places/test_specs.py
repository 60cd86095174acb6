"""Specs of probes in the kernel."""

import pytest

from anyprobe.core.errors import SpecError
from anyprobe.probes.providers.kernel.places.specs import (
    Provider,
    is_in_any_process,
    is_kernel,
    of_function,
    parse,
    parsed,
)


@pytest.mark.parametrize(
    ("text", "module", "function", "name", "offset", "mechanism"),
    [
        ("kernel::tcp_v4_rcv:entry", "", "tcp_v4_rcv", "entry", 0, None),
        ("kernel::tcp_v4_rcv", "", "tcp_v4_rcv", "entry", 0, None),
        ("kernel:nfs:*:return", "nfs", "*", "return", 0, None),
        ("kernel::vfs_read%return", "", "vfs_read", "return", 0, None),
        ("kernel::vfs_read:0x1c", "", "vfs_read", "offset", 0x1C, None),
        ("kernel::vfs_read:1c", "", "vfs_read", "offset", 0x1C, None),
        ("kernel::vfs_read:block", "", "vfs_read", "block", 0, None),
        ("kernel:ext4:*:call", "ext4", "*", "call", 0, None),
        ("kernel::vfs_read:insn", "", "vfs_read", "insn", 0, None),
        ("kernel::vfs_read:*", "", "vfs_read", "insn", 0, None),
        ("kernel::vfs_read+28", "", "vfs_read", "offset", 28, None),
        ("  kernel:ext4:ext4_sync_file:entry ", "ext4", "ext4_sync_file", "entry", 0, None),
        ("kprobe:vfs_read", "", "vfs_read", "entry", 0, "kprobe"),
        ("kprobe:vfs_read+0x10", "", "vfs_read", "offset", 16, "kprobe"),
        ("kprobe:nfs:nfs_open", "nfs", "nfs_open", "entry", 0, "kprobe"),
        ("kretprobe:vfs_read", "", "vfs_read", "return", 0, "kprobe"),
        ("fentry:vfs_read", "", "vfs_read", "entry", 0, "fentry"),
        ("kfunc:nfs:nfs_open", "nfs", "nfs_open", "entry", 0, "fentry"),
        ("fexit:vfs_read", "", "vfs_read", "return", 0, "fentry"),
        ("kretfunc:vfs_read", "", "vfs_read", "return", 0, "fentry"),
    ],
)
def test_functions(text, module, function, name, offset, mechanism):
    spec = parse(text)
    assert is_kernel(text)
    assert (spec.provider, spec.module.text, spec.function.text) == (Provider.FUNCTION, module, function)
    assert (spec.name, spec.offset, spec.mechanism) == (name, offset, mechanism)


@pytest.mark.parametrize(
    ("text", "provider", "canonical"),
    [
        ("tracepoint:sched:sched_switch", Provider.TRACEPOINT, "tracepoint:sched:sched_switch"),
        ("t:sched:sched_switch", Provider.TRACEPOINT, "tracepoint:sched:sched_switch"),
        ("rawtracepoint:sched_switch", Provider.RAW, "rawtracepoint:sched_switch"),
        ("rawtracepoint:sched:sched_switch", Provider.RAW, "rawtracepoint:sched_switch"),
        ("syscall::openat:return", Provider.SYSCALL, "syscall::openat:return"),
        ("syscall::openat", Provider.SYSCALL, "syscall::openat:entry"),
        ("syscall::openat%return", Provider.SYSCALL, "syscall::openat:return"),
    ],
)
def test_tracepoints_and_system_calls(text, provider, canonical):
    spec = parse(text)
    assert spec.provider is provider
    assert spec.canonical(spec.module.text, spec.function.text) == canonical
    assert parse(canonical).provider is provider


@pytest.mark.parametrize(
    ("text", "under", "message"),
    [
        ("", 0, "empty"),
        ("vfs_read", 0, "provider"),
        ("libc:malloc", 0, "no provider"),
        ("kernel:vfs_read", 7, "four parts"),
        ("kernel::vfs_read:leave", 17, "no such name"),
        ("kernel::vfs_read%exit", 17, "entry or return"),
        ("kernel::vfs_read+x", 17, "not an offset"),
        ("kernel::a:entry:b", 16, "more than four"),
        ("kernel:::entry", 8, "missing"),
        ("tracepoint:sched", 11, "category"),
        ("tracepoint:a:b:c", 15, "more parts"),
        ("syscall:x:open:entry", 8, "no module"),
        ("syscall::open:block", 9, "no offsets"),
        ("syscall::open:0x10", 9, "no offsets"),
        ("kretprobe:vfs_read+4", 10, "no offset"),
        ("kprobe:f%return", 7, "says already"),
    ],
)
def test_what_cannot_be_read_has_a_caret(text, under, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse(text)
    assert caught.value.position == under


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("kprobe:vfs_read", "kprobe:vmlinux:vfs_read"),
        ("kr:vfs_read", "kretprobe:vmlinux:vfs_read"),
        ("kprobe:vfs_read+16", "kprobe:vmlinux:vfs_read+0x10"),
        ("kfunc:vfs_read", "fentry:vmlinux:vfs_read"),
        ("kretfunc:vfs_read", "fexit:vmlinux:vfs_read"),
        ("kernel::vfs_read", "kernel:vmlinux:vfs_read:entry"),
    ],
)
def test_full_form_demands_what_the_spec_has_demanded(text, canonical):
    spec = parse(text)
    assert spec.canonical("vmlinux", "vfs_read") == canonical
    again = parse(canonical)
    assert (again.mechanism, again.name, again.offset) == (spec.mechanism, spec.name, spec.offset)


def test_short_providers_may_be_modules():
    texts = ["k:main", "t:main", "fr:main", "profile:main", "kernel::main", "kprobe:main", "syscall::main"]
    assert [is_kernel(text, short=False) for text in texts] == [False] * 4 + [True] * 3


@pytest.mark.parametrize("text", ["libc:malloc", "malloc", "pid:libc:malloc:entry", "uprobe:/bin/bash:readline", ""])
def test_specs_of_processes_are_none_of_the_kernel(text):
    assert not is_kernel(text)


@pytest.mark.parametrize(
    ("text", "provider", "name", "offset", "canonical"),
    [
        ("uprobe:/bin/bash:readline", Provider.UPROBE, "entry", 0, "uprobe:/bin/bash:readline"),
        ("u:bash:readline+0x10", Provider.UPROBE, "offset", 16, "uprobe:bash:readline+0x10"),
        ("uretprobe:libc:read", Provider.UPROBE, "return", 0, "uretprobe:libc:read"),
        ("usdt:/bin/a:server:query__start", Provider.USDT, "entry", 0, "usdt:/bin/a:server:query__start"),
        ("usdt:/bin/a:query__start", Provider.USDT, "entry", 0, "usdt:/bin/a:query__start"),
    ],
)
def test_places_in_files(text, provider, name, offset, canonical):
    spec = parse(text)
    assert not is_kernel(text)  # in sessions on processes such a spec means places in one of them
    assert (spec.provider, spec.name, spec.offset) == (provider, name, offset)
    assert spec.canonical(spec.module.text, spec.function.text) == canonical
    assert parse(canonical).name == name


@pytest.mark.parametrize("text", ["uprobe:libc:read", "ur:/bin/bash:readline", "usdt:libc:libc:setjmp", " U:a:b"])
def test_without_a_process_places_in_files_are_in_all(text):
    assert is_in_any_process(text)


@pytest.mark.parametrize("text", ["uprobe:readline", "libc:read", "u", "main.c:12", "k:vfs_read"])
def test_what_needs_a_process_or_is_in_the_kernel(text):
    assert not is_in_any_process(text)


@pytest.mark.parametrize(
    ("text", "under", "message"),
    [
        ("uprobe:readline", 7, "a file and a function"),
        ("usdt:query", 5, "a file and a marker"),
        ("uprobe:/bin/bash:", 16, "missing"),
        ("uprobe:/bin/bash:f+x", 19, "not an offset"),
        ("uprobe:a:b:c", 11, "more parts"),
    ],
)
def test_places_in_files_that_cannot_be_read(text, under, message):
    with pytest.raises(SpecError, match=message) as caught:
        parse(text)
    assert caught.value.position == under


@pytest.mark.parametrize(
    ("text", "entry", "returns"),
    [
        ("kernel::vfs_read+0x1c", "kernel::vfs_read:entry", "kernel::vfs_read:return"),
        (" kernel:nfs:nfs_* ", "kernel:nfs:nfs_*:entry", "kernel:nfs:nfs_*:return"),
        ("kprobe:nfs:nfs_open", "kprobe:nfs:nfs_open", "kretprobe:nfs:nfs_open"),
        ("fexit:vfs_read", "fentry:vfs_read", "fexit:vfs_read"),
        ("syscall::openat", "syscall::openat:entry", "syscall::openat:return"),
        ("uprobe:/bin/bash:bash", "uprobe:/bin/bash:bash", "uretprobe:/bin/bash:bash"),
    ],
)
def test_the_ends_of_functions_read_as_they_are_written(text, entry, returns):
    spec = parse(text)
    for name, written in (("entry", entry), ("return", returns)):
        assert spec.end(name) == parse(written)
        assert spec.at(name).text == text


def test_a_line_has_no_ends():
    with pytest.raises(SpecError, match="no ends"):
        parse("fs/read_write.c:463").end("return")


def test_a_function_of_the_kernel_is_what_its_text_says():
    assert of_function("nfs", "nfs_open") == parse("kernel:nfs:nfs_open:entry")
    assert of_function("", "vfs_read", "offset", 0x1C) == parse("kernel::vfs_read:0x1c")


def test_what_is_read_already_stays_as_it_is():
    spec = parse("kernel::vfs_read")
    assert parsed([spec, "kernel::vfs_read"]) == [spec, spec]
