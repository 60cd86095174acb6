"""Random machine states for one instruction, with registers such that its memory operand lies in the scratch data."""

import struct

from iced_x86 import Code, Mnemonic, OpKind, Register, RegisterExt

from anyprobe.isa.decode import Flow, decode_one
from support.displaced.machine import DATA, DATA_SIZE, OPERAND, ORIGINAL, SEGMENT, STACK, STATUS, VECTOR_SIZE, Image

MASK64 = (1 << 64) - 1
SMALL = (0, 1, 2, 3, 7, 8, 31, 63, 64, 0x7FFFFFFF, 0x80000000, 1 << 63, MASK64)
SEGMENTS = (Register.FS, Register.GS)
POPF = (Code.POPFW, Code.POPFQ)
POP_SEGMENT = (Code.POPQ_FS, Code.POPQ_GS, Code.POPW_FS, Code.POPW_GS)
BIT_TESTS = (Mnemonic.BT, Mnemonic.BTS, Mnemonic.BTR, Mnemonic.BTC)
RESTORES = (Code.FXRSTOR_M512BYTE, Code.FXRSTOR64_M512BYTE, Code.XRSTOR_MEM, Code.XRSTOR64_MEM)
CONTROLS = (Code.LDMXCSR_M32, Code.VEX_VLDMXCSR_M32)
SYSTEM_CALLS = {Code.SYSCALL: 39, Code.INT_IMM8: 20}  # getpid


def memory_operand(iced):
    """Return whether an explicit memory operand exists."""
    return any(iced.op_kind(number) == OpKind.MEMORY for number in range(iced.op_count))


def _number(register):
    return RegisterExt.number(RegisterExt.full_register(register))


def _segment(iced, base):
    return base + SEGMENT if iced.memory_segment in SEGMENTS else 0


def prepared(raw, base):
    """Return the instruction with displacements that lead into the world at ``base``."""
    insn = decode_one(raw, base + ORIGINAL)
    iced, offsets = insn.iced, insn.offsets
    if insn.target is not None:
        size, at = offsets.immediate_size, offsets.immediate_offset
        signed = int.from_bytes(raw[at : at + size], "little", signed=True)
        # Backward branches stay so; what would lead into the instruction itself does not.
        distance = (0x40 if size == 1 else 0x400) * (-1 if signed < 0 else 1)
        return raw[:at] + distance.to_bytes(size, "little", signed=True) + raw[at + size :]
    at, size = offsets.displacement_offset, offsets.displacement_size
    if iced.is_ip_rel_memory_operand:
        return raw[:at] + struct.pack("<i", OPERAND - ORIGINAL - len(raw)) + raw[at + size :]
    absolute = iced.memory_base == Register.NONE and iced.memory_index == Register.NONE and size in (4, 8)
    wanted = base + OPERAND - _segment(iced, base)
    if absolute and (size == 8 or wanted < 1 << 31):
        return raw[:at] + wanted.to_bytes(size, "little") + raw[at + size :]
    return raw


