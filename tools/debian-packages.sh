#!/bin/bash
# Install the Debian packages named as arguments that are missing. Does nothing without root or apt-get: what a
# test or the demo then lacks, it says itself. One that this Debian release does not have is left out by name.
set -u
missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
# the package manager serves one at a time, and `make test` sets up beside this
exec 9>"${TMPDIR:-/tmp}/anyprobe-packages-$(id -u).lock"
flock 9
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} (needs root and apt-get); what depends on them is skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1; }
echo "installing ${missing[*]}" >&2
apt-get update -qq >/dev/null 2>&1
install "${missing[@]}" && exit 0
for package in "${missing[@]}"; do
    install "$package" || echo "could not install $package; what depends on it is skipped" >&2
done
exit 0
