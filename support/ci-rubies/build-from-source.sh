#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a root file system with a Ruby that is built from Debian's source package in a way that Debian's is not, and
# prints its path.
#
#     support/ci-rubies/build-from-source.sh [--refresh] NAME      one of built.list: musl-3.3
#
# It holds the interpreter, its standard library without gems, and the shared libraries they need. `chroot ROOT
# /usr/bin/ruby3.3 --disable-gems` runs it. The root is named after the package's version and kept in the cache; one
# that is there is used again, unless --refresh is given. Takes some minutes and no privilege. BUILD_JOBS (2) says how
# many compilers run at once, with a low priority.
#
# A Ruby that cannot be had (no network, no such compiler) ends with a line "skipped: ..." on stderr, and status 77.
set -euo pipefail
. "$(dirname "$0")/common.sh"

asked built.list "$@"
series=${row[0]} symbols=${row[1]} arguments=("${row[@]:2}")
read -ra suites < <(row_of rubies.list "$series")
rubies=$cache/rubies
print_cached "$rubies"

compiler=cc
for argument in "${arguments[@]}"; do
  case $argument in CC=*) compiler=${argument#CC=} ;; --enable-yjit) yjit=yes ;; esac
done
has() { command -v "$1" >/dev/null 2>&1; }
has "$compiler" || skip "ruby $name: $compiler is not installed (for musl-gcc: apt-get install musl-tools)"
[ -z "${yjit-}" ] || has rustc || skip "ruby $name: rustc is not installed (apt-get install rustc)"
for tool in apt-get dpkg-source make readelf strip; do
  has "$tool" || skip "ruby $name: $tool is not installed (apt-get install dpkg-dev make binutils)"
done

make_work "$rubies" "$(dpkg --print-architecture)" "${suites[0]}"
sed -i 's/^deb /deb-src /; s/ arch=[^] ]*//' "$work/apt/sources.list"

apt apt-get update -o APT::Update::Error-Mode=any >/dev/null ||
  skip "ruby $name: the sources of ${suites[0]} could not be read: $(why)"
(cd "$work" && apt apt-get source --download-only "ruby$series" >/dev/null) ||
  skip "ruby $name: ${suites[0]} has no sources of ruby$series: $(why)"
description=$(find "$work" -maxdepth 1 -name '*.dsc')
version=$(awk '$1 == "Version:" { print $2; exit }' "$description")
root=$rubies/$name-$version
if [ -d "$root" ]; then
  echo "$root"
  exit
fi

say "building $root (the output is in $rubies/$name.log)"
exec 7>"$rubies/$name.log"
dpkg-source --no-check -x "$description" "$work/source" >&7 2>&1
touch "$work/source/configure" # Debian's patches to configure.ac do not call for autoconf
mkdir "$work/build"
lay_root
build() {
  cd "$work/build"
  # Extensions whose libraries are missing are left out by themselves.
  "$work/source/configure" --prefix=/usr --disable-install-doc --disable-rubygems --disable-yjit --disable-rjit \
    --without-gmp --with-out-ext=openssl,psych,fiddle,readline,dbm,gdbm,pty,syslog,win32ole "${arguments[@]}"
  nice make -j "${BUILD_JOBS:-2}"
  nice make install-nodoc DESTDIR="$work/root"
}
(build) >&7 2>&1 || { say "it could not be built; the end of $rubies/$name.log:"; tail -n 20 "$rubies/$name.log" >&2; exit 1; }

root_files() { find "$work/root/usr" -type f \( -name '*.so*' -o -path '*/bin/ruby' \) -print0; }
[ "$symbols" = keep ] || root_files | xargs -0 strip --strip-unneeded
rm -rf "$work/root/usr/include" "$work/root/usr"/lib/*.a "$work/root/usr/share"
# The dynamic linker, and what it finds for the rest: musl's is its C library, too.
interpreter=$(readelf -Wl "$work/root/usr/bin/ruby" | sed -n 's/.*program interpreter: \(.*\)]/\1/p')
libraries() {
  echo "$interpreter"
  case $interpreter in *ld-musl-*) return ;; esac
  root_files | LD_LIBRARY_PATH=$work/root/usr/lib xargs -0 ldd 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    grep -v "^$work" | sort -u
}
libraries | while read -r file; do
  for one in "$file" "$(readlink -f "$file")"; do
    mkdir -p "$work/root$(dirname "$one")"
    cp -P "$one" "$work/root$one"
  done
done
ln -s ruby "$work/root/usr/bin/ruby$series"
mv "$work/root" "$root"
echo "$root"
