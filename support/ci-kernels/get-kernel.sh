#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Gets a kernel image to test on, and prints its path.
#
#     support/ci-kernels/get-kernel.sh [--refresh] VERSION [DIR]
#
# VERSION is one of kernels.list (6.1 means the newest Debian cloud kernel 6.1.x), or a full one (5.4.31)
# that build-kernel.sh has built, or builds now. The image is left as DIR/linux-VERSION.bz, by default in
# the user's cache; one that is there is used again, unless --refresh is given. Beside it
# linux-VERSION.from says which package it came from.
#
# apt does the work, with lists and a cache of its own, so the machine's are not touched; it checks
# the suite's signature and the package's SHA256. ARCH=arm64 gets the other architecture's.
set -euo pipefail
. "$(dirname "$0")/common.sh"

refresh=""
if [ "${1-}" = --refresh ]; then
  refresh=yes
  shift
fi
version=${1-}
[ -n "$version" ] || die "usage: $0 [--refresh] VERSION [DIR]; known: $(known_kernels)"
arch=$(debian_arch)
dir=${2:-$cache/kernels/$arch}
image=$dir/linux-$version.bz
if [ -s "$image" ] && [ -z "$refresh" ]; then
  echo "$image"
  exit
fi
suites=$(kernel_list | awk -v v="$version" '$1 == v { $1 = ""; print }')
if [ -z "$suites" ]; then
  if [ -e "$version" ] || [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
    exec "$ci_kernels/build-kernel.sh" "$version" "$dir"
  fi
  die "kernel $version is not in kernels.list; known: $(known_kernels)" \
    "(a full version, such as 5.4.31, is built from its sources)"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$dir" "$work/deb"
# shellcheck disable=SC2086
own_apt "$work" "$arch" $suites

say "looking for the newest $version cloud kernel in$suites"
apt-get "${apt_options[@]}" -qq update >&2

# linux-image-6.1.0-50-cloud-amd64[-unsigned]; from 6.19 on the image is in linux-binary-*. The
# version column is compared, not the name; the signed twin of the same version is the same kernel.
candidates=$(apt-cache "${apt_options[@]}" dumpavail | awk -v want="$version" -v arch="$arch" '
  /^Package: / { name = $2 }
  /^Version: / { package_version = $2 }
  /^SHA256: / { hash[name " " package_version] = $2 }
  /^Size: / { size[name " " package_version] = $2 }
  /^$/ { emit() }
  END { emit() }
  function emit() {
    if (match(name, "^linux-(image|binary)-[0-9].*-cloud-" arch "(-unsigned)?$") &&
        index(package_version ".", want ".") == 1 && size[name " " package_version] > 4000000)
      print package_version, name
    name = ""
  }' | sort -u -k2,2)
[ -n "$candidates" ] || die "no cloud kernel $version for $arch in$suites; look at $ci_kernels/kernels.list"
# Newest first. A file that is listed may be gone from the pool (the unsigned twin, mostly): try the next.
newest_first() {
  while [ $# -gt 0 ]; do
    local best=$1 other
    for other in "$@"; do
      if dpkg --compare-versions "${other% *}" gt "${best% *}"; then best=$other; fi
    done
    echo "$best"
    local rest=()
    for other in "$@"; do [ "$other" = "$best" ] || rest+=("$other"); done
    set -- "${rest[@]}"
  done
}
mapfile -t candidates <<<"$candidates"
mapfile -t candidates < <(newest_first "${candidates[@]}" | head -n 4)
package=
for candidate in "${candidates[@]}"; do
  package="${candidate#* }=${candidate% *}"
  say "fetching $package"
  if (cd "$work/deb" && apt-get "${apt_options[@]}" -qq download "$package" >&2); then break; fi
  package=
done
[ -n "$package" ] || die "none of these could be fetched: ${candidates[*]}"
deb=$(echo "$work"/deb/*.deb)
dpkg-deb -x "$deb" "$work/tree"
found=$(find "$work/tree" -type f \( -path '*/boot/vmlinuz-*' -o -path '*/lib/modules/*/vmlinuz' \) -print -quit)
[ -n "$found" ] || die "$package holds no vmlinuz; Debian may have split the package anew"
# Written beside and renamed: another run never sees half an image.
cp "$found" "$dir/.linux-$version.$$"
mv "$dir/.linux-$version.$$" "$image"
echo "$package" >"$dir/linux-$version.from"
echo "$image"
