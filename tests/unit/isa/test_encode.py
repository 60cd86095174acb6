"""Each form of an instruction that generated code uses, checked by what a disassembler makes of it."""

import pytest

from anyprobe.core.errors import InternalError
from anyprobe.isa import disassemble
from anyprobe.isa.encode import CONDITIONS, encode, head, machine_code, statements

# text, bytes, what the disassembler says where it writes another way
FORMS = """
mov r9d, [rsp+0x70] | 44 8b 4c 24 70
mov rdx, rdi | 48 89 fa
mov.s rdx, rdi | 48 8b d7 | mov rdx, rdi
cmp.s r10, rax | 4c 3b d0 | cmp r10, rax
mov.s eax, r10d | 41 8b c2 | mov eax, r10d
mov [rdx+0xa8], rax | 48 89 82 a8 00 00 00
mov rax, [r13] | 49 8b 45 00
mov rax, [rsp] | 48 8b 04 24
mov eax, 1 | b8 01 00 00 00 | mov eax, 0x1
mov rax, -1 | 48 c7 c0 ff ff ff ff | mov rax, 0xffffffffffffffff
mov rax, 0x9e3779b97f4a7c15 | 48 b8 15 7c 4a 7f b9 79 37 9e
mov rax, 0x98012345 | 48 b8 45 23 01 98 00 00 00 00
mov eax, 0x98012345 | b8 45 23 01 98
and ecx, 0x80000000 | 81 e1 00 00 00 80
mov byte [rdi+rcx], 0 | c6 04 0f 00 | mov byte ptr [rdi+rcx], 0x0
mov qword [rdi+rsi+0x40], 0 | 48 c7 44 37 40 00 00 00 00 | mov qword ptr [rdi+rsi+0x40], 0x0
mov cl, [rsi+rax] | 8a 0c 06
mov rax, fs:[0x10] | 64 48 8b 04 25 10 00 00 00
mov rcx, gs:[rcx] | 65 48 8b 09
inc qword gs:[rax] | 65 48 ff 00 | inc qword ptr gs:[rax]
inc qword gs:[0x11223344] | 65 48 ff 04 25 44 33 22 11 | inc qword ptr gs:[0x11223344]
popfq | 9d
mov r11, [rdi+rcx*8-0x10] | 4c 8b 5c cf f0
lea rax, [rax+rcx+5] | 48 8d 44 08 05 | lea rax, [rax+rcx+0x5]
lea rsp, [rsp-0x88] | 48 8d a4 24 78 ff ff ff
movsxd rcx, dword [rax+1] | 48 63 48 01 | movsxd rcx, [rax+0x1]
movzx r10d, word [r9] | 45 0f b7 11 | movzx r10d, word ptr [r9]
movzx edi, ah | 0f b6 fc
movaps [rsp+0x10], xmm3 | 0f 29 5c 24 10
movaps xmm12, [rsp+0x10] | 44 0f 28 64 24 10
movq [rsp], xmm9 | 66 44 0f d6 0c 24
push r12 | 41 54
push 5 | 6a 05 | push 0x5
push qword [rdx+0xb0] | ff b2 b0 00 00 00 | push qword ptr [rdx+0xb0]
pop rbx | 5b
pop qword [rsp+0x10] | 8f 44 24 10 | pop qword ptr [rsp+0x10]
xor r12d, r12d | 45 31 e4
add rax, 0x130 | 48 05 30 01 00 00
add rcx, 0x1000 | 48 81 c1 00 10 00 00
add al, 0x7f | 04 7f
sub rsi, 0x20 | 48 83 ee 20
and rcx, -2 | 48 83 e1 fe | and rcx, 0xfffffffffffffffe
and ecx, -0x8d6 | 81 e1 2a f7 ff ff | and ecx, 0xfffff72a
and dword [rsp], 0x8d5 | 81 24 24 d5 08 00 00 | and dword ptr [rsp], 0x8d5
cmp byte [rax], 0xe9 | 80 38 e9 | cmp byte ptr [rax], 0xe9
cmp word [rax], 0x25ff | 66 81 38 ff 25 | cmp word ptr [rax], 0x25ff
cmp cx, [r9] | 66 41 3b 09
cmp [rsi-0x20], rax | 48 39 46 e0
test byte [rdx+0xb1], 1 | f6 82 b1 00 00 00 01 | test byte ptr [rdx+0xb1], 0x1
test al, 2 | a8 02 | test al, 0x2
test sil, 7 | 40 f6 c6 07 | test sil, 0x7
bt r9d, edi | 41 0f a3 f9
btc rdi, 0x3f | 48 0f ba ff 3f
shl rsi, 5 | 48 c1 e6 05 | shl rsi, 0x5
shr r10, 1 | 49 d1 ea | shr r10, 0x1
shr rdx, cl | 48 d3 ea
shrd rax, rdx, 0x20 | 48 0f ac d0 20
imul eax, eax, -0x61c88647 | 69 c0 b9 79 37 9e | imul eax, 0x9e3779b9
imul rcx, rax | 48 0f af c8
mul rdx | 48 f7 e2
not rcx | 48 f7 d1
bsr rcx, rax | 48 0f bd c8
cmova rdx, rax | 48 0f 47 d0
setne al | 0f 95 c0
cmpxchg [rsi+8], rdx | 48 0f b1 56 08 | cmpxchg [rsi+0x8], rdx
lock xadd [rdx+0x40], rax | f0 48 0f c1 42 40
prefetchw byte [rsi+0x200] | 0f 0d 8e 00 02 00 00 | prefetchw [rsi+0x200]
bt ecx, 0xf | 0f ba e1 0f
cmc | f5
adc rax, rax | 48 11 c0
cmp word [rsi+6], -1 | 66 83 7e 06 ff | cmp word ptr [rsi+0x6], 0xffff
lock inc qword [rcx+rdx] | f0 48 ff 04 11 | lock inc qword ptr [rcx+rdx]
call r10 | 41 ff d2
call qword [rsp] | ff 14 24 | call qword ptr [rsp]
jmp qword [rsp-8] | ff 64 24 f8 | jmp qword ptr [rsp-0x8]
ret | c3
nop | 90
nop dword [rax+rax] | 0f 1f 04 00 | nop [rax+rax]
ret 0x88 | c2 88 00
iretq | 48 cf
syscall | 0f 05
pushfq | 9c
lahf | 9f
rdtscp | 0f 01 f9
int3 | cc
""".strip().splitlines()


