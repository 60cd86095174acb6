"""What the kernel changes in the text of modules: asked of each table that a module has, as of the kernel's own."""

import lzma
import re
import struct
import subprocess
from pathlib import Path

import pytest

from anyprobe.isa.decode import decode_range
from anyprobe.target.kernel.driver.device import BatchRefused
from anyprobe.target.kernel.driver.layout import Verdict, Write
from support.kernel_patches import text

MODULE, MOST = "kvm", 60


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    """Return where a module that is loaded has its sections, and their sizes, of which its file tells."""
    if subprocess.run(["modprobe", MODULE], check=False).returncode:
        pytest.skip(f"no {MODULE} for this kernel")
    said = subprocess.run(["modinfo", "-n", MODULE], capture_output=True, text=True, check=True).stdout.strip()
    content = Path(said).read_bytes()
    file = tmp_path_factory.mktemp("module") / "module.ko"
    file.write_bytes(lzma.decompress(content) if said.endswith(".xz") else content)
    listed = subprocess.run(["readelf", "-SW", file], capture_output=True, text=True, check=True).stdout
    rows = [line.partition("]")[2].split() for line in listed.splitlines() if re.match(r" *\[ *[1-9]", line)]
    sizes = {name: int(size, 16) for name, _, _, _, size, *_ in rows}
    yield {
        each.name: (int(each.read_text(), 16), sizes[each.name])
        for each in Path(f"/sys/module/{MODULE}/sections").iterdir()
        if each.name in sizes
    }
    subprocess.run(["modprobe", "-r", MODULE], check=False)


def places(sections, table, form, *, relative=True):
    """Return the addresses of text that a table names, by the first member of each entry."""
    start, size = sections[table]
    found = enumerate(struct.iter_unpack(form, text(start, size)))
    step = struct.calcsize(form)
    return sorted({first + (start + step * index if relative else 0) for index, (first, *_) in found})


@pytest.mark.parametrize(
    ("table", "form", "relative", "verdict"),
    [
        ("__jump_table", "<iiq", True, Verdict.STATIC_KEY),
        (".static_call_sites", "<ii", True, Verdict.STATIC_CALL),
        ("__mcount_loc", "<Q", False, Verdict.FTRACE),
        ("__ex_table", "<iii", True, Verdict.FAULTS),
    ],
)
def test_what_a_table_of_a_module_names(driver, sections, table, form, relative, verdict):
    """Each instruction is refused for its own reason, whatever is to be written there."""
    start, size = sections[".text"]
    named = [each for each in places(sections, table, form, relative=relative) if start <= each < start + size]
    assert len(named) > 3
    seen = set()
    for address in named[:: max(1, len(named) // MOST)]:
        there = decode_range(text(address, 16), address)[0].raw
        with pytest.raises(BatchRefused) as caught:
            driver.apply([Write(address, there, b"\xcc" * len(there))], tries=1)
        seen.add(caught.value.verdict)
    assert seen == {verdict}
    assert driver.live == 0