class States:
    """Makes random images for one instruction in one world."""

    def __init__(self, machine, rng):
        self.machine, self.rng = machine, rng
        self.pool = rng.randbytes(DATA_SIZE + 0x10000)

    def image(self, insn, taken):
        """Return a random state in which the instruction finds its operands."""
        rng, base, iced = self.rng, self.machine.base, insn.iced
        regs = [rng.getrandbits(64) if rng.random() < 0.6 else rng.choice(SMALL) for _ in range(16)]
        regs[3] = base + OPERAND + 64 * rng.randrange(8)  # rbx, rbp, rsi, rdi: data
        regs[5] = base + STACK + 0x100
        regs[6], regs[7] = (base + OPERAND + offset + rng.randrange(64) for offset in (0x1000, 0x2000))
        regs[4] = base + STACK  # rsp
        if iced.has_rep_prefix or iced.has_repne_prefix or rng.random() < 0.5:
            regs[1] = rng.choice((0, 1, 2, 3, 8, 31))  # rcx: a count
        if rng.random() < 0.5:
            regs[2] = 0  # rdx: quotients fit
        if iced.memory_segment in SEGMENTS and not memory_operand(iced):  # strings
            regs[3], regs[6] = regs[3] - base - SEGMENT, regs[6] - base - SEGMENT
        regs[0] = SYSTEM_CALLS.get(iced.code, regs[0])
        offset = rng.randrange(0x10000)
        data = bytearray(self.pool[offset : offset + DATA_SIZE])
        vectors = self.vectors()
        operand = None
        if iced.mnemonic in BIT_TESTS and iced.op1_kind == OpKind.REGISTER:
            regs[_number(iced.op1_register)] = rng.randrange(-4096, 4096) & MASK64  # a bit in the data
        elif (
            not memory_operand(iced) and insn.flow in (Flow.NEXT, Flow.CALL, Flow.INDIRECT_CALL) and rng.random() < 0.1
        ):
            # No stack to push to; loads that fault in calls are another matter.
            regs[4] = rng.choice((base, 0x100, 1 << 63, base + STACK + 5))
        if memory_operand(iced):
            operand = self.aim(iced, regs, vectors)
        elif insn.flow in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP):
            regs[_number(iced.op0_register)] = base + taken
        self._words(insn, regs, data, operand, base + taken)
        return Image(regs, rng.getrandbits(12) & STATUS | 0x202, bytes(vectors), bytes(data))

    def _words(self, insn, regs, data, operand, taken):
        """Put code addresses and harmless flags where the instruction finds them."""
        start = self.machine.base + DATA
        if insn.flow is Flow.RET:
            struct.pack_into("<Q", data, regs[4] - start, taken)
        at = regs[4] - start
        if insn.iced.code in POP_SEGMENT and 0 <= at < DATA_SIZE - 8:
            struct.pack_into("<Q", data, at, 0)
        if insn.iced.code in POPF and 0 <= at < DATA_SIZE - 8:
            data[at + 1] &= ~0x41 & 0xFF  # TF, NT
            data[at + 2] &= ~0x04 & 0xFF  # AC
        if insn.iced.code in RESTORES and operand is not None and 0 <= operand - start <= DATA_SIZE - VECTOR_SIZE:
            at = operand - start & ~0x3F
            data[at : at + VECTOR_SIZE] = self.vectors()
        if insn.iced.code in CONTROLS and operand is not None and 0 <= operand - start <= DATA_SIZE - 4:
            struct.pack_into("<I", data, operand - start, 0x1F80 | self.rng.getrandbits(6))
        if insn.flow in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP) and operand is not None:
            at = operand - start
            if 0 <= at <= DATA_SIZE - 8:
                struct.pack_into("<Q", data, at, taken)

    def aim(self, iced, regs, vectors):
        """Set base and index so that the operand lies in the data; return its address as far as it is known."""
        base, rng = self.machine.base, self.rng
        wanted = base + OPERAND + (rng.randrange(64) if rng.random() < 0.2 else 0)
        rest = wanted - iced.memory_displacement - _segment(iced, base)
        if iced.is_ip_rel_memory_operand:
            return base + OPERAND
        index, scale = iced.memory_index, iced.memory_index_scale
        if index != Register.NONE and RegisterExt.is_vector_register(index):
            self._small_lanes(vectors, RegisterExt.number(index))
            index = Register.NONE
        has_base = iced.memory_base != Register.NONE
        if has_base and index != Register.NONE and _number(iced.memory_base) == _number(index):
            regs[_number(index)] = (rest & MASK64) // (1 + scale)
            return wanted - (rest & MASK64) % (1 + scale)
        if index != Register.NONE:
            number = _number(index)
            if has_base:
                regs[number] = rng.randrange(64)
                rest -= regs[number] * scale
            else:
                regs[number] = (rest & MASK64) // scale
                return wanted - (rest & MASK64) % scale
        if has_base:
            number = _number(iced.memory_base)
            if number == 4 and abs(rest - base - STACK) < 0x4000:
                return base + STACK + (wanted - rest)  # near the top of the stack: rsp stays where it is
            regs[number] = rest & MASK64
            if RegisterExt.size(iced.memory_base) == 4 and number != 4:
                regs[number] = rest & 0xFFFFFFFF | rng.getrandbits(32) << 32
        return wanted

    def vectors(self):
        """Return an xsave area with every register random."""
        rng, machine = self.rng, self.machine
        area = bytearray(rng.randbytes(VECTOR_SIZE))
        control = 0x37F | rng.choice((0, 0x400, 0x800, 0xC00))
        if rng.random() < 0.1:
            control &= ~0x3F  # no exception is masked
        # control, status (top of stack alone), tags of used registers
        struct.pack_into("<HHBBH", area, 0, control, rng.randrange(8) << 11, rng.getrandbits(8), 0, 0)
        struct.pack_into("<QQ", area, 8, 0, 0)  # last instruction and operand
        mxcsr = 0x1F80 | rng.choice((0, 0x2000, 0x4000, 0x6000)) | rng.choice((0, 0, 0x8000, 0x40))
        if rng.random() < 0.1:
            mxcsr &= ~0x1F80
        struct.pack_into("<II", area, 24, mxcsr, 0)
        for number in range(8):
            mantissa = rng.getrandbits(63) | 1 << 63
            sign_and_exponent = rng.choice((0x3FFF, 0x4000, 0xBFFE, 0x4010, rng.getrandbits(16)))
            area[32 + 16 * number : 48 + 16 * number] = struct.pack("<QH6x", mantissa, sign_and_exponent)
        for number in range(0, 16, 3):  # some plain numbers
            values = [rng.uniform(-1000, 1000) for _ in range(2)]
            area[160 + 16 * number : 176 + 16 * number] = struct.pack("<2d", *values)
        area[464:576] = bytes(112)
        struct.pack_into("<Q", area, 512, machine.enabled)
        return area

    def _small_lanes(self, area, number):
        """Make every lane of a vector register a small index."""
        lanes = struct.pack("<8Q", *(self.rng.randrange(256) for _ in range(8)))
        offsets = self.machine.offsets
        if number < 16:
            area[160 + 16 * number : 176 + 16 * number] = lanes[:16]
            if 2 in offsets:
                area[offsets[2] + 16 * number : offsets[2] + 16 * number + 16] = lanes[16:32]
            if 6 in offsets:
                area[offsets[6] + 32 * number : offsets[6] + 32 * number + 32] = lanes[32:]
        elif 7 in offsets:
            area[offsets[7] + 64 * (number - 16) : offsets[7] + 64 * (number - 15)] = lanes
