"""Members of the kernel's structures by name: at any depth, bit-fields, anonymous unions, texts of both sides."""

import os
import socket
from contextlib import suppress

import pytest

import anyprobe
from anyprobe import Count, cstr

PORT = 40404
SO_NO_CHECK = 11


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


@pytest.mark.parametrize("mechanism", ["fentry", pytest.param("kprobe", marks=pytest.mark.thorough)])
def test_pointers_are_followed_and_texts_read(session, tmp_path, mechanism):
    files = Count("files", by=("folder", "name", "file_system", "links", "flags"))
    mine = os.getpid()

    @session.entry("kernel::vfs_write", when=lambda ctx: ctx.pid == mine, mechanism=mechanism)
    def entered(ctx, file):
        entry = file.f_path.dentry
        inode = file.f_inode
        files.add(
            key=(
                cstr(entry.d_parent.d_name.name, 16),
                cstr(entry.d_name.name, 16),
                inode.i_sb.s_id,
                inode.i_nlink,
                file.f_flags & 3,
            )
        )

    assert not session.refused
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "known.txt").write_bytes(b"x")
    with open("/dev/null", "r+b", buffering=0) as null:
        null.writelines(b"x" for _ in range(20))
    snapshot = session.snapshot()
    assert not snapshot.missing
    found = {key: cell.count for key, cell in snapshot.aggregation("files").entries.items()}
    (written,) = [key for key in found if key[1] == "known.txt"]
    assert (written[0], written[3], written[4]) == ("folder", 1, os.O_WRONLY)
    (nulls,) = [key for key in found if key[1] == "null"]
    assert (nulls[0], nulls[2], nulls[4], found[nulls]) == ("/", "devtmpfs", os.O_RDWR, 20)


def test_bit_fields_and_unions_of_a_socket(session):
    sent = Count("sent", by=("family", "checks", "type"))
    mine = os.getpid()

    @session.entry("kernel::udp_sendmsg", when=lambda ctx: ctx.pid == mine)
    def entered(ctx, sk):
        sent.add(key=(sk.__sk_common.skc_family, sk.sk_no_check_tx, sk.sk_type))

    for without in (0, 1, 1):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            opened.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, without)
            with suppress(OSError):  # the guest has no network
                opened.sendto(b"x", ("127.0.0.1", PORT))
    found = session.snapshot().aggregation("sent").entries
    family, kind = socket.AF_INET.value, socket.SOCK_DGRAM.value
    assert {key: cell.count for key, cell in found.items()} == {(family, 0, kind): 1, (family, 1, kind): 2}


@pytest.mark.thorough
def test_texts_of_the_program_and_types_by_name(session, tmp_path, monkeypatch):
    opened, ports = Count("opened", by=("name", "flags")), Count("ports", by=("port",))
    mine = os.getpid()
    address = anyprobe.ptr[session.type("struct sockaddr_in")]

    @session.entry("kernel::do_sys_openat2", when=lambda ctx: ctx.pid == mine)
    def entered(ctx, filename, how):
        opened.add(key=(cstr(filename, 32), how.flags & 3))

    @session.entry("kernel::tcp_v4_connect", when=lambda ctx: ctx.pid == mine)
    def connects(ctx, sk, uaddr: address):
        port = uaddr.sin_port
        ports.add(key=((port & 0xFF) << 8 | port >> 8,))

    monkeypatch.chdir(tmp_path)
    with open("opened by its name", "wb"):
        pass
    with socket.socket() as client, pytest.raises(OSError, match=r"."):
        client.connect(("127.0.0.1", PORT))
    snapshot = session.snapshot()
    assert snapshot.aggregation("opened").entries["opened by its name", os.O_WRONLY].count == 1
    assert list(snapshot.aggregation("ports").entries) == [(PORT,)]


@pytest.mark.thorough
def test_registers_inside_of_a_function(session):
    entries = Count("entries", by=("func", "address", "size"))
    mine = os.getpid()

    @session.entry("kernel::vfs_write", when=lambda ctx: ctx.pid == mine, mechanism="kprobe")
    def entered(ctx):
        entries.add(key=(ctx.func == ctx.ip, ctx.ip, ctx.regs.rdx))

    assert not session.refused
    with open("/dev/null", "wb", buffering=0) as null:
        null.write(b"x" * 4321)
    from anyprobe.target.kernel import symbols

    (function,) = symbols.running().named("vfs_write")
    found = session.snapshot().aggregation("entries").entries
    assert found[1, function.address, 4321].count == 1


@pytest.mark.thorough
def test_a_handler_inside_of_a_function_has_its_address(session):
    from anyprobe.target.kernel import symbols

    (function,) = symbols.running().named("vfs_write")
    for offset in range(5, 32):  # the first place behind the call of ftrace at which an instruction begins
        probe, *_ = session.count(f"kernel::vfs_write+{offset:#x}")
        if probe.attachments:
            break
    here = Count("here", by=("address",))

    @session.at(f"kernel::vfs_write+{offset:#x}")
    def inside(ctx):
        here.add(key=(ctx.ip,))

    with open("/dev/null", "wb", buffering=0) as null:
        null.write(b"x")
    assert set(session.snapshot().aggregation("here").entries) == {(function.address + offset,)}


def test_mistakes_are_shown_where_they_are(session):
    with pytest.raises(anyprobe.HandlerError, match=r"struct file has no f_flag\n(.*\n)*.*instead: f_flags"):

        @session.entry("kernel::vfs_write")
        def unknown(ctx, file):
            if file.f_flag:
                pass

    with pytest.raises(anyprobe.HandlerError, match=r"there is no ctx.errno here in the kernel\n.*ctx.errno"):

        @session.entry("kernel::vfs_write")
        def no_errno(ctx):
            if ctx.errno:
                pass

    with pytest.raises(anyprobe.HandlerError, match=r"change nothing"):

        @session.entry("kernel::vfs_write")
        def changing(ctx, file):
            file.f_flags = 0

    assert not session.probes
