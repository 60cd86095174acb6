"""What is loaded in a process that is only looked at, so that addresses of it have names."""

from contextlib import suppress

from anyprobe.binary.images.modules import LoadedObject, ProcessFiles, loaded_objects
from anyprobe.core.errors import TargetError
from anyprobe.target.system import procfs


class ProcessObjects:
    """The objects of a process, read when an address lies in none that is known; nothing once it has ended."""

    def __init__(self, pid: int) -> None:
        """Read them."""
        self._pid = pid
        self.objects: list[LoadedObject] = []
        self._mappings: list[procfs.Mapping] = []
        self.refresh()

    def refresh(self) -> None:
        """Read what is loaded now; what was read stays where the process has ended."""
        try:
            mappings = procfs.read_mappings(self._pid)
            if mappings == self._mappings:
                return
            found = loaded_objects(mappings, files=ProcessFiles(self._pid))
        except (TargetError, OSError):
            return
        self._mappings = mappings
        known = {(each.path, each.first.start) for each in self.objects}
        self.objects += [each for each in found if (each.path, each.first.start) not in known]

    def holding(self, address: int) -> LoadedObject | None:
        """Return the object that an address lies in."""
        for loaded in self.objects:
            with suppress(TargetError):  # its file cannot be read
                if any(0 <= address - loaded.bias - each.vaddr < each.memsz for each in loaded.image.elf.loads):
                    return loaded
        return None
