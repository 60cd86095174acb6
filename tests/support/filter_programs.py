"""The programs that are run with everything counted, and what they are given to work on."""

import hashlib
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.driver import MissingTool, build
from support.filters import Filter

PYTHON = "/usr/bin/python3"
TEXT = b"".join(hashlib.sha256(str(i).encode()).digest() + b"text that repeats " * 8 for i in range(2_000))

RG_TEXT = b"".join(b"line %d: text that repeats %x\n" % (i % 7, i * i) for i in range(20_000))

SQL = b"""
create table t(a integer primary key, b text);
with recursive c(i) as (select 1 union all select i+1 from c where i<3000) insert into t select i, hex(i*7919) from c;
select count(*), sum(a), max(b) from t where b like '%3%';
create index i on t(b); select a from t order by b desc limit 5; update t set b = b || 'x' where a % 7 = 0;
select substr(b, 1, 2) as k, count(*), avg(a), group_concat(a) from t group by k having count(*) > 20 order by k;
create view v as select a, length(b) as l from t; select l, count(*) from v group by l; delete from t where a > 2000;
select json_object('a', 1, 'b', json_array(1, 2.5, 'x')), printf('%08.3f|%-6s|', 3.14159, 'ab'), upper('abc');
vacuum; pragma integrity_check;
select rank, t from (select row_number() over (order by b) as rank, a as t from t) limit 3;
"""

PYTHON_MODULES = (
    *("test_json", "test_struct", "test_zlib", "test_hashlib", "test_re", "test_collections", "test_generators"),
    *("test_exceptions", "test_itertools", "test_bytes", "test_heapq", "test_sort", "test_pickle"),
    *("test_thread", "test_threading", "test_threading_local", "test_queue", "test_context"),
    *("test_asyncio.test_tasks", "test_asyncio.test_locks", "test_asyncio.test_base_events"),
)
PYTHON_TESTS = """
import contextlib, io, sys, unittest
print("ready", flush=True)
sys.stdin.readline()
for name in sys.argv[1:]:
    suite = unittest.defaultTestLoader.loadTestsFromName("test." + name)
    with contextlib.redirect_stdout(io.StringIO()):  # what some tests say is about random numbers
        result = unittest.TextTestRunner(stream=open("/dev/null", "w")).run(suite)
    print(name, result.testsRun, len(result.failures), len(result.errors), len(result.skipped), flush=True)
"""

PERL = r"""
use strict; use warnings; $| = 1;
use List::Util qw(sum reduce first shuffle); use Digest::SHA qw(sha256_hex); use Digest::MD5 qw(md5_hex);
use Data::Dumper; use Storable qw(freeze thaw dclone); use MIME::Base64; use Encode; use POSIX qw(floor fmod strftime);
use Math::BigInt; use Time::Local; use Text::Wrap; use Tie::Hash; use Scalar::Util qw(blessed weaken dualvar);
$Data::Dumper::Sortkeys = 1; $Data::Dumper::Indent = 1;
print "ready\n"; <STDIN>;
for my $n (1 .. 12) {
    my %h = map { $_ => { n => $_ ** 2, s => join("-", map { chr(97 + $_ % 26) } 1 .. $_) } } 1 .. 20;
    my $copy = dclone(\%h); my $again = thaw(freeze($copy));
    print "ok dclone $n\n" if Dumper($again) eq Dumper(\%h);
    my $text = join " ", map { sprintf("%03d:%s:%.3f", $_, $h{$_}{s}, $_ / 7) } sort { $a <=> $b } keys %h;
    (my $changed = $text) =~ s/(\d+):(\w(?:-\w)*)/$2<$1>/g; $changed =~ tr/a-m/A-M/;
    print sha256_hex($changed), md5_hex($text), length(encode_base64($changed)), "\n";
    print sum(map { length } split /[:<>-]/, $changed), " ", (reduce { $a ^ $b } unpack("C*", $text)), "\n";
    my $big = Math::BigInt->new("123456789012345678901234567890")->bpow($n); print "$big\n";
    print encode("UTF-8", decode("UTF-8", "\xc3\xa4" x $n)), " ", strftime("%Y-%j", gmtime(86400 * 365 * $n)), "\n";
    my @sorted = sort { $h{$a}{s} cmp $h{$b}{s} or $b <=> $a } keys %h; print "@sorted[0 .. 3]\n";
    eval { die { code => $n } }; print "caught $@->{code}\n"; local $_ = "x" x $n; print "odd\n" if /^(xx)*x$/;
    print pack("w/a N n C", $text, $n, $n, $n) =~ /\Q$text\E/ ? "packed\n" : "not packed\n";
}
"""

NODE = """
const crypto = require('crypto'), zlib = require('zlib');
process.stdout.write('ready\\n');
process.stdin.once('data', async () => {
  const lines = [];
  for (let n = 0; n < 30; n++) {
    const value = { n, list: Array.from({ length: 200 }, (_, i) => Math.sqrt(i * n)), text: 'xyz'.repeat(n) };
    const text = JSON.stringify(value);
    const packed = zlib.deflateSync(Buffer.from(text));
    if (zlib.inflateSync(packed).toString() !== text) throw new Error('zlib');
    lines.push(crypto.createHash('sha256').update(packed).digest('hex'));
    lines.push(text.replace(/[0-9]+/g, m => m.length).split(',').sort().slice(0, 3).join());
    await new Promise(done => setTimeout(done, 1));
  }
  const code = Uint8Array.from([0, 97, 115, 109, 1, 0, 0, 0, 1, 6, 1, 96, 1, 127, 1, 127, 3, 2, 1, 0, 5, 3, 1, 0, 1,
    7, 5, 1, 1, 102, 0, 0, 10, 9, 1, 7, 0, 32, 0, 40, 2, 0, 11]);  // (func (param i32) (i32.load (local.get 0)))
  const load = new WebAssembly.Instance(new WebAssembly.Module(code)).exports.f;
  let traps = 0;
  for (let i = 0; i < 1000; i++) {
    try { load(i * 100); } catch (e) { if (!(e instanceof WebAssembly.RuntimeError)) throw e; traps++; }
  }
  lines.push(traps);
  function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
  lines.push(fib(24), await new Promise((done, fail) =>
    crypto.pbkdf2('a', 'b', 100, 20, 'sha1', (e, key) => e ? fail(e) : done(key.toString('hex')))));
  process.stdout.write(lines.join('\\n') + '\\n');
  process.exit(0);
});
"""


