"""Small programs of every Debian system, with arguments and input for which each prints the same every time."""

from support.filters import Filter

TEXT = b"".join(b"%d the quick brown fox jumps %x\n" % (number, number * 7919) for number in range(3000))

COMMANDS: dict[str, tuple[str, ...]] = {
    "awk": ("awk", "{ total += $1; seen[$7]++ } END { print total, length(seen) }"),
    "base32": ("base32",),
    "base64": ("base64",),
    "basenc": ("basenc", "--base16"),
    "bash": ("bash", "-c", 'n=0; while read -r line; do n=$((n + ${#line})); done; echo "$n"'),
    "b2sum": ("b2sum",),
    "cat": ("cat", "-A"),
    "cksum": ("cksum",),
    "comm": ("comm", "--nocheck-order", "-12", "/etc/passwd", "-"),
    "cut": ("cut", "-d", " ", "-f", "2,4"),
    "dash": ("dash", "-c", 'while read -r number rest; do echo "$rest"; done'),
    "dd": ("dd", "bs=977", "status=none"),
    "expand": ("expand",),
    "factor": ("factor", "123456789012345678901234567", "1000000007"),
    "fmt": ("fmt", "-w", "40"),
    "fold": ("fold", "-w", "17"),
    "grep": ("grep", "-nE", "(7|f)[0-9a]+$"),
    "head": ("head", "-n", "1000"),
    "iconv": ("iconv", "-f", "utf-8", "-t", "utf-16"),
    "join": ("join", "/dev/null", "-"),
    "md5sum": ("md5sum",),
    "nl": ("nl",),
    "numfmt": ("numfmt", "--to=iec", "--invalid=ignore"),
    "od": ("od", "-tx4"),
    "openssl": ("openssl", "dgst", "-sha256"),
    "paste": ("paste", "-s", "-d", ","),
    "perl": ("perl", "-ne", "$h{$_ % 97}++; END { print scalar(keys %h), qq(\\n) }"),
    "pr": ("pr", "-t", "-3"),
    "printf": ("/usr/bin/printf", "%s-%05d\\n", "a", "17"),
    "ptx": ("ptx", "-w", "60"),
    "rev": ("rev",),
    "sed": ("sed", "-E", "s/([a-z]+) ([a-z]+)/\\2 \\1/g"),
    "seq": ("seq", "1", "3", "20000"),
    "sha1sum": ("sha1sum",),
    "sha512sum": ("sha512sum",),
    "shuf": ("shuf", "--random-source=/etc/passwd", "-n", "5"),
    "sort": ("sort", "-k", "7"),
    "split": ("split", "-n", "2", "--filter=cat", "/etc/services"),
    "stat": ("stat", "-c", "%n %s", "/etc/passwd"),
    "sum": ("sum",),
    "tac": ("tac",),
    "tail": ("tail", "-n", "1000"),
    "tar": ("tar", "--sort=name", "-cf", "-", "/etc/debian_version"),
    "tee": ("tee", "/dev/null"),
    "tr": ("tr", "a-z", "A-Z"),
    "tsort": ("tsort", "/dev/null"),
    "unexpand": ("unexpand", "-a"),
    "uniq": ("uniq", "-w", "1", "-c"),
    "wc": ("wc",),
    "xargs": ("xargs", "-n", "50", "echo"),
    "hexdump": ("hexdump", "-C"),
    "gzip": ("gzip", "-nc"),
    "find": ("find", "/etc/alternatives", "-maxdepth", "0"),
    "env": ("env", "-i", "A=1", "env"),
    "expr": ("expr", "12", "*", "13"),
    "date": ("date", "-u", "-d", "@1700000000"),
}


def everyday(name: str) -> Filter:
    """Return one of ``COMMANDS`` as a filter."""
    return Filter(name, COMMANDS[name], TEXT)
