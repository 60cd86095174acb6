"""A function of a shared object that is not loaded yet: what a session loads to replace another function by it."""

import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from anyprobe.core.errors import SourceError, UsageError

_READABLE = 0o755
"""By all: the program may be another user's."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A function of a shared object, which ``Session.replace`` loads into the program; it stays loaded.

    A variable ``anyprobe_original_NAME`` in it, a pointer, is set to what calls the function NAME that is replaced as
    it was. A variable ``anyprobe_address_NAME`` is set to where the function or variable NAME of the object is that has
    the replaced function, exported or not.

    Args:
        path: The file.
        function: The function, by its name in the symbol table.

    """

    path: str | os.PathLike[str]
    function: str

    @classmethod
    def compiled(cls, source: str, function: str, *options: str, compiler: str = "cc") -> "SharedObject":
        """Return a function of a shared object that is made of a source in C, and kept until this process ends.

        Args:
            source: The text.
            function: The function.
            options: What the compiler is told besides ``-shared -fPIC -O2 -g``.
            compiler: Which one.

        Raises:
            SourceError: It cannot be compiled.

        """
        descriptor, path = tempfile.mkstemp(prefix=f"{function}-", suffix=".c", dir=_directory())
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(source)
        return cls.of_file(path, function, options, compiler)

    @classmethod
    def of_file(
        cls, path: str | os.PathLike[str], function: str, options: Sequence[str] = (), compiler: str = "cc"
    ) -> "SharedObject":
        """Return a function of a shared object that is made of a file in C; see ``compiled``."""
        if shutil.which(compiler) is None:
            raise UsageError(f"{compiler} is not installed: give a shared object")
        stem = os.path.splitext(os.path.basename(path))[0]
        descriptor, made = tempfile.mkstemp(prefix=f"{stem}-", suffix=".so", dir=_directory())
        os.close(descriptor)
        command = [compiler, "-shared", "-fPIC", "-O2", "-g", "-o", made, *options, os.path.abspath(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SourceError("this cannot be compiled", file=os.fspath(path), line=1, column=1, said=done.stderr)
        os.chmod(made, _READABLE)
        return cls(made, function)

    def __str__(self) -> str:
        """Return the file and the function, as the command line has them."""
        return f"{os.fspath(self.path)}:{self.function}"


class _Directory:
    """A directory that lasts as long as this process."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="anyprobe-")
        os.chmod(self.path, _READABLE)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@cache
def _made() -> _Directory:
    return _Directory()


def _directory() -> str:
    return _made().path
