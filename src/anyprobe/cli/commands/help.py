"""``anyprobe help``: what a spec is, or a command's own help."""

import click

from anyprobe.cli import COMMANDS

SPECS = """\
A SPEC says where probes go: provider:module:function:name. An empty part
matches all, and so do globs: * ? [...]. From a shell, globs are quoted.

  provider   pid, the target; pid1234 is for that process alone, and chooses it
             if nothing else does
  module     a file: libc, libc.so or libc.so.6; a path; a.out, the executable
  function   a symbol, mangled or as a programmer wrote it, with parameters or
             without; memcpy@GLIBC_2.14; - for offsets in the module
  name       entry, return, an offset in hexadecimal, or each insn
             (instruction), block (basic block), call

Short forms

  libc:malloc          is pid:libc:malloc:entry
  malloc               the same in all modules
  libc:malloc%return   where it ends: each ret, and jumps to other functions
  libc:malloc+0x1c     the instruction there
  libc:malloc%insn     each instruction; %block; %run; %call; %store
  libc:malloc%taken    each conditional jump, where it is taken; %undecided:
                       those whose counts do not follow from the counts of %run
  src/parse.c:120      a source line, by debug information; libx:parse.c:120

Where a program's author has put markers (USDT)

  usdt:postgresql:query__start    by provider, or module, and name; usdt:*
  usdt:libjvm/hotspot:gc__begin   in one module; usdt:PATH:PROVIDER:NAME

In the kernel, for all processes

  kernel::vfs_read:entry    a function; :return, :0x1c; kernel:nfs:* of a module
  tracepoint:sched:*        tracepoints; rawtracepoint:NAME by the kernel's name
  syscall::openat:return    a system call

Read as well

  uprobe:PATH:SYMBOL, uretprobe:PATH:SYMBOL          as bpftrace has them
  kprobe:NAME, kretprobe:NAME, fentry:NAME, fexit:NAME, t:GROUP:NAME, ...
  p:group/event libc:open path=+0(%di):string, r:... lines of kprobe_events

Examples

  anyprobe count 'libc:*' -p 4242 --for 5
  anyprobe count 'a.out:parse_*' 'a.out:parse_*%return' -- ./program FILE
  anyprobe time 'pid:libssl:SSL_read:entry' -n nginx
  anyprobe list 'libc:mem*' -p 4242
  anyprobe count syscall::openat kernel::vfs_read --for 5

A name that is displayed can be given as it is: paste it in single quotes. In
double quotes stands a name and nothing else: '"my prog":main'. What
matches nothing is an error that names the nearest matches, unless it names a
module that is not loaded: then it waits for it. anyprobe list SPEC shows what
matches, anyprobe explain SPEC what would be done there."""


@click.command("help")
@click.argument("topic", required=False, metavar="[specs|COMMAND]")
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """Say what a SPEC is, or what a command does."""
    group = context.parent
    assert group is not None
    if topic is None:
        click.echo(group.get_help())
    elif topic in {"specs", "spec"}:
        click.echo(SPECS)
    else:
        assert isinstance(group.command, click.Group)
        found = group.command.get_command(group, topic)
        if found is None:
            message = f"there is no help on {topic!r}; there is on specs, {', '.join(COMMANDS)}"
            raise click.UsageError(message, context)
        with click.Context(found, info_name=topic, parent=group, help_option_names=["-h", "--help"]) as inner:
            click.echo(found.get_help(inner))