@cache
def c_source() -> bytes:
    """Return a generated C file with most of what C has, for a compiler to work on."""
    head = "typedef unsigned long u; typedef struct { int a, b[4]; double d; } s;\n"
    return (head + "".join(map(_c_functions, range(60))) + C_MAIN).encode()


C_MAIN = "\nint main(void) { s x = {1, {2, 3, 4, 5}, 6.0}; return work59(12345, &x) & 127; }\n"


def _c_functions(i: int) -> str:
    return f"""
static int table{i}[] = {{{", ".join(str((i * 37 + j * j) % 101) for j in range(40))}}};
static double real{i}(const s *x, double y) {{ double r = x->d; for (int i = 0; i < 4; i++) r += x->b[i] * y / {i + 1};
  return r > {i}.5 ? r : -r; }}
u work{i}(u x, s *p) {{
  switch (x % 11) {{ {" ".join(f"case {j}: x ^= {i * 31 + j * 17}; break;" for j in range(11))} }}
  for (u j = 0; j < x % 64; j++) {{ x += table{i}[j % 40]; if (x & 4) x = (x << 3) | (x >> 61); else x -= p->a; }}
  p->d += real{i}(p, x / 3.0); p->b[x & 3] = __builtin_popcountl(x); {f"return work{i - 1}(x / 3, p);" if i else ""}
  return x; }}"""


def cc1() -> Filter:
    path = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    return Filter("cc1", (path, "-quiet", "-O2", "-o", "-", "-"), c_source())


def python_tests(*modules: str) -> Callable[[], Filter]:
    def make() -> Filter:
        if subprocess.run([PYTHON, "-c", "import test.test_json"], capture_output=True).returncode:
            pytest.skip("needs CPython's test suite (Debian: libpython3.11-testsuite)")
        return Filter("CPython's tests", (PYTHON, "-c", PYTHON_TESTS, *modules), b"go\n", announces=True)

    return make


def built(source: str, *options: str, compiler: str | None = None) -> Callable[[], Filter]:
    def make() -> Filter:
        try:
            return Filter(source, (build(source, *options, compiler=compiler),), b"ready? go\n", announces=True)
        except MissingTool as tool:
            pytest.skip(f"needs {tool}")

    return make


def unpacking(tool: str) -> Callable[[], Filter]:
    def make() -> Filter:
        return Filter(f"{tool} -d", (tool, "-dc"), Filter(tool, (tool, "-c"), TEXT).plain())

    return make


def openssl(*arguments: str) -> Callable[[], Filter]:
    return lambda: Filter(" ".join(("openssl", *arguments[:2])), ("openssl", *arguments), TEXT)


def node() -> Filter:
    return Filter("node", ("node", "-e", NODE), b"go\n", announces=True)


def java() -> Filter:
    return Filter(
        "java", ("java", Path(__file__).parents[1] / "live" / "targets" / "JvmFaults.java"), b"go\n", announces=True
    )


KEY = ("-K", "00112233445566778899aabbccddeeff" * 2, "-iv", "0f0e0d0c0b0a09080706050403020100")
FILTERS: dict[str, Callable[[], Filter]] = {
    "gzip": lambda: Filter("gzip", ("gzip", "-c"), TEXT),
    "gunzip": unpacking("gzip"),
    "xz": lambda: Filter("xz", ("xz", "-c", "-2"), TEXT),
    "unxz": unpacking("xz"),
    "zstd": lambda: Filter("zstd", ("zstd", "-c", "-9"), TEXT),
    "unzstd": unpacking("zstd"),
    "bc": lambda: Filter(
        "bc", ("bc", "-lq"), b"scale=60; 4*a(1); e(2); l(7)^3; x=1; for(i=1;i<200;i++) x*=i; x; sqrt(x)\n"
    ),
    "sqlite3": lambda: Filter("sqlite3", ("sqlite3", ":memory:"), SQL),
    "sha256": openssl("dgst", "-sha256"),
    "sha3": openssl("dgst", "-sha3-512"),
    "aes-cbc": openssl("enc", "-aes-256-cbc", *KEY),
    "aes-ctr": openssl("enc", "-aes-256-ctr", *KEY),
    "chacha20": openssl("enc", "-chacha20", *KEY),
    "busybox": lambda: Filter("busybox", ("busybox", "sha256sum"), TEXT),
    "python": python_tests(*PYTHON_MODULES[:2]),
    "perl": lambda: Filter("perl", ("perl", "-e", PERL), b"go\n", announces=True, environment={"PERL_HASH_SEED": "0"}),
    "cc1": cc1,
    "ripgrep": lambda: Filter(
        "rg", ("rg", "-c", "-e", r"t\w+ (that|which) .*[0-9a-f]+", "-e", "repeats", "-"), RG_TEXT
    ),
    "rust": built("rust_program.rs"),
    "node": node,
    "java": java,
}
