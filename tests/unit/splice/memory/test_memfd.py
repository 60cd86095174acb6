"""A memfd in the controller: parts that next to nobody uses take no address space until they are looked at."""

import os

from anyprobe.splice.memory.memfd import Memfd

MAPPED, SPARE, PART = 1 << 16, 70 << 40, 1 << 20


def made(spare: list[tuple[int, int]], size: int) -> Memfd:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, size)
    return Memfd(descriptor, size, spare)


def test_several_programs_have_more_spare_room_than_the_controller_has_address_space():
    size = MAPPED + SPARE + MAPPED
    memories = [made([(MAPPED, MAPPED + SPARE)], size) for _ in range(4)]
    try:
        for number, memory in enumerate(memories):
            memory.store(16, bytes([number]))
            memory.view(size - 8, 1)[0] = 100 + number
            memory.view(MAPPED + (SPARE >> 1), PART)[5:8] = bytes([number] * 3)
        for number, memory in enumerate(memories):
            assert memory.view(16, 1)[0] == number
            assert memory.view(size - 8, 1)[0] == 100 + number
            assert bytes(memory.view(MAPPED + (SPARE >> 1), PART)[5:8]) == bytes([number] * 3)
    finally:
        for memory in memories:
            memory.close()


def test_spare_room_that_is_given_back_is_zero_and_no_longer_mapped():
    memory = made([(MAPPED, MAPPED + SPARE)], MAPPED + SPARE)
    try:
        for number in range(8):  # each is more than half of the address space
            held = memory.view(MAPPED, SPARE)
            held[4096 * number] = 7
            del held
            assert memory.give_back(MAPPED, SPARE)
            assert memory.view(MAPPED + 4096 * number, 1)[0] == 0
    finally:
        memory.close()
