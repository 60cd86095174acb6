"""What handlers cannot do in the kernel is shown where it is, with what to write instead."""

import inspect

import pytest

from anyprobe.core.errors import HandlerError
from anyprobe.data.aggregates.aggregations import Hist
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.annotations import i64, ptr, u8, u64
from anyprobe.handlers.types.layouts import Struct

sizes = Hist("sizes")
node = Struct("node", value=u64)
IN_THE_KERNEL = Setting(retval=None, entry=True, kernel=frozenset({"pid", "tid", "now", "kstack", "ustack", "regs"}))


# Each handler has one mistake; the comment at its end is: the marked text | message | instead
def cases():
    def floats(n: u64):
        share = float(n) * 0.5  # share = float(n) * 0.5 | no floats in the kernel | x * 1000 // y
        sizes.add(i64(share))

    def compared(n: u64):
        if float(n) > 1.5:  # if float(n) > 1.5: | no floats in the kernel | whole numbers
            sizes.add(n)

    def errno(ctx):
        sizes.add(ctx.errno)  # ctx.errno | no ctx.errno here in the kernel | kstack, now, pid

    def caller(ctx):
        sizes.add(i64(ctx.caller))  # ctx.caller | no ctx.caller here in the kernel | one of

    def data(ctx):
        ctx.data.x = 1  # ctx.data | no ctx.data here in the kernel | one of

    def speculating(ctx):
        ctx.speculate()  # ctx.speculate | no ctx.speculate here in the kernel | one of

    def writing(p: ptr[u8]):
        p[0] = 1  # p[0] | change nothing of what it computes |

    def member(p: ptr[node]):
        p.value = 1  # p.value | change nothing of what it computes |

    def registers(ctx):
        ctx.regs.rax = 1  # ctx.regs.rax | change nothing of what it computes |

    def deep(ctx):
        sizes.add(i64(ctx.kstack(1000)))  # ctx.kstack(1000) | constant | ctx.kstack(n) with n from 1 to 126

    return [floats, compared, errno, caller, data, speculating, writing, member, registers, deep]


@pytest.mark.parametrize("handler", cases(), ids=lambda each: each.__name__)
def test_mistakes_are_shown_where_they_are(handler):
    (line,) = (each for each in inspect.getsource(handler).splitlines() if "  # " in each)
    marked, message, instead = (each.strip() for each in line.split("  # ")[1].split("|"))
    with pytest.raises(HandlerError) as caught:
        intermediate(handler, IN_THE_KERNEL)
    assert message in str(caught.value)
    assert instead in str(caught.value)
    assert caught.value.source[caught.value.column - 1 :].startswith(marked)


def test_kernel_stacks_are_the_kernels():
    def handler(ctx):
        sizes.add(i64(ctx.kstack(3)))

    with pytest.raises(HandlerError, match="ctx has no kstack"):
        intermediate(handler)
