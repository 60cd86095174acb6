"""What keeps the driver from being loaded is said by name."""

import errno
import os

import pytest

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel.driver import loading
from anyprobe.target.system import gateway


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """Stand in for a kernel whose log is a file, and that refuses the module with an error after it has said why."""
    log = tmp_path / "kmsg"
    log.write_text("6,1,2,-;anyprobe: this kernel has no text_poke_copy\n")

    def refusing(number, *lines):
        def finit_module(_):
            with log.open("a") as file:
                file.writelines(f"3,1,2,-;{line}\n" for line in lines)
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(gateway, "finit_module", finit_module)

    monkeypatch.setattr(loading, "_LOG", str(log))
    return refusing


def test_what_a_kernel_has_not_is_named(kernel):
    kernel(
        errno.ENOENT, "anyprobe: this kernel has no text_poke_copy", "other", "anyprobe: this kernel has no text_mutex"
    )
    with pytest.raises(KernelRefused, match="this kernel has no text_poke_copy, text_mutex, which the driver needs"):
        loading.load("/dev/null")


@pytest.mark.parametrize(
    ("end", "said"),
    [(b"", "takes signed modules only: sign"), (b"~Module signature appended~\n", "does not know the key")],
)
def test_signatures(kernel, tmp_path, end, said):
    kernel(errno.EKEYREJECTED)
    module = tmp_path / "anyprobe.ko"
    module.write_bytes(b"code" + end)
    with pytest.raises(KernelRefused, match=f"{said}.*mokutil") as caught:
        loading.load(str(module))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOENT, "see dmesg"),
        (errno.ENOEXEC, "another kernel"),
        (errno.EPERM, r"CAP_SYS_MODULE|locked down"),
    ],
)
def test_other_reasons(kernel, monkeypatch, number, said):
    kernel(number)
    monkeypatch.setattr(loading, "_LOG", "/nowhere")
    with pytest.raises(KernelRefused, match=said):
        loading.load("/dev/null")
