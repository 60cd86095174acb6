"""Random functions with the frames that unwinding needs; some call what throws."""

from support.random_functions import Function
from support.random_instructions import PRESERVED


class UnwoundFunction(Function):
    """One function."""

    def call(self):
        if not self.framed or self.reserved - {self.base} or self.random.random() < 0.6:
            super().call()
            return
        self.emit("mov rdi, rbx", "call try_it", "pxor xmm0, xmm0")
        self.defined = self.defined & set(PRESERVED) | {"rax"}
        self.vectors, self.flags = {0}, False
