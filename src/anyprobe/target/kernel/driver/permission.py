"""What keeps a process from the driver: who could not bring code into the kernel by a module must not do so by it."""

from typing import Final

from anyprobe.target.kernel import descriptors, switches

_SIGNED_ONLY: Final = "/sys/module/module/parameters/sig_enforce"
_CLOSED: Final = {
    "/proc/sys/kernel/modules_disabled": "the kernel takes no modules any more (kernel.modules_disabled)",
    "/proc/sys/kernel/kexec_load_disabled": "the kernel is not to be replaced any more (kernel.kexec_load_disabled)",
}
_UNTIL_BOOT: Final = "and so no other code; until the next boot"


def obstacle() -> str:
    """Return why the driver says EPERM to this process, nothing where nothing is known that keeps it out."""
    held = switches.capabilities()
    lacking = [
        name
        for name, number in (("CAP_SYS_ADMIN", switches.CAP_SYS_ADMIN), ("CAP_SYS_MODULE", switches.CAP_SYS_MODULE))
        if not held >> number & 1
    ]
    if lacking:
        return f"this process lacks {' and '.join(lacking)}"
    for path, why in _CLOSED.items():
        if switches.number_at(path):
            return f"{why}, {_UNTIL_BOOT}"
    if _signed_only():
        return "the kernel takes signed modules only (module.sig_enforce), and patches are not signed"
    return descriptors.locked_down(writing=True)


def _signed_only() -> bool:
    try:
        with open(_SIGNED_ONLY) as file:
            return file.read().strip() == "Y"
    except OSError:
        return False
