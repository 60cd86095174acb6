"""Memory that can be written, and modules made of bytes, so that nothing here needs a compiler or a process."""

import numpy as np
import pytest

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.address import AddressRange
from support.bytes_memory import BytesMemory
from support.plain_memory import plain_memory_at


@pytest.fixture
def plain_memory():
    return plain_memory_at


def code_map(base, content, functions, *, entries=(), forbidden=()):
    """Return the map of a module of bytes; ``functions`` are (start, end), relative to ``base``."""
    ends = sorted(functions)
    return CodeMap(
        ModuleText(
            name="bytes.so",
            ranges=(AddressRange(base, base + len(content)),),
            memory=BytesMemory(base, content),
            function_starts=np.array([base + start for start, _ in ends], dtype=np.int64),
            function_ends=np.array([base + end for _, end in ends], dtype=np.int64),
            entries=np.array(sorted(base + entry for entry in entries), dtype=np.int64),
            forbidden=tuple((AddressRange(base + low, base + high), why) for low, high, why in forbidden),
            noreturn=frozenset(),
            own_stubs={},
            is_go=False,
            is_pie=True,
        )
    )


@pytest.fixture(name="code_map")
def code_map_fixture():
    return code_map


@pytest.fixture
def simulated():
    """A target that is memory and an emulator, without any text yet."""
    from support.simulated.target import SimulatedTarget

    return SimulatedTarget()


@pytest.fixture
def program(simulated):
    """The usual functions, in a simulated target."""
    from support.simulated.functions import FUNCTIONS
    from support.simulated.program import Program

    return Program(simulated, FUNCTIONS)
