#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a root file system with a Ruby that is built from Debian's source package in a way that Debian's is not, or,
# for a tree-SERIES, from a source tree, and prints its path.
#
#     support/ci-rubies/build-from-source.sh [--refresh] NAME      one of built.list: musl-3.3
#     RUBY_TREES=DIR support/ci-rubies/build-from-source.sh tree-3.2
#
# DIR/3.2 is the source of a release of 3.2: Ruby's repository at a tag, as `git archive` gives it, or a tarball's
# contents. It is copied before it is built.
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
rubies=$cache/rubies
print_cached "$rubies"

compiler=cc
for argument in "${arguments[@]}"; do
  case $argument in CC=*) compiler=${argument#CC=} ;; --enable-yjit) yjit=yes ;; esac
done
has() { command -v "$1" >/dev/null 2>&1; }
has "$compiler" || skip "ruby $name: $compiler is not installed (for musl-gcc: apt-get install musl-tools)"
[ -z "${yjit-}" ] || has rustc || skip "ruby $name: rustc is not installed (apt-get install rustc)"
need() {
  local tool packages=$1
  for tool in "${@:2}"; do has "$tool" || skip "ruby $name: $tool is not installed (apt-get install $packages)"; done
}
need "make binutils" make readelf strip

# new_root VERSION: prints the root of that version and exits, if it is there. Else it is what is built.
new_root() {
  root=$rubies/$name-$1
  if [ -d "$root" ]; then
    echo "$root"
    exit
  fi
  say "building $root (the output is in $rubies/$name.log)"
  exec 7>"$rubies/$name.log"
}

# Both put the source into $work/source, and say what of it is to be installed.
from_package() {
  local suites description
  need dpkg-dev apt-get dpkg-source
  read -ra suites < <(row_of rubies.list "$series")
  make_work "$rubies"
  with_packages "$(dpkg --print-architecture)" "${suites[0]}"
  sed -i 's/^deb /deb-src /; s/ arch=[^] ]*//' "$work/apt/sources.list"
  apt apt-get update -o APT::Update::Error-Mode=any >/dev/null ||
    skip "ruby $name: the sources of ${suites[0]} could not be read: $(why)"
  (cd "$work" && apt apt-get source --download-only "ruby$series" >/dev/null) ||
    skip "ruby $name: ${suites[0]} has no sources of ruby$series: $(why)"
  description=$(find "$work" -maxdepth 1 -name '*.dsc')
  new_root "$(awk '$1 == "Version:" { print $2; exit }' "$description")"
  dpkg-source --no-check -x "$description" "$work/source" >&7 2>&1
  goal=all install=(install-nodoc)
  touch "$work/source/configure" # Debian's patches to configure.ac do not call for autoconf
}

from_tree() {
  local tree=${RUBY_TREES-}/$series version file
  [ -n "${RUBY_TREES-}" ] || skip "ruby $name: RUBY_TREES does not say where a source tree $series is"
  [ -f "$tree/version.h" ] || skip "ruby $name: $tree is no source tree of Ruby, as it has no version.h"
  # One string up to 2.6, the parts of it from then on.
  version=$(cat "$tree/include/ruby/version.h" "$tree/version.h" | awk '
    $1 != "#define" { next }
    $2 == "RUBY_API_VERSION_MAJOR" { major = $3 }
    $2 == "RUBY_API_VERSION_MINOR" { minor = $3 }
    $2 == "RUBY_VERSION_TEENY" { version = major "." minor "." $3 }
    $2 == "RUBY_VERSION" && $3 ~ /^"[0-9.]+"$/ { version = substr($3, 2, length($3) - 2) }
    END { print version }')
  [[ $version == "$series".* ]] || skip "ruby $name: $tree is the source of ${version:-no release that it tells}"
  make_work "$rubies"
  new_root "$version"
  cp -a "$tree" "$work/source"
  # Without gems, which a tree lacks.
  goal=main install=(install-local install-ext-arch install-ext-comm install-lib)
  [ -f "$work/source/revision.h" ] || : >"$work/source/revision.h" # what a repository's tools would say of the commit
  sed -i 's/\<YYUSE\>/YY_USE/' "$work/source/parse.y" # as bison calls it from 3.8 on
  [ -x "$work/source/configure" ] && return
  need "autoconf bison ruby" autoconf bison ruby
  # A repository has not what older configure scripts ask for the kind of machine.
  for file in config.guess config.sub; do
    [ -f "$work/source/tool/$file" ] || cp "/usr/share/misc/$file" "$work/source/tool/" 2>/dev/null ||
      skip "ruby $name: /usr/share/misc/$file is missing (apt-get install autotools-dev)"
  done
  (cd "$work/source" && if [ -f autogen.sh ]; then sh ./autogen.sh; else autoconf; fi) >&7 2>&1
}

case $name in tree-*) from_tree ;; *) from_package ;; esac
mkdir "$work/build"
lay_root
build() {
  cd "$work/build"
  # Extensions whose libraries are missing are left out by themselves.
  "$work/source/configure" --prefix=/usr --disable-install-doc --disable-rubygems --disable-yjit --disable-rjit \
    --without-gmp --with-out-ext=openssl,psych,fiddle,readline,dbm,gdbm,pty,syslog,win32ole "${arguments[@]}"
  nice make -j "${BUILD_JOBS:-2}" "$goal"
  nice make "${install[@]}" DESTDIR="$work/root"
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
