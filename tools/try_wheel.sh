#!/bin/sh
# Tries the wheel in dist/ as a user has it: in a fresh environment, outside of the checkout, with no extras and then with handlers.
# Without extras a count works, and a handler says what to install.
set -eu
wheel=$(ls "$PWD"/dist/*.whl)
python=${1:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
cd "$folder"
export XDG_CACHE_HOME="$folder/cache"
"$folder/venv/bin/anyprobe" count libc:malloc -- /bin/true
if "$folder/venv/bin/anyprobe" hist libc:malloc --of 'arg0 * 3 // 2' -- /bin/true 2>said; then
    echo "a handler was compiled without LLVM" >&2
    exit 1
fi
grep "pip install 'anyprobe\[handlers\]'" said || { cat said >&2; exit 1; }
ls "$folder/venv/share/man/man1/anyprobe-count.1"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[handlers]"
"$folder/venv/bin/anyprobe" hist libc:malloc --of 'arg0 * 3 // 2' --quiet -- /bin/ls "$folder" >/dev/null
echo "$wheel works with $("$python" --version)"