@pytest.mark.parametrize("form", FORMS)
def test_a_form(form):
    text, code, *said = (each.strip() for each in form.split("|"))
    one = encode(text)
    assert (one.content.hex(" "), one.holes, one.fixups) == (code, (), ())
    shown = disassemble.format(one.content, 0)
    assert [text for _, _, text in shown] == [said[0] if said else text]


@pytest.mark.parametrize(
    ("text", "at", "size", "length"),
    [
        ("mov rax, value", 2, 8, 10),
        ("mov eax, value", 1, 4, 5),
        ("cmp rax, value", 2, 4, 6),
        ("sub rsp, value", 3, 4, 7),
        ("mov rcx, fs:[value]", 5, 4, 9),
        ("mov rax, [rsp+value]", 4, 4, 8),
        ("lock add [rax+value], rdi", 4, 4, 8),
        ("mov rax, [abs value]", 2, 8, 10),
        ("mov edi, value", 1, 4, 5),
        ("test edx, value", 2, 4, 6),
    ],
)
def test_a_value_takes_the_widest_form(text, at, size, length):
    one = encode(text)
    assert len(one.content) == length
    assert [(hole.at, hole.size, hole.name, hole.add) for hole in one.holes] == [(at, size, "value", 0)]


@pytest.mark.parametrize(
    ("text", "head", "size"),
    [
        ("jmp away", "e9", 4),
        ("jmp short away", "eb", 1),
        ("call away", "e8", 4),
        ("jz away", "0f 84", 4),
        ("jnae short away", "72", 1),
        ("jrcxz away", "e3", 1),
        ("lea rax, [rel away]", "48 8d 05", 4),
        ("jmp qword [rel away]", "ff 25", 4),
        ("lock inc qword [rel away]", "f0 48 ff 05", 4),
    ],
)
def test_distances_have_a_known_length(text, head, size):
    one = encode(text)
    start = bytes.fromhex(head)
    assert one.content.startswith(start)
    (fixup,) = one.fixups
    assert fixup == (len(start), size, len(start) + size, "away")
    assert len(one.content) == fixup.end


def test_a_distance_in_front_of_an_immediate():
    one = encode("cmp dword [rel away], 7")
    assert one.content[:2] == b"\x83\x3d"
    assert one.fixups[0][:3] == (2, 4, 7)


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate rax",
        "mov rax",
        "inc [rax]",
        "mov eax, rbx",
        "mov edi, 0x100000000",
        "mov rax, [rbx+a+b]",
        "add rax, -a",
    ],
)
def test_what_is_no_instruction_is_a_mistake_of_ours(text):
    with pytest.raises(InternalError):
        encode(text)
    assert machine_code("ret") == b"\xc3"


def test_a_listing_has_labels_and_comments():
    listing = """
    again:  # the loop
        dec ecx; jnz again
        # over
        ret
    """
    assert statements(listing) == ["again:", "dec ecx", "jnz again", "ret"]


def test_code_by_itself_names_nothing():
    assert machine_code("lea rsp, [rsp+8]; ret") == bytes.fromhex("488d642408c3")
    with pytest.raises(InternalError, match="not known by itself"):
        machine_code("jmp away")


def test_the_head_of_an_instruction_ends_in_front_of_its_value():
    assert head("jmp away") == b"\xe9"
    assert head("lea rsp, [rsp-128]; push value") == bytes.fromhex("488d64248068")
    assert head("mov dword [rsp+4], value") == bytes.fromhex("c7442404")
    assert [head(f"j{name} away")[1] & 0xF for name in CONDITIONS] == list(range(16))
    for text in ("ret", "jmp short away", "mov rax, value", "cmp dword [rel away], 7"):
        with pytest.raises(InternalError, match="does not end"):
            head(text)
