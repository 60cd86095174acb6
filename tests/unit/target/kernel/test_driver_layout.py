"""The structures of the driver's header, as the compiler and as Python have them."""

import subprocess
from pathlib import Path

from anyprobe.target.kernel.driver import building, layout
from anyprobe.target.kernel.driver.layout import Fixup, Write


def test_layout_is_that_of_the_header(tmp_path):
    source = tmp_path / "sizes.c"
    folder = Path(building.__file__).parent
    names = ("info", "region", "memory", "counts", "batch", "write", "fixup")
    numbers = ("INFO", "RESERVE", "SHARE", "PERCPU", "COUNTS", "APPLY")
    lines = [f'printf("%zu\\n", sizeof(struct anyprobe_{name}));' for name in names]
    lines += [f'printf("%lu\\n", (unsigned long)ANYPROBE_{name});' for name in numbers]
    source.write_text('#include <stdio.h>\n#include "anyprobe.h"\nint main() {' + "\n".join(lines) + "}\n")
    subprocess.run(["cc", f"-I{folder}", "-o", tmp_path / "sizes", source], check=True)
    printed = [
        int(line) for line in subprocess.run([tmp_path / "sizes"], capture_output=True, text=True).stdout.split()
    ]
    sizes = [form.size for form in (layout.INFO, layout.REGION, layout.MEMORY, layout.COUNTS, layout.BATCH)]
    sizes += [len(Write(0, b"x", b"x").packed()), len(Fixup(0, 0).packed())]
    requests = [layout.GET_INFO, layout.RESERVE, layout.SHARE, layout.PERCPU, layout.READ_COUNTS, layout.APPLY]
    assert printed == sizes + requests
