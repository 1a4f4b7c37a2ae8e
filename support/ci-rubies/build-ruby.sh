#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a root file system with one of Debian's Rubies, and prints its path.
#
#     support/ci-rubies/build-ruby.sh [--refresh] SERIES      one of rubies.list: 3.3
#
# It holds the interpreter, its standard library and the shared libraries they need, unpacked only: no script of a
# package runs, so there is no gem and no configuration. `chroot ROOT /usr/bin/ruby3.3 --disable-gems` runs it. The
# root is named after the package's version and kept in the cache; one of the series that is there is used again,
# unless --refresh is given, which looks for a newer one. Takes some seconds and no privilege. ARCH (amd64, arm64)
# names another machine than this one.
#
# A Ruby that cannot be had (no network, the suite is gone, it lacks the package) ends with a line "skipped: ..."
# on stderr, and status 77.
set -euo pipefail
. "$(dirname "$0")/common.sh"

asked rubies.list "$@"
series=$name suites=("${row[@]}") package=ruby$name
case ${ARCH-} in
  x86_64 | amd64) arch=amd64 ;;
  aarch64 | arm64) arch=arm64 ;;
  '') arch=$(dpkg --print-architecture) ;;
  *) die "$ARCH has no Rubies here: amd64 and arm64 only" ;;
esac
rubies=$cache/rubies
[ "$arch" = "$(dpkg --print-architecture)" ] || rubies=$rubies-$arch
print_cached "$rubies"

command -v apt-get >/dev/null || skip "ruby $series: apt-get, which finds the packages, is not installed"
make_work "$rubies"
with_packages "$arch" "${suites[@]}"
apt apt-get update -o APT::Update::Error-Mode=any >/dev/null ||
  skip "ruby $series: ${suites[*]} could not be read: $(why)"
version=$(apt apt-cache madison "$package" | awk '{ print $3; exit }')
[ -n "$version" ] || skip "ruby $series: ${suites[*]} has no $package"
root=$rubies/$series-$version
if [ -d "$root" ]; then
  echo "$root"
  exit
fi

say "making $root"
apt apt-get --simulate --no-install-recommends -t "${suites[0]}" install "$package=$version" >"$work/plan" ||
  skip "ruby $series: $package $version cannot be installed from ${suites[*]}: $(why)"
# Inst NAME (VERSION ARCHIVE...). The shared libraries are taken, and not the gems, what sets packages up, or the
# suite's other Ruby, which some gems ask for.
mapfile -t wanted < <(awk -v series="$series" '
  $1 != "Inst" { next }
  $2 ~ /^(lib)?ruby[0-9.]*$/ { if ($2 != "ruby" series && $2 != "libruby" series) next }
  $2 ~ /^(ruby[0-9.]+|zlib1g|lib.*)$/ && $2 !~ /^libjs-/ { print $2 "=" substr($3, 2) }
' "$work/plan")
mkdir -p "$work/debs"
(cd "$work/debs" && apt apt-get download "${wanted[@]}" >/dev/null) ||
  skip "ruby $series: a package of ${suites[*]} could not be fetched: $(why)"

lay_root
for deb in "$work"/debs/*.deb; do
  # Packages of before the merge have files in /lib: the links stay.
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/root" --keep-directory-symlink --no-same-owner \
    --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' --exclude='./usr/share/ri'
done
if [ ! -x "$work/root/usr/bin/$package" ]; then
  say "$package $version has no /usr/bin/$package; Debian may have split it anew"
  exit 1
fi
mv "$work/root" "$root"
echo "$root"
