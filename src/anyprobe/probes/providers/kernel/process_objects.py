"""What is loaded in a process that is only looked at, so that addresses of it have names."""

from contextlib import suppress

from anyprobe.binary.images.image import Image
from anyprobe.binary.images.modules import LoadedObject, ProcessFiles, loaded_objects
from anyprobe.core.errors import TargetError
from anyprobe.target.system import procfs


class ProcessObjects:
    """The objects of a process, read when an address lies in none that is known; nothing once it has ended."""

    def __init__(self, pid: int, images: dict[tuple[object, ...], Image] | None = None) -> None:
        """Read them; ``images`` is what other processes have opened."""
        self._files = ProcessFiles(pid, images={} if images is None else images)
        self.objects: list[LoadedObject] = []
        self._code: list[procfs.Mapping] | None = None
        self._gone = False
        self.refresh()

    def refresh(self) -> None:
        """Read what is loaded now; what was read stays where the process has ended, whatever gets its number."""
        if self._gone:
            return
        try:
            mappings = procfs.read_mappings(self._files.pid)
            code = [each for each in mappings if "x" in each.perms]
            if code == self._code:  # data comes and goes all the time, and has no objects of its own
                return
            found = loaded_objects(mappings, files=self._files)
        except (TargetError, OSError):
            self._gone = True
            return
        self._code = code
        known = {(each.path, each.first.start) for each in self.objects}
        self.objects += [each for each in found if (each.path, each.first.start) not in known]

    def holding(self, address: int) -> LoadedObject | None:
        """Return the object that an address lies in."""
        for loaded in self.objects:
            with suppress(TargetError):  # its file cannot be read
                if any(0 <= address - loaded.bias - each.vaddr < each.memsz for each in loaded.image.elf.loads):
                    return loaded
        return None
